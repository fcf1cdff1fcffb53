//leasegen:defaults lease_ttl=2s
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
)

// OrderPlaced is an order of one of the shops. Each shop is a topic.
//
//leasegen:event key=Customer
type OrderPlaced struct {
	Order    string `json:"order"`
	Shop     string `json:"shop"`
	Customer string `json:"customer"`
	Cents    int    `json:"cents"`
	Card     string `json:"card"`
}

// OrderBilled is an order that is paid for. It is published once, though an order may be billed again after a crash.
//
//leasegen:event key=Customer id=Order
type OrderBilled struct {
	Order    string `json:"order"`
	Customer string `json:"customer"`
}

// Cards that the bank does not simply charge.
const (
	stolenCard = "tok_stolen" // is refused, however often it is tried
	slowCard   = "tok_slow"   // takes slowBank
	slowBank   = 12 * time.Second
)

// Billing charges cards, the orders of a shop in order.
//
//leasegen:consumer per=topic topics=orders.* drain=3s
//leasegen:retry max=3 min=200ms cap=2s
//leasegen:dlq keep=720h
type Billing struct{ To lease.Publisher }

// HandleOrderPlaced charges a card.
func (b *Billing) HandleOrderPlaced(ctx context.Context, m lease.Message[OrderPlaced]) error {
	answers := 5 * time.Millisecond
	switch m.Payload.Card {
	case stolenCard:
		return errors.New("the bank refuses the card: reported stolen")
	case slowCard:
		answers = slowBank
	}
	if err := work(ctx, answers); err != nil {
		return err
	}
	return PublishOrderBilled(ctx, b.To, "billed", OrderBilled{Order: m.Payload.Order, Customer: m.Payload.Customer})
}

// Shipping packs what is paid for, the orders of a customer in order.
//
//leasegen:consumer per=partition topics=billed
type Shipping struct{}

// HandleOrderBilled packs an order.
func (s *Shipping) HandleOrderBilled(ctx context.Context, m lease.Message[OrderBilled]) error {
	return work(ctx, 10*time.Millisecond)
}

// Subscriptions places the orders of those who have subscribed, twenty a second in all shops together.
//
//leasegen:consumer per=cluster
type Subscriptions struct{ To lease.Publisher }

// Run places orders until the process no longer leads.
func (s *Subscriptions) Run(ctx context.Context, l lease.Lease) error {
	for n := 0; ; n++ {
		if err := work(ctx, 50*time.Millisecond); err != nil {
			return err
		}
		o := OrderPlaced{Order: fmt.Sprintf("%d-%d", l.Epoch, n), Shop: shop(n), Customer: fmt.Sprintf("customer-%d", n%50), Cents: 1995, Card: "tok_visa"}
		if err := place(ctx, s.To, o); err != nil {
			return err
		}
	}
}

func place(ctx context.Context, to lease.Publisher, o OrderPlaced) error {
	return PublishOrderPlaced(ctx, to, "orders."+o.Shop, o)
}

func shop(n int) string {
	shops := [...]string{"amsterdam", "berlin", "lisbon", "oslo", "paris", "rome"}
	return shops[n%len(shops)]
}

// work takes a while.
func work(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
