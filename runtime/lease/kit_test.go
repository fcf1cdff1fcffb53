package lease_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type note struct{ N int }

var quiet = lease.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))

// bubble runs f in simulated time.
func bubble(t *testing.T, f func(t *testing.T)) { kit.Bubble(t, f) }

// newConsumer is NewConsumer for a consumer "a" of all topics.
func newConsumer(t *testing.T, be lease.Backend, s lease.Spec, opts ...lease.Option) *lease.Consumer {
	t.Helper()
	if s.Name == "" {
		s.Name = "a"
	}
	if s.Per == 0 {
		s.Per = lease.PerTopic
	}
	if s.Per != lease.PerCluster && s.Topics == nil {
		s.Topics = []string{"*"}
	}
	c, err := lease.NewConsumer(be, s, append([]lease.Option{quiet}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// one is the handlers of a consumer that takes notes one by one.
func one(f func(ctx context.Context, m lease.Message[note]) error) []lease.Handler {
	return []lease.Handler{lease.One("note", f)}
}

// oneTx is one in the transaction form.
func oneTx(f func(ctx context.Context, tx *leasemem.Tx, m lease.Message[note]) error) []lease.Handler {
	return []lease.Handler{lease.OneTx("note", f)}
}

// pass lets time pass in a bubble, and then waits for what that sets off.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

type runner interface {
	Run(ctx context.Context) error
}

// start runs a consumer or group until stop is called or the test ends.
func start(t *testing.T, r runner) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

func publish(t *testing.T, be lease.Publisher, topic string, from, to int, key func(*note) string) {
	t.Helper()
	var ns []note
	for i := from; i < to; i++ {
		ns = append(ns, note{i})
	}
	if err := lease.Publish(context.Background(), be, topic, lease.EventType[note]{Kind: "note", Key: key}, ns); err != nil {
		t.Fatal(err)
	}
}

// seen collects what handlers got, by topic.
type seen struct {
	mu sync.Mutex
	by map[string][]int
	n  int
}

func (s *seen) add(topic string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[string][]int{}
	}
	s.by[topic] = append(s.by[topic], n)
	s.n++
}

func (s *seen) count() int { s.mu.Lock(); defer s.mu.Unlock(); return s.n }

// of returns what came of a topic, in order.
func (s *seen) of(topic string) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]int(nil), s.by[topic]...)
}

func (s *seen) ordered(t *testing.T, topic string, want int) {
	t.Helper()
	got := s.of(topic)
	if len(got) != want {
		t.Errorf("%s: handled %d messages, want %d", topic, len(got), want)
	}
	for i, n := range got {
		if n != i {
			t.Fatalf("%s: message %d came as number %d", topic, n, i)
		}
	}
}

// faults makes calls of a leasemem handle fail or wait, by operation.
type faults struct {
	mu   sync.Mutex
	by   map[string]func(ctx context.Context, phase leasemem.Phase) error
	gone bool
}

// crash cuts the process off for good.
func (f *faults) crash() { f.mu.Lock(); defer f.mu.Unlock(); f.gone = true }

// on sets what happens in an operation; nil lets it be.
func (f *faults) on(op string, do func(ctx context.Context, phase leasemem.Phase) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil {
		f.by = map[string]func(context.Context, leasemem.Phase) error{}
	}
	f.by[op] = do
}

func (f *faults) hook(ctx context.Context, op string, phase leasemem.Phase) error {
	f.mu.Lock()
	do, gone := f.by[op], f.gone
	f.mu.Unlock()
	if gone && op != "TxRollback" { // which the server does by itself when the link is gone
		<-ctx.Done()
		return ctx.Err()
	}
	if do == nil {
		return nil
	}
	return do(ctx, phase)
}

// share is a handle on be with these faults.
func (f *faults) share(be *leasemem.Backend) *leasemem.Backend {
	return be.Share(leasemem.WithFaults(f.hook))
}

var errLink = errors.New("connection reset")

// before makes an operation do f first.
func before(f func(ctx context.Context) error) func(context.Context, leasemem.Phase) error {
	return func(ctx context.Context, phase leasemem.Phase) error {
		if phase == leasemem.Before {
			return f(ctx)
		}
		return nil
	}
}

// recorder collects observations.
type recorder struct {
	mu  sync.Mutex
	all []operate.Observation
}

func (r *recorder) Observe(o operate.Observation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, o)
}

// observed returns the observations of one type so far.
func observed[O operate.Observation](r *recorder) []O {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []O
	for _, o := range r.all {
		if x, ok := o.(O); ok {
			out = append(out, x)
		}
	}
	return out
}

// status is consumer a's.
func status(t *testing.T, be *leasemem.Backend) operate.ConsumerStatus {
	t.Helper()
	all, err := be.Status(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Consumer == "a" {
			return s
		}
	}
	return operate.ConsumerStatus{LagTotal: -1}
}

func drained(t *testing.T, be *leasemem.Backend) {
	t.Helper()
	eventually(t, "the log is drained", func() bool {
		s := status(t, be)
		return s.Resources > 0 && s.LagTotal == 0 && s.ParkedKeys == 0
	})
}

func deadLetters(t *testing.T, be *leasemem.Backend) []operate.DeadLetterInfo {
	t.Helper()
	ds, err := be.DeadLetters(context.Background(), operate.DeadLetterFilter{})
	if err != nil {
		t.Fatal(err)
	}
	return ds
}
