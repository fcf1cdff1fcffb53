package leasetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// world is a backend and the simulated processes that work on it. Each process has
// its own handle behind its own link.
type world struct {
	t    testing.TB
	f    Factory
	be   backend.Backend
	name int // of the process started last

	refused string // an operation that processes started from now on cannot do at first

	going context.Context // until the first process is ended with the test
	over  func()

	mu    sync.Mutex
	calls []call
}

// gate holds handlers until it is opened, at the latest when the test ends.
func (w *world) gate() (opened <-chan struct{}, open func()) {
	ctx, open := context.WithCancel(w.going)
	return ctx.Done(), open
}

// call is one handler call, of one message.
type call struct {
	proc           string
	consumer       string
	resource       string
	topic, key     string
	n, attempt     int
	epoch          int64
	id, once       string // of the message, and its idempotency key
	began, ended   time.Time
	err            error
	cancelled      time.Time // when its context was seen to end; zero if not
	cancelledCause error
}

// payload is the event that scenarios publish.
type payload struct {
	N   int    `json:"n"`
	Key string `json:"key"`
}

func newWorld(t testing.TB, f Factory) *world {
	t.Helper()
	going, over := context.WithCancel(context.Background())
	return &world{t: t, f: f, be: f.New(t), going: going, over: over}
}

// inWorld makes a scenario.
func inWorld(run func(t testing.TB, w *world)) func(testing.TB, Factory) {
	return func(t testing.TB, f Factory) { run(t, newWorld(t, f)) }
}

func (w *world) publish(es ...backend.Event) {
	w.t.Helper()
	publish(w.t, w.be, es...)
}

// handler is what a simulated process does with a message.
type handler func(ctx context.Context, p *process, m lease.Message[payload]) error

// process is a simulated process with one consumer.
type process struct {
	w      *world
	name   string
	link   *link
	stopIt func()
	ran    context.Context // until it has ended
	life   context.Context // until it crashed
	die    func()

	mu       sync.Mutex
	observed []operate.Observation
}

func (p *process) Observe(o operate.Observation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observed = append(p.observed, o)
}

// options are those of all its consumers.
func (p *process) options() []lease.Option {
	return []lease.Option{lease.WithLogger(slog.New(slog.DiscardHandler)), lease.WithObserver(p)}
}

// observations returns those of one type so far.
func observations[O operate.Observation](p *process) []O {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []O
	for _, o := range p.observed {
		if x, ok := o.(O); ok {
			out = append(out, x)
		}
	}
	return out
}

// spec is the consumer of most scenarios: per topic, of all topics, with short waits. Its sessions
// outlive a machine that stalls for seconds; see mortal.
func spec() lease.Spec {
	return lease.Spec{
		Name: "c", Per: backend.PerTopic, Topics: []string{"*"}, TTL: 30 * time.Second, Drain: 5 * time.Second,
		Retry: lease.Retry{Max: 3, Min: 5 * time.Millisecond, Cap: 20 * time.Millisecond},
	}
}

// mortal is spec for scenarios in which sessions are to expire.
func mortal() lease.Spec {
	s := spec()
	s.TTL = short
	return s
}

// start starts a process whose consumer handles every message with h, one by one.
func (w *world) start(s lease.Spec, h handler, opts ...lease.Option) *process {
	w.t.Helper()
	return w.startWith(s, func(p *process) []lease.Handler {
		return []lease.Handler{lease.One("order", p.wrap(h))}
	}, opts...)
}

// startWith is start for other handlers.
func (w *world) startWith(s lease.Spec, handlers func(p *process) []lease.Handler, opts ...lease.Option) *process {
	w.t.Helper()
	w.name++
	return w.run(fmt.Sprintf("p%d", w.name), func(p *process, be backend.Backend) func(context.Context) {
		if w.refused != "" {
			p.link.refuse(w.refused, true)
		}
		s.Handlers = handlers(p)
		c := kit.Must[*lease.Consumer](w.t)(lease.NewConsumer(be, s, append(p.options(), opts...)...))
		return func(ctx context.Context) {
			if err := kit.Run(ctx, c); err != nil {
				w.t.Errorf("%s: %v", p.name, err)
			}
		}
	})
}

// run starts a process that does what prepare returns until it is stopped.
func (w *world) run(name string, prepare func(p *process, be backend.Backend) func(context.Context)) *process {
	w.t.Helper()
	l, be := connect(w.f.Again(w.t, w.be))
	ctx, stop := context.WithCancel(context.Background())
	ran, ended := context.WithCancel(context.Background())
	life, die := context.WithCancel(context.Background())
	p := &process{w: w, name: name, link: l, stopIt: stop, ran: ran, life: life, die: die}
	work := prepare(p, be)
	go func() {
		defer ended()
		work(ctx)
	}()
	w.t.Cleanup(p.end)
	return p
}

// end stops the process whatever state it is in.
func (p *process) end() {
	p.w.over()
	p.stop()
}

// stop stops it as SIGTERM does, and waits until it has ended.
func (p *process) stop() {
	p.w.t.Helper()
	p.stopIt()
	select {
	case <-p.ran.Done():
	case <-time.After(kit.Patience(p.w.t)):
		p.w.t.Errorf("%s did not stop within %v", p.name, kit.Patience(p.w.t))
	}
}

// crash makes it unable to do anything from now on: handlers stand still, the link is
// cut. The rest of it in this test ends with the test.
func (p *process) crash() {
	p.link.sever()
	p.die()
}

func (p *process) crashed() bool { return p.life.Err() != nil }

// hang is what a handler of a crashed process does: it waits.
func (p *process) hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// wrap records the calls of h.
func (p *process) wrap(h handler) func(context.Context, lease.Message[payload]) error {
	return func(ctx context.Context, m lease.Message[payload]) (err error) {
		c := call{proc: p.name, topic: m.Topic, key: m.Key, n: m.Payload.N, attempt: m.Attempt, epoch: m.Epoch, id: m.ID, once: m.IdempotencyKey, began: time.Now()}
		if l, ok := lease.FromContext(ctx); ok {
			c.consumer, c.resource = l.Consumer, l.Resource
		}
		stop := context.AfterFunc(ctx, func() {
			p.w.mu.Lock()
			defer p.w.mu.Unlock()
			c.cancelled, c.cancelledCause = time.Now(), context.Cause(ctx)
		})
		defer func() {
			stop()
			p.w.mu.Lock()
			defer p.w.mu.Unlock()
			c.ended, c.err = time.Now(), err
			if c.cancelled.IsZero() && ctx.Err() != nil { // faster than AfterFunc
				c.cancelled, c.cancelledCause = c.ended, context.Cause(ctx)
			}
			p.w.calls = append(p.w.calls, c)
		}()
		if p.crashed() {
			return p.hang(ctx)
		}
		err = errors.New("the handler did not return") // a panic leaves it
		return h(ctx, p, m)
	}
}

// fine handles everything.
func fine(context.Context, *process, lease.Message[payload]) error { return nil }

// on does h with message n, and handles all others.
func on(n int, h handler) handler {
	return func(ctx context.Context, p *process, m lease.Message[payload]) error {
		if m.Payload.N == n {
			return h(ctx, p, m)
		}
		return nil
	}
}

// dies ends its process.
func dies(ctx context.Context, p *process, _ lease.Message[payload]) error {
	p.crash()
	return p.hang(ctx)
}

// stays says that it was entered, and returns when its context ends.
func stays(entered chan<- struct{}) handler {
	return func(ctx context.Context, _ *process, _ lease.Message[payload]) error {
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
}

// history returns the calls so far that pass keep, in the order in which they ended.
func (w *world) history(keep func(call) bool) []call {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []call
	for _, c := range w.calls {
		if keep(c) {
			out = append(out, c)
		}
	}
	return out
}

// calls returns those of one process.
func (p *process) calls() []call { return p.w.history(func(c call) bool { return c.proc == p.name }) }

// successes returns the calls that returned nil.
func (w *world) successes() []call { return w.history(func(c call) bool { return c.err == nil }) }

// of returns all calls of message n.
func (w *world) of(n int) []call { return w.history(func(c call) bool { return c.n == n }) }

func numbers(cs []call) []int { return each(cs, func(c call) int { return c.n }) }

// handled waits until so many messages were handled.
func (w *world) handled(n int) {
	w.t.Helper()
	kit.Eventually(w.t, fmt.Sprintf("%d messages handled", n), func() bool {
		return len(counts(each(w.successes(), func(c call) string { return c.id }))) >= n
	})
}

func (w *world) operator() operate.Operator { return kit.Operator(w.t, w.be) }

func (w *world) status() operate.ConsumerStatus {
	w.t.Helper()
	return kit.Must[operate.ConsumerStatus](w.t)(statusOf(w.t.Context(), w.operator(), "c"))
}

// drained waits until no work is left.
func (w *world) drained() {
	w.t.Helper()
	kit.Eventually(w.t, "the log is drained", func() bool {
		s := w.status()
		return s.LagTotal == 0 && s.ParkedKeys == 0
	})
}

// finished waits until so many messages were handled and no work is left.
func (w *world) finished(n int) {
	w.t.Helper()
	w.handled(n)
	w.drained()
}

// deadLetters returns the dead letters, which must be so many.
func (w *world) deadLetters(n int) []operate.DeadLetterInfo {
	w.t.Helper()
	d := w.dead()
	kit.Equal(w.t, "dead letters", len(d), n)
	return d
}

func (w *world) dead() []operate.DeadLetterInfo {
	w.t.Helper()
	return kit.Must[[]operate.DeadLetterInfo](w.t)(w.operator().DeadLetters(w.t.Context(), operate.DeadLetterFilter{Consumer: "c"}))
}

// owners returns how many resources each live session owns, by session.
func (w *world) owners() map[string]int {
	w.t.Helper()
	out := map[string]int{}
	for _, m := range kit.Must[[]backend.Survey](w.t)(w.be.Survey(w.t.Context(), []string{"c"}))[0].Members {
		out[m.Session] = m.Owned
	}
	return out
}

// owning waits until the live members own so many each, in any order.
func (w *world) owning(want ...int) {
	w.t.Helper()
	slices.Sort(want)
	var got []int
	defer func() {
		if w.t.Failed() {
			w.t.Logf("owned at last: %v", got)
		}
	}()
	kit.Eventually(w.t, fmt.Sprintf("members own %v", want), func() bool {
		got = slices.Sorted(maps.Values(w.owners()))
		return slices.Equal(got, want)
	})
}

// allOwned waits until there are resources and all of them have an owner.
func (w *world) allOwned() {
	w.t.Helper()
	kit.Eventually(w.t, "all resources have an owner", func() bool {
		s := w.status()
		return s.Resources > 0 && s.Unowned == 0
	})
}

// apart checks that no two calls on one resource by different processes overlapped,
// counting a call until its context ended: after that it knows that it lost.
func (w *world) apart() {
	w.t.Helper()
	apart(w.t, w.history(func(call) bool { return true }))
}

// apart is world.apart for the calls of one consumer.
func apart(t testing.TB, all []call) {
	t.Helper()
	slices.SortFunc(all, func(a, b call) int { return a.began.Compare(b.began) })
	until := map[string]call{}
	for _, c := range all {
		if !c.cancelled.IsZero() && c.cancelled.Before(c.ended) {
			c.ended = c.cancelled
		}
		last := until[c.resource]
		if last.proc != c.proc && c.began.Before(last.ended) {
			t.Fatalf("resource %s: %s handled #%d while %s still handled #%d", c.resource, c.proc, c.n, last.proc, last.n)
		}
		if c.ended.After(last.ended) {
			until[c.resource] = c
		}
	}
}

// says checks that the reason of a dead letter names all that is given.
func says(t testing.TB, d operate.DeadLetterInfo, names ...string) {
	t.Helper()
	for _, name := range names {
		if !strings.Contains(d.Reason, name) {
			t.Fatalf("the reason is %q, want it to name %s", d.Reason, name)
		}
	}
}

// atOnce is how many of the calls were under way at one time, at most.
func atOnce(cs []call) (most int) {
	for _, c := range cs {
		n := 0
		for _, other := range cs {
			if !other.began.After(c.began) && other.ended.After(c.began) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// firstAttempts checks that no call of them was a retry.
func firstAttempts(t testing.TB, cs []call) {
	t.Helper()
	for _, c := range cs {
		kit.Equal(t, fmt.Sprintf("attempt of #%d", c.n), c.attempt, 1)
	}
}

// inOrder checks that first successes come in the order of numbers, per group of calls.
func inOrder(t testing.TB, cs []call, group func(call) string) {
	t.Helper()
	last := map[string]int{}
	seen := map[string]bool{}
	for _, c := range cs {
		if seen[c.id] {
			continue
		}
		seen[c.id] = true
		g := group(c)
		if c.n <= last[g] {
			t.Fatalf("%s: #%d was handled after #%d", g, c.n, last[g])
		}
		last[g] = c.n
	}
}

func byTopic(c call) string { return c.topic }
func byKey(c call) string   { return c.topic + "/" + c.key }
