package lease_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

// forgetful is a backend that loses the topic "x" of a consumer together with its lease, until it is registered again.
type forgetful struct {
	*leasemem.Backend
	mu       sync.Mutex
	session  string
	owned    []backend.Ref
	lost     bool
	gone     bool // a search for all does not find it
	out      bool // it does not come back
	n        int  // calls of Register that would bring it back
	unlisted int  // calls of Owned that fail
}

func (b *forgetful) lose(unlisted int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost, b.unlisted = true, unlisted
}

func (b *forgetful) hasLost() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost
}

// goOut loses it until the test ends, and returns how often it was registered before.
func (b *forgetful) goOut() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost, b.out = true, true
	return b.n
}

func (b *forgetful) registered() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

func (b *forgetful) Register(ctx context.Context, c backend.ConsumerInfo, resources []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if resources == nil || slices.Contains(resources, "x") {
		b.n++
		if b.lost && !b.out && (resources != nil || !b.gone) {
			if err := b.Backend.Release(ctx, b.session, c.Name, b.owned); err != nil && !errors.Is(err, backend.ErrSessionLost) {
				return err
			}
			b.lost = false
		}
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
		surveys[0].Resources, surveys[0].Free = 0, 0
		for i := range surveys[0].Members {
			surveys[0].Members[i].Owned = 0
		}
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
	if b.hasLost() {
		return []string{ps[0].Resource}, nil
	}
	return b.Backend.Commit(ctx, session, consumer, ps)
}

// lasting are the kinds of consumers whose resources stay. Streams come and go, and are looked for all the time.
var lasting = []lease.Per{lease.PerTopic, lease.PerPartition, lease.PerGroup}

// A survey finds that the backend has lost a resource with its lease, and the process makes it known again, however the lease ends: a
// share of no resources is given away before a write can be refused.
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
		for _, per := range lasting {
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
					start(t, newConsumer(t, be, lease.Spec{Per: per, TTL: 5 * time.Second, Handlers: handleAll(&got)}))
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

// The owner of a lost resource ends: another process, which knows the resource too, makes it known again. A topic that the backend
// has lost altogether is registered like a new one when it comes back.
func TestAResourceThatWasLostAsItsOwnerStops(t *testing.T) {
	for _, per := range lasting {
		for _, gone := range []bool{false, true} {
			if gone && per != lease.PerTopic {
				continue
			}
			t.Run(fmt.Sprintf("%v/gone=%v", per, gone), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					be := &forgetful{Backend: leasemem.New(leasemem.WithSlots(1)), gone: gone}
					var got seen
					spec := lease.Spec{Per: per, TTL: 5 * time.Second, Handlers: handleAll(&got)}
					stop := start(t, newConsumer(t, be, spec))
					publish(t, be.Backend, "x", 0, 1, nil)
					pass(time.Second)
					got.ordered(t, "x", 1)
					start(t, newConsumer(t, be, spec))
					pass(time.Second) // so that it hears of the topic
					publish(t, be.Backend, "x", 1, 2, nil)
					pass(time.Minute)
					got.ordered(t, "x", 2)
					be.lose(0)
					stop()
					pass(time.Minute)
					publish(t, be.Backend, "x", 2, 3, nil)
					pass(5 * time.Minute)
					got.ordered(t, "x", 3)
				})
			})
		}
	}
}

// Resources that stay away, for instance since a shard is out of reach, are looked for once, and the log says so: a Register asks for a
// survey, and the two would else go round as fast as the backend answers.
func TestResourcesThatStayAway(t *testing.T) {
	for _, per := range lasting {
		t.Run(per.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := &forgetful{Backend: leasemem.New(leasemem.WithSlots(1))}
				var log bytes.Buffer
				logger := lease.WithLogger(slog.New(slog.NewTextHandler(&log, nil))) // one write at a time
				start(t, newConsumer(t, be, lease.Spec{Per: per, TTL: 5 * time.Second, Handlers: handleAll(&seen{})}, logger))
				publish(t, be.Backend, "x", 0, 1, nil)
				pass(time.Second)
				before := be.goOut()
				pass(5 * time.Minute)
				if n := be.registered() - before; n == 0 || n > 2 { // the second where a write was refused
					t.Errorf("the resource was registered %d times in five minutes, want once or twice", n)
				}
				if n := strings.Count(log.String(), "fewer resources than before"); n != 1 {
					t.Errorf("the log says %d times that resources are missing, want once:\n%s", n, &log)
				}
			})
		})
	}
}
