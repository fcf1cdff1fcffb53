package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// life is what happened to two messages: one is handled at once, the other fails until it is a dead letter, is replayed
// after the handler was repaired, and is handled then.
type life struct {
	Max  int    `json:"max"` // attempts before a message becomes a dead letter
	Good []spot `json:"good"`
	Bad  []spot `json:"bad"`
}

// spot is one moment of a message, in milliseconds from the call that published it.
type spot struct {
	What string  `json:"what"`
	At   float64 `json:"at"`
}

// The events of a message.
const (
	published = "published"
	fetched   = "fetched"
	failed    = "failed"
	handled   = "handled"
	parked    = "parked"
	retried   = "retried"
	dead      = "dead letter"
	replayed  = "replayed"
	committed = "committed"
)

// tracing is the backend with what its answers say about the one message on its way.
type tracing struct {
	*leasepg.Backend
	commits sync.RWMutex // held while one is under way: a read that sees what it stored is drawn after it

	mu    sync.Mutex
	began time.Time
	spots []spot
}

// begin forgets the message before. The next may be fetched before the call that publishes it has returned.
func (b *tracing) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.began, b.spots = time.Now(), []spot{{published, 0}}
}

func (b *tracing) add(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spots = append(b.spots, spot{what, since(b.began, time.Now())})
}

// read adds a read of the message. The consumer drops what it read while the topic was at work, and reads it again:
// of such reads in a row, the last is the one that it used.
func (b *tracing) read(what string) {
	b.commits.Lock()
	defer b.commits.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if last := len(b.spots) - 1; last >= 0 && b.spots[last].What == what {
		b.spots = b.spots[:last]
	}
	b.spots = append(b.spots, spot{what, since(b.began, time.Now())})
}

// await waits until something has happened to the message, and returns all that has.
func (b *tracing) await(ctx context.Context, what string) (all []spot) {
	until(ctx, what, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		all = slices.Clone(b.spots)
		return slices.ContainsFunc(all, func(s spot) bool { return s.What == what })
	})
	return all
}

func (b *tracing) Fetch(ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
	all, err := b.Backend.Fetch(ctx, req)
	if slices.ContainsFunc(all, func(f backend.Fetched) bool { return len(f.Messages) > 0 }) {
		b.read(fetched)
	}
	return all, err
}

func (b *tracing) FetchParked(ctx context.Context, req backend.ParkedRequest) (backend.Parked, error) {
	p, err := b.Backend.FetchParked(ctx, req)
	if len(p.Messages) > 0 {
		b.read(retried)
	}
	return p, err
}

func (b *tracing) Commit(ctx context.Context, session, consumer string, progress []backend.Progress) ([]string, error) {
	b.commits.RLock()
	defer b.commits.RUnlock()
	fenced, err := b.Backend.Commit(ctx, session, consumer, progress)
	for _, p := range progress {
		switch {
		case len(p.Dead) > 0:
			b.add(dead)
		case len(p.Park) > 0:
			b.add(parked)
		default:
			b.add(committed)
		}
	}
	return fenced, err
}

func recordLife(ctx context.Context, q quality) (l life, err error) {
	defer must.Catch(&err)
	s := newSite(ctx)
	defer s.closing(&err)
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	b := &tracing{Backend: leasepg.New(s.pool, leasepg.WithLogger(log))}
	var broken atomic.Bool
	l.Max = 3
	ready := make(chan struct{})
	acquired := sync.OnceFunc(func() { close(ready) })
	c := must.Get(lease.NewConsumer(b, lease.Spec{
		Name: consumer, Per: lease.PerTopic, Topics: []string{"orders"}, Batch: 1,
		Retry: lease.Retry{Max: l.Max, Min: q.pause / 8, Jitter: -1},
		Handlers: []lease.Handler{lease.One(kind, func(context.Context, lease.Message[[]byte]) error {
			if broken.Load() {
				b.add(failed)
				return errors.New("the other system is down")
			}
			b.add(handled)
			return nil
		})},
	}, lease.WithLogger(log), lease.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
		if _, ok := o.(operate.ObservedAcquire); ok {
			acquired()
		}
	}))))
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	defer func() { cancel(); err = errors.Join(err, <-ended) }()
	publish := func() {
		b.begin()
		must.Do(b.Publish(ctx, []lease.Event{{Topic: "orders", Key: "one", Kind: kind, Payload: []byte("{}")}}))
	}
	publish() // the first makes the topic known
	<-ready
	b.await(ctx, committed)
	time.Sleep(100 * time.Millisecond)
	publish()
	l.Good = b.await(ctx, committed)
	broken.Store(true)
	time.Sleep(100 * time.Millisecond)
	publish()
	b.await(ctx, dead)
	time.Sleep(q.pause / 2)
	broken.Store(false)
	b.add(replayed)
	if n := must.Get(b.Capabilities().Operator.Replay(ctx, operate.DeadLetterFilter{Consumer: consumer})); n != 1 {
		return l, fmt.Errorf("%d dead letters were replayed, want 1", n)
	}
	l.Bad = b.await(ctx, committed)
	return l, nil
}
