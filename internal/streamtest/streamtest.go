// Package streamtest has consumers of Redis streams that others write to, for tests of the
// generated code: of streams with names that mean something elsewhere, with fields of other
// names, and with entries that do not name their kind.
package streamtest

import (
	"context"
	"encoding/json"

	"github.com/leasegen/leasegen/runtime/lease"
)

// OrderPlaced is what the shop writes as JSON.
//
//leasegen:event name=shop.placed
type OrderPlaced struct {
	Order string `json:"order"`
	Cents int64  `json:"cents"`
}

// OrderCancelled is what the shop writes, too.
//
//leasegen:event name=shop.cancelled
type OrderCancelled struct {
	Order string `json:"order"`
}

// Reading is what a sensor writes, field by field.
//
//leasegen:event
type Reading struct {
	Sensor  string  `json:"sensor"`
	Celsius float64 `json:"celsius,string"`
}

// Orders takes each of the shop's streams by itself.
//
//leasegen:consumer per=topic
//leasegen:redis "streams=shop:orders,{shop}:more,odd {}*?[x]" kind=event key=customer payload=body
//leasegen:retry max=2 min=1ms
type Orders struct {
	Placed    func(context.Context, lease.Message[OrderPlaced]) error
	Cancelled func(context.Context, []lease.Message[OrderCancelled]) error
	Other     func(context.Context, lease.Message[json.RawMessage]) error
}

// HandlePlaced takes what the shop has sold.
func (o *Orders) HandlePlaced(ctx context.Context, m lease.Message[OrderPlaced]) error {
	return o.Placed(ctx, m)
}

// HandleCancelled takes what the shop has not sold after all.
func (o *Orders) HandleCancelled(ctx context.Context, ms []lease.Message[OrderCancelled]) error {
	return o.Cancelled(ctx, ms)
}

// HandleOther takes everything else as it is.
func (o *Orders) HandleOther(ctx context.Context, m lease.Message[json.RawMessage]) error {
	return o.Other(ctx, m)
}

// Readings takes all sensors' readings in one order.
//
//leasegen:consumer per=group
//leasegen:redis streams=sensor:1,sensor:2,sensor:3
type Readings struct {
	Take func(context.Context, lease.Message[Reading]) error
}

// HandleReading takes every entry: no field of it names a kind.
func (r *Readings) HandleReading(ctx context.Context, m lease.Message[Reading]) error {
	return r.Take(ctx, m)
}
