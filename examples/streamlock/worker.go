package main

import (
	"context"
	"net/url"
	"strconv"
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

// Run processes one stream's events until there are no more, or the stream is another's.
func (w *Worker) Run(ctx context.Context, l lease.Lease) error {
	// Calls of the API are not cancelled: it tells by the epoch which of them come from a
	// former owner, and refuses those.
	calls := context.WithoutCancel(ctx)
	who := url.Values{"replica": {w.Replica}, "epoch": {strconv.FormatInt(l.Epoch, 10)}}
	for ctx.Err() == nil {
		n, more, err := w.API.next(calls, l.Resource, who)
		if err != nil || !more {
			return err
		}
		if n == 0 {
			continue // none yet
		}
		time.Sleep(10 * time.Millisecond) // the work
		if err := w.API.processed(calls, l.Resource, who, n); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}
