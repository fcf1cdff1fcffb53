package leaseredis

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// actor is a session of a process, driven call by call.
type actor struct {
	*Backend
	t    testing.TB
	id   string
	info backend.ConsumerInfo
	seq  int64
}

func perTopic() backend.ConsumerInfo {
	return backend.ConsumerInfo{Name: "c", Per: backend.PerTopic, Topics: []string{"*"}, TTL: time.Hour}
}

// eachSpread runs a test with everything under one tag, with four, and on a cluster.
func eachSpread(t *testing.T, test func(t *testing.T, a *actor)) {
	on := func(name string, connect func(testing.TB) redis.UniversalClient, opts ...Option) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			quiet := WithLogger(slog.New(slog.DiscardHandler))
			be := New(connect(t), append(opts, WithNamespace(redistest.Namespace(t)), quiet)...)
			test(t, join(t, be, perTopic()))
		})
	}
	server := func(t testing.TB) redis.UniversalClient { return redistest.Shared(t).Client(t) }
	on("one_tag", server, WithTags(1))
	on("four_tags", server, WithTags(4))
	if !testing.Short() {
		on("cluster", func(t testing.TB) redis.UniversalClient { return redistest.SharedCluster(t).Client(t) })
	}
}

func randomID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// join opens a session for a consumer.
func join(t testing.TB, be *Backend, info backend.ConsumerInfo) *actor {
	t.Helper()
	a := &actor{Backend: be, t: t, id: randomID(), info: info}
	s, err := be.OpenSession(t.Context(), backend.SessionSpec{ID: a.id, TTL: time.Hour, Consumers: []string{info.Name}, Host: "h", PID: 1})
	check(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s.Close(ctx)
	})
	return a
}

// another is a second process of the same consumer.
func (a *actor) another() *actor {
	be := New(a.client, WithNamespace(a.namespace), WithLogger(slog.New(slog.DiscardHandler)))
	return join(a.t, be, a.info)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func same[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// publishes n messages on each topic, with their number as key.
func (a *actor) publishes(n int, topics ...string) {
	a.t.Helper()
	var es []backend.Event
	for _, topic := range topics {
		for i := range n {
			es = append(es, backend.Event{Topic: topic, Key: fmt.Sprint("k", i), Kind: "order", Payload: fmt.Appendf(nil, `{"n":%d}`, i)})
		}
	}
	check(a.t, a.Publish(a.t.Context(), es))
}

// takes acquires up to n resources, once those named are known.
func (a *actor) takes(n int, resources ...string) []backend.Grant {
	a.t.Helper()
	check(a.t, a.Register(a.t.Context(), a.info, append([]string{}, resources...)))
	gs, err := a.Acquire(a.t.Context(), backend.AcquireRequest{Session: a.id, Consumer: a.info, Max: n, Attempt: randomID()})
	check(a.t, err)
	slices.SortFunc(gs, func(a, b backend.Grant) int { return strings.Compare(a.Resource, b.Resource) })
	return gs
}

func (a *actor) takesOne(resource string) backend.Grant {
	a.t.Helper()
	gs := a.takes(1, resource)
	if len(gs) != 1 {
		a.t.Fatalf("acquired %d leases, want 1", len(gs))
	}
	return gs[0]
}

func (a *actor) reads(g backend.Grant, n int) backend.Fetched {
	a.t.Helper()
	fs, err := a.Fetch(a.t.Context(), backend.FetchRequest{Consumer: a.info, MaxPayload: 1 << 20, Items: []backend.FetchItem{{Resource: g.Resource, From: g.Cursor, Limit: n}}})
	check(a.t, err)
	return fs[0]
}

// next numbers a progress.
func (a *actor) next(g backend.Grant, p backend.Progress) backend.Progress {
	a.seq++
	p.Ref, p.Seq = g.Ref, a.seq
	return p
}

func (a *actor) commits(ps ...backend.Progress) {
	a.t.Helper()
	fenced, err := a.Commit(a.t.Context(), a.id, a.info.Name, ps)
	check(a.t, err)
	if len(fenced) > 0 {
		a.t.Fatalf("fenced: %v", fenced)
	}
}

func (a *actor) dead() []operate.DeadLetterInfo {
	a.t.Helper()
	ds, err := a.DeadLetters(a.t.Context(), operate.DeadLetterFilter{Consumer: a.info.Name})
	check(a.t, err)
	return ds
}

func (a *actor) due() backend.Parked {
	a.t.Helper()
	p, err := a.FetchParked(a.t.Context(), backend.ParkedRequest{Session: a.id, Consumer: a.info, Limit: 1000, MaxPayload: 1 << 20})
	check(a.t, err)
	return p
}

func (a *actor) ids(ms []backend.Raw) []string {
	out := make([]string, len(ms))
	for i, m := range ms {
		out[i] = m.ID
	}
	return out
}

// key is a plain key under the tag of a lease.
func (a *actor) key(resource, name string) string {
	sh, err := a.shape(a.t.Context())
	check(a.t, err)
	return a.prefix(sh.leaseTag(a.info.Name, resource)) + name
}

var errReplyLost = errors.New("read: connection reset by peer")

// faulty makes calls of scripts fail: before they are sent, or when they were carried out.
type faulty struct {
	mu     sync.Mutex
	before map[string]func() error // by the script's digest
	after  map[string]int          // replies to be lost
	lost   int
	err    error // what callers get then; nil: errReplyLost
}

// breaks puts faults between a and its server.
func (a *actor) breaks() *faulty {
	f := &faulty{before: map[string]func() error{}, after: map[string]int{}}
	a.client.AddHook(f)
	return f
}

func (f *faulty) onCall(s *script, do func() error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before[s.sha] = do
}

// loseReply makes the next reply of a script get lost.
func (f *faulty) loseReply(s *script) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after[s.sha]++
}

func (f *faulty) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *faulty) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := f.ask(cmd); err != nil {
			cmd.SetErr(err)
			return err
		}
		err := next(ctx, cmd)
		if lost := f.loses(cmd); lost != nil {
			cmd.SetErr(lost)
			return lost
		}
		return err
	}
}

func (f *faulty) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, c := range cmds {
			if err := f.ask(c); err != nil {
				for _, c := range cmds {
					c.SetErr(err)
				}
				return err
			}
		}
		err := next(ctx, cmds)
		for _, c := range cmds {
			if lost := f.loses(c); lost != nil {
				c.SetErr(lost)
				err = lost
			}
		}
		return err
	}
}

// digest is that of the script that a command runs, empty when it runs none.
func digest(cmd redis.Cmder) string {
	args := cmd.Args()
	switch {
	case len(args) < 2:
	case cmd.Name() == "evalsha":
		return fmt.Sprint(args[1])
	case cmd.Name() == "eval":
		sum := sha1.Sum([]byte(fmt.Sprint(args[1])))
		return hex.EncodeToString(sum[:])
	}
	return ""
}

func (f *faulty) ask(cmd redis.Cmder) error {
	f.mu.Lock()
	do := f.before[digest(cmd)]
	f.mu.Unlock()
	if do == nil {
		return nil
	}
	return do()
}

func (f *faulty) loses(cmd redis.Cmder) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := digest(cmd); f.after[d] > 0 && cmd.Err() == nil {
		f.after[d]--
		f.lost++
		return cmp.Or(f.err, errReplyLost)
	}
	return nil
}

// again calls f until it succeeds, as the runtime does after an unknown outcome, and checks that
// a reply was lost meanwhile.
func again(t testing.TB, faults *faulty, f func() error) {
	t.Helper()
	before := faults.lost
	err := f()
	for range 5 {
		if err == nil {
			break
		}
		if !errors.Is(err, errReplyLost) {
			t.Fatal(err)
		}
		err = f()
	}
	check(t, err)
	if faults.lost == before {
		t.Fatal("no reply was lost")
	}
}
