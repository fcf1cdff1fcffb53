package leaseredis_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// item is a work item.
type item struct {
	Stream string
	N      int
}

var itemType = lease.EventType[item]{Kind: "item", Key: func(i *item) string { return i.Stream }}

// fleet is the processes that share one namespace, and what they have handled: work items, each of which names a stream.
type fleet struct {
	t         *testing.T
	server    *redistest.Server
	namespace string
	be        *leaseredis.Backend // to publish and to look

	mu      sync.Mutex
	handled map[string][]int  // item numbers by stream, in order
	by      map[string]string // the process that handles a stream now
	cut     map[string]bool   // processes that have been cut off: they may work on for their TTL
	calls   map[string]int    // of each process, those under way whose context has not ended
	twice   []string          // streams that two processes handled at once
}

func newFleet(t *testing.T, server *redistest.Server) *fleet {
	f := &fleet{t: t, server: server, namespace: redistest.Namespace(t), handled: map[string][]int{}, by: map[string]string{}, cut: map[string]bool{}, calls: map[string]int{}}
	f.be = leaseredis.New(server.Client(t), leaseredis.WithNamespace(f.namespace), quiet())
	return f
}

func quiet() leaseredis.Option { return leaseredis.WithLogger(slog.New(slog.DiscardHandler)) }

// proc is one process of the fleet. Its only way to the server is its proxy.
type proc struct {
	*fleet
	name  string
	proxy *faultproxy.Proxy

	mu     sync.Mutex
	seen   []operate.Observation
	cancel context.CancelFunc
	ended  chan error
}

// mortal is for processes that are lost in the test: the others need not wait for long.
func mortal(s *lease.Spec) { s.TTL = 3 * time.Second }

// start runs the consumer reader as one process more. Each handles every item by work, within
// which the stream counts as its own.
func (f *fleet) start(name string, capacity int, work func(ctx context.Context, m lease.Message[item]) error, change ...func(*lease.Spec)) *proc {
	f.t.Helper()
	p := &proc{fleet: f, name: name, proxy: faultproxy.Start(f.t, f.server.Addr()), ended: make(chan error, 1)}
	client := redis.NewClient(&redis.Options{Addr: p.proxy.Addr()})
	s := lease.Spec{
		Name: "reader", Per: backend.PerStream, Topics: []string{"work"}, Capacity: capacity,
		TTL: 30 * time.Second, Drain: 50 * time.Millisecond, Idle: 100 * time.Millisecond,
		Handlers: []lease.Handler{lease.One("item", func(ctx context.Context, m lease.Message[item]) error { return p.handle(ctx, m, work) })},
	}
	for _, c := range change {
		c(&s)
	}
	be := leaseredis.New(client, leaseredis.WithNamespace(f.namespace), quiet())
	c, err := lease.NewConsumer(be, s, lease.WithLogger(slog.New(slog.DiscardHandler)),
		lease.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.seen = append(p.seen, o)
		})))
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))
	p.cancel = cancel
	go func() { p.ended <- kit.Run(ctx, c) }()
	f.t.Cleanup(func() {
		p.proxy.Heal()
		p.stop()
		client.Close()
	})
	return p
}

func (p *proc) handle(ctx context.Context, m lease.Message[item], work func(context.Context, lease.Message[item]) error) error {
	f := p.fleet
	f.mu.Lock()
	if other := f.by[m.Key]; other != "" && !f.cut[other] {
		f.twice = append(f.twice, fmt.Sprintf("%s by %s and %s", m.Key, other, p.name))
	}
	f.by[m.Key] = p.name
	f.calls[p.name]++
	f.mu.Unlock()
	// A process whose context has ended knows that the stream is no longer its own.
	over := sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.calls[p.name]--
		if f.by[m.Key] == p.name {
			delete(f.by, m.Key)
		}
	})
	defer context.AfterFunc(ctx, over)()
	defer over()
	err := work(ctx, m)
	if err == nil && ctx.Err() == nil {
		f.mu.Lock()
		f.handled[m.Key] = append(f.handled[m.Key], m.Payload.N)
		f.mu.Unlock()
	}
	return err
}

// stop ends a process in good order. It may be called again.
func (p *proc) stop() {
	p.cancel()
	if err := <-p.ended; err != nil {
		p.t.Errorf("%s: %v", p.name, err)
	}
	p.ended <- nil
}

// kill cuts a process off for good: to the others it is dead.
func (p *proc) kill() {
	p.fleet.mu.Lock()
	p.fleet.cut[p.name] = true
	p.fleet.mu.Unlock()
	p.proxy.Cut()
}

// observed counts the observations for which ok holds.
func (p *proc) observed(ok func(operate.Observation) bool) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.seen {
		if ok(o) {
			n++
		}
	}
	return n
}

func acquired(o operate.Observation) bool { _, ok := o.(operate.ObservedAcquire); return ok }

// publish appends an item for each of the streams.
func (f *fleet) publish(n int, streams ...string) {
	f.t.Helper()
	items := make([]item, len(streams))
	for i, s := range streams {
		items[i] = item{s, n}
	}
	if err := lease.Publish(f.t.Context(), f.be, "work", itemType, items); err != nil {
		f.t.Fatal(err)
	}
}

// running is how many streams each process handles now.
func (f *fleet) running() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := map[string]int{}
	for _, name := range f.by {
		n[name]++
	}
	return n
}

// done is how many items were handled.
func (f *fleet) done() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, ns := range f.handled {
		n += len(ns)
	}
	return n
}

// status is that of the consumer reader.
func (f *fleet) status() operate.ConsumerStatus {
	f.t.Helper()
	all, err := f.be.Status(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	for _, s := range all {
		if s.Consumer == "reader" {
			return s
		}
	}
	return operate.ConsumerStatus{}
}

func (f *fleet) eventually(what string, ok func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("not within two minutes: %s; running %v, done %d, %+v", what, f.running(), f.done(), f.status())
		}
	}
}

// exclusive fails the test if a stream was handled by two processes at once that were not cut off.
func (f *fleet) exclusive() {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.twice) > 0 {
		f.t.Errorf("%d streams were handled by two processes at once, such as %s", len(f.twice), f.twice[0])
	}
}

func names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("stream-%04d", i)
	}
	return out
}

// until returns work that lasts until the channel is closed, or the context ends.
func until(release <-chan struct{}) func(context.Context, lease.Message[item]) error {
	return func(ctx context.Context, _ lease.Message[item]) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func instantly(context.Context, lease.Message[item]) error { return nil }
