package leaseredis

import (
	"cmp"
	"context"
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
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// actor is a session of a process, with what only this backend has.
type actor struct {
	*Backend
	*kit.Actor
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

// join opens a session for a consumer.
func join(t testing.TB, be *Backend, info backend.ConsumerInfo) *actor {
	t.Helper()
	return &actor{be, kit.Join(t, be, info, time.Hour)}
}

// another is a second process of the same consumer.
func (a *actor) another() *actor {
	be := New(a.client, WithNamespace(a.namespace), WithLogger(slog.New(slog.DiscardHandler)))
	return join(a.T, be, a.Info)
}

// publishes n messages on each topic, with their number as key.
func (a *actor) publishes(n int, topics ...string) {
	a.T.Helper()
	var es []backend.Event
	for _, topic := range topics {
		for i := range n {
			es = append(es, backend.Event{Topic: topic, Key: fmt.Sprint("k", i), Kind: "order", Payload: fmt.Appendf(nil, `{"n":%d}`, i)})
		}
	}
	kit.OK(a.T, a.Publish(a.T.Context(), es))
}

// takes acquires up to n resources, once those named are known.
func (a *actor) takes(n int, resources ...string) []backend.Grant {
	a.T.Helper()
	kit.OK(a.T, a.Register(a.T.Context(), a.Info, append([]string{}, resources...)))
	gs := a.Acquires(n)
	slices.SortFunc(gs, func(a, b backend.Grant) int { return strings.Compare(a.Resource, b.Resource) })
	return gs
}

func (a *actor) takesOne(resource string) backend.Grant {
	a.T.Helper()
	gs := a.takes(1, resource)
	if len(gs) != 1 {
		a.T.Fatalf("acquired %d leases, want 1", len(gs))
	}
	return gs[0]
}

func (a *actor) reads(g backend.Grant, n int) backend.Fetched {
	a.T.Helper()
	return a.Reads(g.Resource, g.Cursor, n)
}

// next numbers a progress.
func (a *actor) next(g backend.Grant, p backend.Progress) backend.Progress {
	a.Seq++
	p.Ref, p.Seq = g.Ref, a.Seq
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
	sh, err := a.shape(a.T.Context())
	kit.OK(a.T, err)
	return a.prefix(sh.leaseTag(a.Info.Name, resource)) + name
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
// a reply was lost in between.
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
	kit.OK(t, err)
	if faults.lost == before {
		t.Fatal("no reply was lost")
	}
}
