package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/leasegen/leasegen/internal/stage"
)

const capacity = 8 // of each replica, as its annotation says

// play kills a replica and stops another while they work, each with a new one in its place,
// and adds up.
func (r *run) play(ctx context.Context) error {
	if err := r.publish(ctx); err != nil {
		return err
	}
	r.table = &stage.Table{
		Show: &r.Show, Consumer: "reader", Replicas: []string{"replica-1", "replica-2", "replica-3", "replica-4"},
		Width: 34, Done: "readings", Count: r.read,
	}
	fmt.Fprintf(r.Out, "%d feeds; a replica has room for %d\n\n", r.feeds, capacity)
	r.table.Head()
	if err := r.Fleet.Start("replica-1", "replica-2", "replica-3"); err != nil {
		return err
	}
	if err := r.table.Until(ctx, time.Now(), "three replicas share the feeds", func() (bool, error) {
		reading := 0
		for _, name := range r.Fleet.Running() {
			feeds, err := r.of(ctx, name)
			if err != nil {
				return false, err
			}
			reading += len(feeds)
		}
		return reading == r.feeds, nil
	}); err != nil {
		return err
	}

	if err := r.replace(ctx, "replica-2", "replica-4", r.Fleet.Kill, "killed"); err != nil {
		return err
	}
	if err := r.replace(ctx, "replica-3", "replica-2", r.Fleet.Stop, "stopped"); err != nil {
		return err
	}
	if err := r.table.Until(ctx, time.Now(), "all feeds are at their end", func() (bool, error) {
		n, err := r.read(ctx)
		return n == r.total, err
	}); err != nil {
		return err
	}
	if err := r.table.Until(ctx, time.Now(), "all work items are done", func() (bool, error) {
		status, err := r.Status(ctx, "reader")
		return status.Unowned == 0 && status.LagTotal == 0, err
	}); err != nil {
		return err
	}

	t, err := r.sum(ctx)
	if err != nil {
		return err
	}
	status, err := r.Status(ctx, "reader")
	if err != nil {
		return err
	}
	dead := status.DeadLetters
	fmt.Fprintf(r.Out, "\n%d readings = added once and in order %d; %d feeds = done %d + dead letters %d; %d feeds changed hands\n\n",
		r.total, t.readings-t.disorder, r.feeds, r.feeds-dead, dead, t.owners)
	fmt.Fprint(r.Out, "redis-stream-client-go, by its code: a replica that stops acknowledges and deletes what it has not\n"+
		"finished; a killed one's feeds go on 2 s later if the expiry event arrives, and else wait for the next\n"+
		"start of a replica; the archive cannot tell which of two owners is the newer.\n")
	if t.disorder > 0 || dead > 0 {
		return fmt.Errorf("%d readings were added again or out of order, %d work items are dead letters", t.disorder, dead)
	}
	return nil
}

// replace ends a replica while another is there in its place, and waits until others have gone
// on with all that it was reading.
func (r *run) replace(ctx context.Context, old, next string, end func(string) error, how string) error {
	if err := r.Fleet.Start(next); err != nil {
		return err
	}
	if err := stage.Until(ctx, next+" is there", func() (bool, error) {
		owned, err := r.Owned(ctx, "reader")
		return len(owned) == len(r.Fleet.Running()), err
	}); err != nil {
		return err
	}
	mine, err := r.of(ctx, old)
	if err != nil {
		return err
	}
	began := time.Now() // stopping takes until calls have ended, at most the drain time of 100 ms
	if err := end(old); err != nil {
		return err
	}
	return r.table.Until(ctx, began, fmt.Sprintf("others have %s's, %s", old, how), func() (bool, error) {
		sums, err := r.archive.sums(ctx, mine)
		return err == nil && !slices.ContainsFunc(sums, func(s sum) bool { return s.owner == old && s.readings < r.lengths[s.feed] }), err
	})
}

// of is the feeds that are not at their end and that the replica was the last to take.
func (r *run) of(ctx context.Context, replica string) (names []string, err error) {
	owned, err := r.Owned(ctx, "reader")
	if err != nil || owned[replica] == 0 {
		return nil, err
	}
	sums, err := r.archive.sums(ctx, r.names())
	for _, s := range sums {
		if s.owner == replica && s.readings < r.lengths[s.feed] {
			names = append(names, s.feed)
		}
	}
	return names, err
}

// names are those of the feeds.
func (r *run) names() []string { return slices.Collect(maps.Keys(r.lengths)) }

// sum adds up all feeds; owners counts those that had more than one.
func (r *run) sum(ctx context.Context) (t sum, err error) {
	sums, err := r.archive.sums(ctx, r.names())
	for _, s := range sums {
		t.readings += s.readings
		t.disorder += s.disorder
		if s.owners > 1 {
			t.owners++
		}
	}
	return t, err
}

// read is how many readings were read, of all feeds.
func (r *run) read(ctx context.Context) (int, error) {
	t, err := r.sum(ctx)
	return t.readings, err
}
