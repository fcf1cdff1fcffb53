package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/leasegen/leasegen/internal/stage"
)

const capacity = 8 // of each replica, as its annotation says

// play kills a replica and freezes another while they work, and adds up.
func (r *run) play(ctx context.Context) error {
	fmt.Fprintf(r.out, "%d streams; a replica has room for %d\n\n%8s  %-38s %9s %9s %9s %9s %10s\n", r.streams, capacity,
		"took", "until", "replica-1", "replica-2", "replica-3", "not owned", "processed")
	full := func() (bool, error) {
		for _, name := range r.Fleet.Running() {
			if len(r.api.of(name)) < capacity {
				return false, nil
			}
		}
		return true, nil
	}
	if err := r.until(ctx, "three replicas have all they can take", full); err != nil {
		return err
	}

	if err := r.Fleet.Kill("replica-2"); err != nil {
		return err
	}
	if err := r.until(ctx, "another goes on for replica-2, killed", r.taken("replica-2", 1)); err != nil {
		return err
	}
	const most = capacity * 3 / 4
	if err := stage.Until(ctx, "replica-3 is busy", func() (bool, error) { return len(r.api.of("replica-3")) >= most, nil }); err != nil {
		return err
	}
	if err := r.Fleet.Freeze("replica-3"); err != nil {
		return err
	}
	if err := r.until(ctx, "others go on for replica-3, frozen", r.taken("replica-3", most-1)); err != nil {
		return err
	}
	if err := r.Fleet.Thaw("replica-3"); err != nil {
		return err
	}
	if err := r.until(ctx, "replica-3 thaws, and is refused", func() (bool, error) { return len(r.api.late()) > 0, nil }); err != nil {
		return err
	}
	if err := r.until(ctx, "all streams are at their end", func() (bool, error) {
		t := r.api.sum()
		return t.processed == t.events, nil
	}); err != nil {
		return err
	}

	t := r.api.sum()
	late := r.api.late()
	fmt.Fprintf(r.out, "\n%s\n\n", late[0])
	fmt.Fprintf(r.out, "%d events = processed once and in order %d; %d streams changed hands, %d calls of former owners refused\n\n",
		t.events, t.processed, t.moved, len(late))
	fmt.Fprint(r.out, "XStreamRoll's LockManager, by its code: a dead worker's streams wait 30 s and the next poll; a frozen\n"+
		"one publishes when it goes on, for its token guards only the release; a worker whose slots are full\n"+
		"never gives one back.\n")
	if t.twice > 0 {
		return fmt.Errorf("%d events were processed again or out of order", t.twice)
	}
	return nil
}

// taken is true when others have gone on with n of the streams that the replica works on now.
func (r *run) taken(replica string, n int) func() (bool, error) {
	streams := r.api.of(replica)
	return func() (bool, error) { return r.api.left(streams, replica) >= n, nil }
}

// until waits for cond, and prints what has become by then.
func (r *run) until(ctx context.Context, what string, cond func() (bool, error)) error {
	began := time.Now()
	if err := stage.Until(ctx, what, cond); err != nil {
		return err
	}
	took := time.Since(began)
	owned, free, err := r.owned(ctx)
	if err != nil {
		return err
	}
	running := strings.Join(r.Fleet.Running(), " ")
	var cells [3]string
	for i := range cells {
		name := fmt.Sprintf("replica-%d", i+1)
		cells[i] = "-"
		if strings.Contains(running, name) {
			cells[i] = fmt.Sprint(owned[name])
		}
	}
	fmt.Fprintf(r.out, "%5d ms  %-38s %9s %9s %9s %9d %10d\n", took.Milliseconds(), what, cells[0], cells[1], cells[2], free, r.api.sum().processed)
	return nil
}

// owned is how many streams each replica owns, and how many are wanted and not owned.
func (r *run) owned(ctx context.Context) (by map[string]int, free int, err error) {
	by = map[string]int{}
	members, err := r.Backend.Members(ctx, "worker")
	if err != nil {
		return nil, 0, err
	}
	for _, m := range members {
		by[r.Fleet.Name(m.PID)] += m.Owned
	}
	status, err := r.Backend.Status(ctx)
	for _, s := range status {
		if s.Consumer == "worker" {
			free = s.Unowned
		}
	}
	return by, free, err
}
