package main

import (
	"context"
	"fmt"
	"time"

	"github.com/leasegen/leasegen/internal/stage"
)

const capacity = 8 // of each replica, as its annotation says

// play kills a replica and freezes another while they work, and adds up.
func (r *run) play(ctx context.Context) error {
	lengths := make([]int, r.streams)
	for i := range lengths {
		lengths[i] = r.events/2 + i*37%(r.events/2+1)
	}
	url, err := r.api.open(lengths)
	if err != nil {
		return err
	}
	r.Fleet.Args = []string{"-api", url}
	if err := r.Fleet.Start("replica-1", "replica-2", "replica-3"); err != nil {
		return err
	}

	table := &stage.Table{
		Show: &r.Show, Consumer: "worker", Replicas: r.Fleet.Running(), Width: 38, Done: "processed",
		Count: func(context.Context) (int, error) { return r.api.sum().processed, nil },
	}
	until := func(event string, done func() (bool, error)) error { return table.Until(ctx, time.Now(), event, done) }
	fmt.Fprintf(r.Out, "%d streams; a replica has room for %d\n\n", r.streams, capacity)
	table.Head()
	full := func() (bool, error) {
		for _, name := range r.Fleet.Running() {
			if len(r.api.of(name)) < capacity {
				return false, nil
			}
		}
		return true, nil
	}
	if err := until("three replicas have all they can take", full); err != nil {
		return err
	}
	close(r.api.begin) // the work: a replica that starts late would else find little left

	if err := r.Fleet.Kill("replica-2"); err != nil {
		return err
	}
	if err := until("another goes on for replica-2, killed", r.taken("replica-2", 1)); err != nil {
		return err
	}
	refused, err := r.freeze(ctx, table)
	if err != nil {
		return err
	}
	if err := until("all streams are at their end", func() (bool, error) {
		t := r.api.sum()
		return t.processed == t.events, nil
	}); err != nil {
		return err
	}

	t := r.api.sum()
	late := r.api.late()
	fmt.Fprintf(r.Out, "\n%s\n\n", refused)
	fmt.Fprintf(r.Out, "%d events = processed once and in order %d; %d streams changed hands, %d calls of former owners refused\n\n",
		t.events, t.processed, t.moved, len(late))
	fmt.Fprint(r.Out, "XStreamRoll's LockManager, by its code: a dead worker's streams wait 30 s and the next poll; a frozen\n"+
		"one publishes when it goes on, for its token guards only the release; a worker whose slots are full\n"+
		"never gives one back.\n")
	if t.twice > 0 {
		return fmt.Errorf("%d events were processed again or out of order", t.twice)
	}
	return nil
}

// freeze freezes replica-3 while it is busy, until others have its streams, and returns the first of its calls that is refused then. On
// a busy machine it may have lost them before it was frozen, so that it has no call to be refused: it is frozen again.
func (r *run) freeze(ctx context.Context, table *stage.Table) (refused string, err error) {
	const name, most = "replica-3", capacity * 3 / 4
	busy := func() (bool, error) { return len(r.api.of(name)) >= most, nil }
	for {
		if err := stage.Until(ctx, name+" is busy", busy); err != nil {
			return "", err
		}
		if err := r.Fleet.Freeze(name); err != nil {
			return "", err
		}
		if err := table.Until(ctx, time.Now(), "others go on for "+name+", frozen", r.taken(name, most-1)); err != nil {
			return "", err
		}
		before := len(r.api.lateOf(name))
		if err := r.Fleet.Thaw(name); err != nil {
			return "", err
		}
		thawed, event := time.Now(), name+" thaws, and is refused"
		late := func() bool { return len(r.api.lateOf(name)) > before }
		if err := stage.Until(ctx, event, func() (bool, error) {
			again, err := busy()
			return late() || again, err
		}); err != nil {
			return "", err
		}
		if late() {
			return r.api.lateOf(name)[before], table.Until(ctx, thawed, event, func() (bool, error) { return true, nil })
		}
	}
}

// taken is true when others have gone on with n of the streams that the replica works on now.
func (r *run) taken(replica string, n int) func() (bool, error) {
	streams := r.api.of(replica)
	return func() (bool, error) { return r.api.left(streams, replica) >= n, nil }
}
