// Quickstart: three replicas of one service share the topics orders.*, one of them
// dies, and no message is lost. Everything runs in this process, on the memory backend.
package main

import (
	"context"
	"log"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

// OrderPlaced is published by checkout.
//
//leasegen:event key=Customer
type OrderPlaced struct {
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
}

// Billing charges customers, each topic's in order, each topic on one replica.
//
//leasegen:consumer per=topic topics=orders.*
//leasegen:lease ttl=1s
type Billing struct{}

// HandleOrderPlaced charges one order.
func (b *Billing) HandleOrderPlaced(ctx context.Context, m lease.Message[OrderPlaced]) error {
	time.Sleep(time.Millisecond) // the payment provider
	return nil
}

func main() {
	be := leasemem.New()
	s := newShow(be)
	for _, name := range []string{"replica-1", "replica-2", "replica-3"} {
		billing, err := NewBilling(s.replica(name), &Billing{}, s.options(name)...)
		if err != nil {
			log.Fatal(err)
		}
		s.start(name, billing)
	}
	s.play(func(ctx context.Context, topic string, order OrderPlaced) error {
		return PublishOrderPlaced(ctx, be, topic, order)
	})
}
