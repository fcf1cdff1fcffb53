package main

import (
	"context"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
)

// Worker processes the streams that the API says have events. Each stream is worked on by
// one replica until it is at its end; what a replica has no room for is left to others.
//
//leasegen:consumer per=stream lock=row capacity=8 poll=200ms
//leasegen:lease ttl=2s
type Worker struct {
	Replica string
	API     *client
}

// Streams names the streams that have events. Every replica asks; a stream that is named
// while another replica works on it stays where it is.
func (w *Worker) Streams(ctx context.Context) ([]string, error) {
	return w.API.pending(ctx)
}

// Run processes one stream's events until there are no more.
func (w *Worker) Run(ctx context.Context, l lease.Lease) error {
	for {
		n, more, err := w.API.next(ctx, l.Resource)
		if err != nil || !more {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond): // the work
		case <-ctx.Done():
			// What was on its way when ownership ended arrives now. The API refuses it when
			// another owner has been there.
			ctx = context.WithoutCancel(ctx)
			return w.API.processed(ctx, l.Resource, n, l.Epoch, w.Replica)
		}
		if err := w.API.processed(ctx, l.Resource, n, l.Epoch, w.Replica); err != nil {
			return err
		}
	}
}
