package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

// forgetful is a backend that loses a consumer's only resource together with its lease, until the resource is registered again.
type forgetful struct {
	*leasemem.Backend
	mu       sync.Mutex
	session  string
	owned    []backend.Ref
	lost     bool
	out      bool // and commits fail, and a Register changes no more than that it is counted
	unlisted int  // calls of Owned that fail
	n        int  // calls of Register
}

func (b *forgetful) lose(unlisted int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost, b.unlisted = true, unlisted
}

// goOut loses it until the test ends, and returns how often Register was called before.
func (b *forgetful) goOut(unlisted int) (registered int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost, b.out, b.unlisted = true, true, unlisted
	return b.n
}

func (b *forgetful) registered() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

func (b *forgetful) hasLost() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost
}

func (b *forgetful) Register(ctx context.Context, c backend.ConsumerInfo, resources []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	if b.out {
		return nil
	}
	if b.lost {
		if err := b.Backend.Release(ctx, b.session, c.Name, b.owned); err != nil {
			return err
		}
		b.lost = false
	}
	return b.Backend.Register(ctx, c, resources)
}

func (b *forgetful) Acquire(ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost {
		return nil, nil
	}
	grants, err := b.Backend.Acquire(ctx, req)
	for _, g := range grants {
		b.session, b.owned = req.Session, []backend.Ref{g.Ref}
	}
	return grants, err
}

func (b *forgetful) Release(ctx context.Context, session, consumer string, leases []backend.Ref) error {
	if b.hasLost() {
		return nil
	}
	return b.Backend.Release(ctx, session, consumer, leases)
}

func (b *forgetful) Survey(ctx context.Context, consumers []string) ([]backend.Survey, error) {
	surveys, err := b.Backend.Survey(ctx, consumers)
	if b.hasLost() && err == nil {
		surveys[0].Resources, surveys[0].Free, surveys[0].Members[0].Owned = 0, 0, 0
	}
	return surveys, err
}

func (b *forgetful) Owned(ctx context.Context, session, consumer string) ([]backend.Ref, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.unlisted > 0:
		b.unlisted--
		return nil, errors.New("the list is cut off")
	case b.lost:
		return nil, nil
	}
	return b.Backend.Owned(ctx, session, consumer)
}

func (b *forgetful) Commit(ctx context.Context, session, consumer string, ps []backend.Progress) ([]string, error) {
	b.mu.Lock()
	lost, out := b.lost, b.out
	b.mu.Unlock()
	switch {
	case out:
		return nil, errLink
	case lost:
		return []string{ps[0].Resource}, nil
	}
	return b.Backend.Commit(ctx, session, consumer, ps)
}

// A survey finds that the backend has lost a resource with its lease, and the process makes it known again: a share of no
// resources is given away before a write can be refused.
func TestAResourceThatWasLostWithItsLease(t *testing.T) {
	finds := map[string]struct {
		late     time.Duration // the answer to a commit is under way for that long
		unlisted int
	}{
		"when it is idle":              {},
		"as its progress is stored":    {late: 3 * time.Second},
		"when leases cannot be listed": {unlisted: 1},
		"when all of this is the case": {late: 3 * time.Second, unlisted: 2},
	}
	for name, find := range finds {
		for _, per := range []lease.Per{lease.PerTopic, lease.PerStream, lease.PerPartition, lease.PerGroup} {
			t.Run(fmt.Sprint(name, "/", per), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					mem, link := leasemem.New(leasemem.WithSlots(1)), faults{}
					be := &forgetful{Backend: link.share(mem)}
					var got seen
					link.on("Commit", func(_ context.Context, phase leasemem.Phase) error {
						if phase == leasemem.After {
							time.Sleep(find.late)
						}
						return nil
					})
					spec := lease.Spec{Per: per, TTL: 5 * time.Second, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
						got.add(m.Topic, m.Payload.N)
						return nil
					})}
					if per == lease.PerStream {
						spec.Idle = time.Hour
					}
					start(t, newConsumer(t, be, spec))
					publish(t, mem, "x", 0, 1, nil)
					pass(time.Second)
					got.ordered(t, "x", 1)
					be.lose(find.unlisted)
					pass(5 * time.Minute)
					if be.hasLost() {
						t.Error("the resource was not made known again")
					}
					publish(t, mem, "x", 1, 2, nil)
					pass(5 * time.Minute)
					got.ordered(t, "x", 2)
				})
			})
		}
	}
}

// A backend that goes on not to list a lease, and that does not say either that it is lost, is not asked ever again for its resource: a
// part of it that is out of reach would else keep the process busy.
func TestALeaseThatStaysUnlisted(t *testing.T) {
	for name, unlisted := range map[string]int{"listed without it": 0, "not listed": 1 << 30} {
		for _, per := range []lease.Per{lease.PerTopic, lease.PerStream, lease.PerPartition, lease.PerGroup} {
			t.Run(fmt.Sprint(name, "/", per), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					mem := leasemem.New(leasemem.WithSlots(1))
					be := &forgetful{Backend: mem}
					var got seen
					entered, leave := make(chan struct{}), make(chan struct{})
					t.Cleanup(func() { close(leave) })
					start(t, newConsumer(t, be, lease.Spec{Per: per, TTL: 5 * time.Second, Idle: time.Hour, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
						got.add(m.Topic, m.Payload.N)
						close(entered)
						<-leave // so that the lease is not given away
						return nil
					})}))
					publish(t, mem, "x", 0, 1, nil)
					<-entered
					before := be.goOut(unlisted)
					pass(5 * time.Minute)
					if n := be.registered() - before; n == 0 || n > 20 {
						t.Errorf("Register was called %d times in five minutes, want a few calls", n)
					}
				})
			})
		}
	}
}
