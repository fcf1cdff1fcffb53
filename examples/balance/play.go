package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasegen/leasegen/internal/stage"
)

const capacity = 8 // of each replica, as its annotation says

var replicas = [...]string{"replica-1", "replica-2", "replica-3", "replica-4"}

// play kills a replica and stops another while they work, each with a new one in its place,
// and adds up.
func (r *run) play(ctx context.Context) error {
	fmt.Fprintf(r.out, "%d feeds; a replica has room for %d\n\n%8s  %-34s", r.feeds, capacity, "took", "until")
	for _, name := range replicas {
		fmt.Fprintf(r.out, " %9s", name)
	}
	fmt.Fprintf(r.out, " %9s %9s\n", "not owned", "readings")
	for _, name := range replicas[:3] {
		if err := r.Fleet.Replica(name); err != nil {
			return err
		}
	}
	if err := r.until(ctx, "three replicas share the feeds", func() (bool, error) {
		reading := 0
		for _, name := range replicas {
			names, err := r.of(ctx, name)
			if err != nil {
				return false, err
			}
			reading += len(names)
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
	if err := r.until(ctx, "all feeds are at their end", func() (bool, error) {
		t, err := r.sum(ctx)
		return t.readings == r.total, err
	}); err != nil {
		return err
	}
	if err := r.until(ctx, "all work items are done", func() (bool, error) {
		_, free, unread, err := r.owned(ctx)
		return free == 0 && unread == 0, err
	}); err != nil {
		return err
	}

	t, err := r.sum(ctx)
	if err != nil {
		return err
	}
	dead, err := r.dead(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.out, "\n%d readings = added once and in order %d; %d feeds = done %d + dead letters %d; %d feeds changed hands\n\n",
		r.total, t.readings-t.disorder, r.feeds, r.feeds-dead, dead, t.owners)
	fmt.Fprint(r.out, "redis-stream-client-go, by its code: a replica that stops acknowledges and deletes what it has not\n"+
		"finished; a killed one's feeds go on 2 s later if the expiry event arrives, and else wait for the next\n"+
		"start of a replica; nothing tells the archive which of two owners is the newer.\n")
	if t.disorder > 0 || dead > 0 {
		return fmt.Errorf("%d readings were added again or out of order, %d work items are dead letters", t.disorder, dead)
	}
	return nil
}

// replace ends a replica while another is there in its place, and waits until others have gone
// on with all that it was reading.
func (r *run) replace(ctx context.Context, old, next string, end func(string) error, how string) error {
	if err := r.Fleet.Replica(next); err != nil {
		return err
	}
	if err := stage.Until(ctx, next+" is there", func() (bool, error) {
		members, err := r.Backend.Members(ctx, "reader")
		return len(members) == len(r.Fleet.Running()), err
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
	return r.since(ctx, began, fmt.Sprintf("others have %s's, %s", old, how), func() (bool, error) {
		sums, err := r.archive.sums(ctx, mine)
		return err == nil && !slices.ContainsFunc(sums, func(s sum) bool { return s.owner == old && s.readings < r.expected(s.feed) }), err
	})
}

// of is the feeds that are not at their end and that the replica was the last to take.
func (r *run) of(ctx context.Context, replica string) (names []string, err error) {
	owned, _, _, err := r.owned(ctx)
	if err != nil || owned[replica] == 0 {
		return nil, err
	}
	sums, err := r.archive.sums(ctx, r.names)
	for _, s := range sums {
		if s.owner == replica && s.readings < r.expected(s.feed) {
			names = append(names, s.feed)
		}
	}
	return names, err
}

// expected is how many readings a feed has.
func (r *run) expected(feed string) int {
	var i int
	fmt.Sscanf(feed, "feed-%d", &i)
	return r.length(i - 1)
}

// sum adds up all feeds; owners counts those that had more than one.
func (r *run) sum(ctx context.Context) (t sum, err error) {
	sums, err := r.archive.sums(ctx, r.names)
	for _, s := range sums {
		t.readings += s.readings
		t.disorder += s.disorder
		if s.owners > 1 {
			t.owners++
		}
	}
	return t, err
}

// until waits for cond, and prints what has become by then.
func (r *run) until(ctx context.Context, what string, cond func() (bool, error)) error {
	return r.since(ctx, time.Now(), what, cond)
}

// since is until with the time from which on it counts.
func (r *run) since(ctx context.Context, began time.Time, what string, cond func() (bool, error)) error {
	if err := stage.Until(ctx, what, cond); err != nil {
		return err
	}
	took := time.Since(began)
	owned, free, _, err := r.owned(ctx)
	if err != nil {
		return err
	}
	t, err := r.sum(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.out, "%5d ms  %-34s", took.Milliseconds(), what)
	running := r.Fleet.Running()
	for _, name := range replicas {
		if slices.Contains(running, name) {
			fmt.Fprintf(r.out, " %9d", owned[name])
		} else {
			fmt.Fprintf(r.out, " %9s", "-")
		}
	}
	fmt.Fprintf(r.out, " %9d %9d\n", free, t.readings)
	return nil
}

// owned is how many feeds each replica owns, how many wait for one with room, and how many
// work items are not done.
func (r *run) owned(ctx context.Context) (by map[string]int, free int, unread int64, err error) {
	by = map[string]int{}
	members, err := r.Backend.Members(ctx, "reader")
	if err != nil {
		return nil, 0, 0, err
	}
	for _, m := range members {
		by[r.Fleet.Name(m.PID)] += m.Owned
	}
	status, err := r.Backend.Status(ctx)
	for _, s := range status {
		if s.Consumer == "reader" {
			free, unread = s.Unowned, s.LagTotal
		}
	}
	return by, free, unread, err
}

func (r *run) dead(ctx context.Context) (int, error) {
	status, err := r.Backend.Status(ctx)
	for _, s := range status {
		if s.Consumer == "reader" {
			return s.DeadLetters, err
		}
	}
	return 0, err
}
