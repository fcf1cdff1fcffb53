package main

import (
	"context"
	"fmt"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
)

// FeedOpened is a work item: a feed, which is a Redis stream, is to be read to its end.
//
//leasegen:event key=Feed
type FeedOpened struct {
	Feed     string `json:"feed"`
	Site     string `json:"site"`
	Readings int    `json:"readings"` // how many are expected
}

// Reader reads feeds. Each feed belongs to one replica from the moment it takes the work item
// until it is done with it; a replica takes as many as it has room for.
//
//leasegen:consumer per=stream input=feeds capacity=8 drain=100ms
//leasegen:lease ttl=2s
type Reader struct {
	Replica string
	Archive *archive
}

// HandleFeedOpened reads one feed to its end. The feed is the replica's as long as this does
// not return: nil says that it is done, an error that it is to be tried again, and when the
// replica stops, or has lost the feed, ctx ends, and the next owner goes on from where the
// archive is.
func (r *Reader) HandleFeedOpened(ctx context.Context, m lease.Message[FeedOpened]) error {
	// The archive refuses what a former owner writes, so calls of it need not be cancelled.
	calls := context.WithoutCancel(ctx)
	at, err := r.Archive.open(calls, m.Payload.Feed, m.Epoch, r.Replica)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		next, err := r.Archive.next(calls, m.Payload.Feed, at)
		if err != nil {
			return err
		}
		if next == nil {
			return r.complete(calls, m.Payload)
		}
		select {
		case <-time.After(10 * time.Millisecond): // the work
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := r.Archive.add(calls, m.Payload.Feed, m.Epoch, *next); err != nil {
			return err
		}
		at = next.id
	}
	return context.Cause(ctx)
}

// complete checks that no reading of a feed is missing.
func (r *Reader) complete(ctx context.Context, f FeedOpened) error {
	n, err := r.Archive.readings(ctx, f.Feed)
	if err == nil && n != f.Readings {
		err = fmt.Errorf("%s of %s has %d readings, want %d", f.Feed, f.Site, n, f.Readings)
	}
	return err
}
