package redisproof

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// start runs a consumer of this process until the test ends. wrap, if not nil, makes a mutant of its backend.
func start(t *testing.T, addr, namespace string, spec lease.Spec, wrap func(*leaseredis.Backend) lease.Backend, opts ...lease.Option) {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	silent := slog.New(slog.DiscardHandler)
	b := leaseredis.New(client, leaseredis.WithNamespace(namespace), leaseredis.WithLogger(silent))
	var be lease.Backend = b
	if wrap != nil {
		be = wrap(b)
	}
	c, err := lease.NewConsumer(be, spec, append(opts, lease.WithLogger(silent))...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the consumer ended with %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("the consumer did not end within a minute")
		}
		client.Close()
	})
}

func oneByOne(ttl time.Duration, handle func(context.Context, lease.Message[numbered]) error) lease.Spec {
	return lease.Spec{Name: consumerName, Per: lease.PerTopic, Topics: []string{"t.*"}, TTL: ttl, Batch: 1, Drain: time.Second,
		Retry: lease.Retry{Max: 2, Min: 10 * time.Millisecond}, Handlers: []lease.Handler{lease.One("numbered", handle)}}
}

func waitFor[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
		panic("unreachable")
	}
}

// A holder that is cut off from the server, without any connection breaking, hears of
// it before somebody else works.
func TestCutOffHolderStopsFirst(t *testing.T) {
	t.Parallel()
	if overlap := cutOffHolder(t, nil); overlap > 0 {
		t.Errorf("the second handler began %v before the first was cancelled", overlap)
	}
}

// With belief counted from the reply, not from before the request, both work at once.
func TestMutantBeliefFromReply(t *testing.T) {
	t.Parallel()
	var overlap time.Duration
	for n := 0; n < 6 && overlap <= 0; n++ { // on a busy machine the second may begin late
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			overlap = cutOffHolder(t, func(b *leaseredis.Backend) lease.Backend { return &lateBackend{b} })
		})
	}
	if overlap <= 0 {
		t.Errorf("the first handler was cancelled %v before the second began: the mutant does no harm", -overlap)
	}
}

// cutOffHolder returns for how long the handlers of two owners ran at once.
func cutOffHolder(t *testing.T, wrap func(*leaseredis.Backend) lease.Backend) time.Duration {
	t.Helper()
	const long = 3 * ttl
	server := redistest.Shared(t)
	s := onServer(t, server, whole, 1, "")
	proxy := faultproxy.Start(t, server.Addr())
	if err := s.publish(t.Context(), topicName(0), 1); err != nil {
		t.Fatal(err)
	}
	began, ended, second := make(chan struct{}), make(chan time.Time, 1), make(chan time.Time, 1)
	start(t, proxy.Addr(), s.settings.Namespace, oneByOne(long, func(ctx context.Context, m lease.Message[numbered]) error {
		close(began)
		<-ctx.Done()
		ended <- time.Now()
		if !errors.Is(context.Cause(ctx), lease.ErrLost) {
			t.Errorf("cause %v, want lease.ErrLost", context.Cause(ctx))
		}
		return context.Cause(ctx)
	}), wrap)
	waitFor(t, began, "the first replica begins to handle the message")
	time.Sleep(long / 2) // heartbeats come and go
	start(t, server.Addr(), s.settings.Namespace, oneByOne(long, func(context.Context, lease.Message[numbered]) error {
		select {
		case second <- time.Now():
		default:
		}
		return nil
	}), nil)
	bare := pace.Beside(t, s.sink.ping)
	proxy.BlackHole()
	cut := time.Now()
	t.Cleanup(proxy.Heal)
	next := waitFor(t, second, "the second replica takes over")
	bare.Within(t, "takeover after the cut", next.Sub(cut), long+time.Second)
	return waitFor(t, ended, "the first replica's handler is cancelled").Sub(next)
}

// lateBackend has heartbeats whose replies are as slow as they can be, and counts from them.
type lateBackend struct{ *leaseredis.Backend }

func (b *lateBackend) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	s, err := b.Backend.OpenSession(ctx, spec)
	return &lateSession{Session: s}, err
}

type lateSession struct {
	backend.Session
	reply chan error // of the request that was sent last
}

func (s *lateSession) Heartbeat(ctx context.Context) error {
	before, reply := s.reply, make(chan error, 1)
	s.reply = reply
	go func() { reply <- s.Session.Heartbeat(context.WithoutCancel(ctx)) }()
	if before == nil {
		return nil
	}
	select {
	case err := <-before:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A message that cannot be decoded becomes a dead letter; the one after it is handled.
func TestPoisonIsSetAside(t *testing.T) {
	t.Parallel()
	if n := poisoned(t, nil, true); n != 10 {
		t.Errorf("%d of 10 messages behind a poisoned one were handled", n)
	}
}

// A reader that ends at what it cannot decode is found out.
func TestMutantPoisonEndsReader(t *testing.T) {
	t.Parallel()
	if n := poisoned(t, func(b *leaseredis.Backend) lease.Backend { return &squeamish{b} }, false); n == 10 {
		t.Error("all messages behind a poisoned one were handled: the mutant does no harm")
	}
}

// poisoned returns how many of ten messages behind a poisoned one are handled, each in a topic of its own. A message that is handled once
// more, since its lease was lost before it was committed, counts once.
func poisoned(t *testing.T, wrap func(*leaseredis.Backend) lease.Backend, patient bool) int64 {
	t.Helper()
	server := redistest.Shared(t)
	s := onServer(t, server, whole, 1, "")
	var events []lease.Event
	for i := range 10 {
		bad := []string{`{"Seq":"one"}`, "{", "", "\xff", "null"}[i%5]
		events = append(events,
			lease.Event{Topic: topicName(i), Kind: "numbered", Payload: []byte(bad)},
			lease.Event{Topic: topicName(i), Kind: "numbered", Payload: []byte(`{"Seq":1}`)})
	}
	if err := s.be.Publish(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	var handled atomic.Int64
	var seen sync.Map
	start(t, server.Addr(), s.settings.Namespace, oneByOne(ttl, func(_ context.Context, m lease.Message[numbered]) error {
		if _, again := seen.LoadOrStore(m.Topic, true); !again {
			handled.Add(1)
		}
		return nil
	}), wrap)
	if !patient {
		time.Sleep(2 * ttl) // no event is to follow
		return handled.Load()
	}
	eventually(t, "poison is set aside, and all else handled", func() bool {
		letters, err := s.be.DeadLetters(t.Context(), operate.DeadLetterFilter{Consumer: consumerName})
		return err == nil && len(letters) == 10 && handled.Load() == 10
	})
	return handled.Load()
}

// squeamish cannot read what cannot be decoded.
type squeamish struct{ *leaseredis.Backend }

func (b *squeamish) Fetch(ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
	fetched, err := b.Backend.Fetch(ctx, req)
	for _, f := range fetched {
		for _, m := range f.Messages {
			if string(m.Payload) != `{"Seq":1}` {
				return nil, errors.New("cannot decode an entry")
			}
		}
	}
	return fetched, err
}

// A bound on dead letters counts what it drops; without one they are all there.
func TestDeadLettersAreCounted(t *testing.T) {
	t.Parallel()
	for _, bound := range []int{0, 1000} {
		if there, dropped := overflow(t, bound, nil); there+dropped != beyond || bound == 0 && dropped > 0 || bound > 0 && there > bound {
			t.Errorf("with a bound of %d, %d dead letters are there and %d were dropped, of %d", bound, there, dropped, beyond)
		}
	}
}

// A bound that drops dead letters in silence is found out.
func TestMutantDeadLettersTrimmed(t *testing.T) {
	t.Parallel()
	there, dropped := overflow(t, 1000, func(b *leaseredis.Backend) lease.Backend { return &trimming{b} })
	if there+dropped == beyond {
		t.Errorf("%d dead letters are there and %d were dropped, of %d: the mutant does no harm", there, dropped, beyond)
	}
}

const beyond = 10_001 // one more than the default bound

// overflow makes dead letters and returns how many are there in the end, and how many were
// reported as dropped.
func overflow(t *testing.T, bound int, wrap func(*leaseredis.Backend) lease.Backend) (there, dropped int) {
	t.Helper()
	ctx := t.Context()
	s := onServer(t, redistest.Shared(t), whole, 1, "")
	b := leaseredis.New(s.client, s.settings.options()...)
	var be lease.Backend = b
	if wrap != nil {
		be = wrap(b)
	}
	info := backend.ConsumerInfo{Name: consumerName, Per: lease.PerTopic, Topics: []string{"t.*"}, Max: bound}
	const topic, chunk = "t.one", 500
	for n := 0; n < beyond; n += chunk {
		events := make([]lease.Event, min(chunk, beyond-n))
		for i := range events {
			events[i] = lease.Event{Topic: topic, Kind: "numbered", Payload: fmt.Appendf(nil, `{"Seq":%d}`, n+i)}
		}
		if err := be.Publish(ctx, events); err != nil {
			t.Fatal(err)
		}
	}
	if err := be.Register(ctx, info, nil); err != nil {
		t.Fatal(err)
	}
	session := fmt.Sprintf("%032x", 1)
	if _, err := be.OpenSession(ctx, backend.SessionSpec{ID: session, TTL: time.Minute, Consumers: []string{consumerName}}); err != nil {
		t.Fatal(err)
	}
	grants, err := be.Acquire(ctx, backend.AcquireRequest{Session: session, Consumer: info, Max: 1, Attempt: fmt.Sprintf("%032x", 2)})
	if err != nil || len(grants) != 1 {
		t.Fatalf("%d grants, %v", len(grants), err)
	}
	cursor := grants[0].Cursor
	for seq := int64(1); ; seq++ {
		fetched, err := be.Fetch(ctx, backend.FetchRequest{Consumer: info, Items: []backend.FetchItem{{Resource: topic, From: cursor, Limit: chunk}}, MaxPayload: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		p := backend.Progress{Ref: grants[0].Ref, Seq: seq, Cursor: fetched[0].Next}
		for _, m := range fetched[0].Messages {
			p.Dead = append(p.Dead, backend.Dead{ID: m.ID, Attempt: 1, Reason: "poison"})
		}
		if len(p.Dead) == 0 {
			break
		}
		if fenced, err := be.Commit(ctx, session, consumerName, []backend.Progress{p}); err != nil || len(fenced) > 0 {
			t.Fatalf("commit: fenced %v, %v", fenced, err)
		}
		cursor = fetched[0].Next
	}
	for range 100 {
		r, err := be.Maintain(ctx, []backend.ConsumerInfo{info})
		if err != nil {
			t.Fatal(err)
		}
		dropped += r.DeadLettersDropped
		letters, err := b.DeadLetters(ctx, operate.DeadLetterFilter{Consumer: consumerName})
		if err != nil {
			t.Fatal(err)
		}
		if there = len(letters); bound == 0 || there <= bound {
			break
		}
	}
	return there, dropped
}

// trimming keeps the newest dead letters, as XADD with MAXLEN does, and is silent.
type trimming struct{ *leaseredis.Backend }

func (b *trimming) Maintain(ctx context.Context, consumers []backend.ConsumerInfo) (operate.MaintainReport, error) {
	r, err := b.Backend.Maintain(ctx, consumers)
	r.DeadLettersDropped = 0
	return r, err
}
