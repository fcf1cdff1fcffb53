package leaseredis_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// linkHook makes calls of a client fail, before or after the server has carried them out.
type linkHook struct {
	mu   sync.Mutex
	fail func(cmds []redis.Cmder) (before, after error)
}

func (h *linkHook) set(f func(cmds []redis.Cmder) (before, after error)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fail = f
}

func (h *linkHook) ask(cmds []redis.Cmder) (before, after error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fail == nil {
		return nil, nil
	}
	return h.fail(cmds)
}

func (h *linkHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h *linkHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		before, after := h.ask([]redis.Cmder{cmd})
		if before != nil {
			cmd.SetErr(before)
			return before
		}
		err := next(ctx, cmd)
		if after != nil {
			cmd.SetErr(after)
			return after
		}
		return err
	}
}

func (h *linkHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		before, after := h.ask(cmds)
		if before == nil {
			if err := next(ctx, cmds); after == nil {
				return err
			}
		}
		err := errors.Join(before, after)
		for _, c := range cmds {
			c.SetErr(err)
		}
		return err
	}
}

// publishes reports that one of the commands is a script call with events.
func publishes(cmds []redis.Cmder) bool {
	for _, c := range cmds {
		if args := c.Args(); strings.HasPrefix(c.Name(), "eval") && len(args) > 12 {
			return true
		}
	}
	return false
}

// all reads everything that a resource holds, from its beginning.
func all(t testing.TB, be *leaseredis.Backend, c backend.ConsumerInfo, resource string) (out []backend.Raw) {
	t.Helper()
	var at backend.Cursor
	for {
		f := kit.Fetch(t, be, c, resource, at, 700)
		out = append(out, f.Messages...)
		if at = f.Next; len(f.Messages) == 0 && !f.More {
			return out
		}
	}
}

func wantPayloads(t testing.TB, got []backend.Raw, want []backend.Event) {
	t.Helper()
	kit.Equal(t, "messages", len(got), len(want))
	for i := range got {
		if string(got[i].Payload) != string(want[i].Payload) {
			t.Fatalf("message %d is %s, want %s", i, got[i].Payload, want[i].Payload)
		}
	}
}

// A publication of several steps whose replies are lost, and whose link is cut between any two,
// is carried out once and in order.
func TestLostRepliesOfPublishDoNotPublishTwice(t *testing.T) {
	for _, tags := range []int{1, 4} {
		t.Run(fmt.Sprint(tags), func(t *testing.T) {
			client := redistest.Shared(t).Client(t)
			be := on(client, redistest.Namespace(t), leaseredis.WithTags(tags), leaseredis.WithLogger(discard))
			kit.OK(t, be.Register(t.Context(), topical, []string{}))
			kit.OK(t, be.Publish(t.Context(), kit.Events("other", 1))) // the server knows the script from now on
			hook := &linkHook{}
			client.AddHook(hook)
			calls := 0
			hook.set(func(cmds []redis.Cmder) (before, after error) {
				if !publishes(cmds) {
					return nil, nil
				}
				switch calls++; calls % 3 {
				case 1:
					return io.ErrUnexpectedEOF, nil
				case 2:
					return nil, io.EOF
				}
				return nil, nil
			})
			es := kit.Events("x", 3500)
			for i := range es {
				es[i].Topic = fmt.Sprint("x", i/600%3)
				if i%100 == 0 {
					es[i].ID = fmt.Sprint("id", i)
				}
			}
			kit.OK(t, be.Publish(t.Context(), es))
			if calls < 5 {
				t.Fatalf("%d calls", calls)
			}
			for n := range 3 {
				var want []backend.Event
				for i := range es {
					if i/600%3 == n {
						want = append(want, es[i])
					}
				}
				wantPayloads(t, all(t, be, topical, fmt.Sprint("x", n)), want)
			}
		})
	}
}

// A publisher that dies between two steps leaves the first ones, whole and in order.
func TestACrashWhilePublishingLeavesABeginning(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	be := on(client, redistest.Namespace(t), leaseredis.WithLogger(discard))
	kit.OK(t, be.Register(t.Context(), topical, []string{}))
	ctx, crash := context.WithCancel(t.Context())
	hook := &linkHook{}
	client.AddHook(hook)
	calls := 0
	hook.set(func(cmds []redis.Cmder) (before, after error) {
		if publishes(cmds) {
			if calls++; calls == 3 {
				crash()
				return context.Canceled, nil
			}
		}
		return nil, nil
	})
	es := kit.Events("x", 3500)
	if err := be.Publish(ctx, es); err == nil {
		t.Fatal("no error")
	}
	hook.set(nil)
	got := all(t, be, topical, "x")
	if len(got) == 0 || len(got) >= len(es) {
		t.Fatalf("%d messages", len(got))
	}
	wantPayloads(t, got, es[:len(got)])
}

// Names may contain whatever means something to Redis or to patterns.
var oddNames = []string{
	"{}", "{a}", "}{", "a{b}c", "{lg0}:t:x", "with space", "tab\there", "new\nline", "co:lon", "::", "*", "a*b", "%d%s", "%", "-", "(1", "ü/κ", "'\"\\", "~&+-@", "$1",
}

func TestNamesMayBeAnything(t *testing.T) {
	test := func(t *testing.T, c redis.UniversalClient, opts ...leaseredis.Option) {
		be := on(c, redistest.Namespace(t), append(opts, leaseredis.WithLogger(discard))...)
		streams := backend.ConsumerInfo{Name: "streams", Per: backend.PerStream, Topics: []string{"*"}}
		infos := []backend.ConsumerInfo{topical, grouped, streams}
		for _, name := range oddNames { // each as a pattern, which only stars make one
			infos = append(infos, backend.ConsumerInfo{Name: fmt.Sprint("only-", len(infos)), Per: backend.PerGroup, Topics: []string{name}})
		}
		for _, info := range infos {
			kit.OK(t, be.Register(t.Context(), info, []string{}))
		}
		var es []backend.Event
		for i, name := range oddNames {
			es = append(es, backend.Event{Topic: name, Key: oddNames[len(oddNames)-1-i], Kind: name, Payload: []byte(name), Headers: map[string]string{name: name}, ID: name})
		}
		kit.OK(t, be.Publish(t.Context(), es))
		kit.OK(t, be.Publish(t.Context(), es)) // their ids keep them out
		for i, name := range oddNames {
			got := all(t, be, topical, name)
			wantPayloads(t, got, es[i:i+1])
			m := got[0]
			if m.Topic != name || m.Key != es[i].Key || m.Kind != name || m.Headers[name] != name {
				t.Errorf("%q came as %+v", name, m)
			}
			wantPayloads(t, all(t, be, streams, es[i].Key), es[i:i+1])
			n := 0
			for _, other := range oddNames {
				if backend.MatchTopic([]string{name}, other) {
					n++
				}
			}
			kit.Equal(t, fmt.Sprintf("messages that match %q", name), len(all(t, be, infos[3+i], backend.Whole)), n)
		}
		wantPayloads(t, all(t, be, grouped, backend.Whole), es)
		kit.OK(t, be.Register(t.Context(), topical, nil))
		kit.Equal(t, "topics found", survey(t, be, topical).Resources, len(oddNames))
	}
	t.Run("one tag", func(t *testing.T) { test(t, redistest.Shared(t).Client(t)) })
	t.Run("four tags", func(t *testing.T) { test(t, redistest.Shared(t).Client(t), leaseredis.WithTags(4)) })
	t.Run("cluster", func(t *testing.T) {
		if testing.Short() {
			t.Skip("it starts six servers")
		}
		test(t, redistest.SharedCluster(t).Client(t))
	})
}

// A foreign value in a topic's key is reported, no event of the call is published, and it holds
// up no other call.
func TestAForeignKeyIsTold(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	namespace := redistest.Namespace(t)
	be := on(client, namespace, leaseredis.WithLogger(discard))
	kit.OK(t, be.Register(t.Context(), topical, []string{}))
	kit.OK(t, client.Set(t.Context(), "{"+namespace+"0}:t:bad", "mine", 0).Err())
	es := append(kit.Events("good", 3), kit.Events("bad", 1)...)
	err := be.Publish(t.Context(), es)
	refused(t, err, "{"+namespace+"0}:t:bad", "string", "rename or delete")
	kit.Equal(t, "published", len(all(t, be, topical, "good")), 0)

	// A delayed event for it waits, others do not.
	kit.OK(t, client.Del(t.Context(), "{"+namespace+"0}:t:bad").Err())
	late := []backend.Event{{Topic: "bad", Payload: []byte("1"), After: 20 * time.Millisecond}, {Topic: "good", Payload: []byte("2"), After: 30 * time.Millisecond}}
	kit.OK(t, be.Publish(t.Context(), late))
	kit.OK(t, client.Set(t.Context(), "{"+namespace+"0}:t:bad", "mine", 0).Err())
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
	defer feed.Close()
	kit.Eventually(t, "the other delayed event", func() bool {
		kit.Must[backend.News](t)(feed.Next(t.Context()))
		return len(all(t, be, topical, "good")) == 1
	})
	kit.OK(t, client.Del(t.Context(), "{"+namespace+"0}:t:bad").Err())
	kit.Eventually(t, "the delayed event, when its key is free", func() bool {
		kit.Must[backend.News](t)(feed.Next(t.Context()))
		return len(all(t, be, topical, "bad")) == 1
	})
}

// The order of one publisher is kept over topics of different tags, by who reads them as one.
func TestAGroupReadsPublishersInTheirOrder(t *testing.T) {
	namespace := redistest.Namespace(t)
	connect := func() *leaseredis.Backend {
		return on(redistest.Shared(t).Client(t), namespace, leaseredis.WithTags(5), leaseredis.WithLogger(discard))
	}
	be := connect()
	kit.OK(t, be.Register(t.Context(), grouped, nil))
	const publishers, each = 4, 300
	var wg sync.WaitGroup
	for p := range publishers {
		from := connect()
		wg.Go(func() {
			for n := 0; n < each; {
				var es []backend.Event
				for range n%3 + 1 {
					es = append(es, backend.Event{Topic: fmt.Sprint("t", (n*7+p)%11), Key: fmt.Sprint(p), Payload: fmt.Append(nil, n)})
					n++
				}
				if err := from.Publish(t.Context(), es); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	published := make(chan struct{})
	go func() { wg.Wait(); close(published) }()
	next := map[string]int{}
	var at backend.Cursor
	last, total := false, 0
	for {
		f := kit.Fetch(t, be, grouped, backend.Whole, at, 50)
		at = f.Next
		for _, m := range f.Messages {
			kit.Equal(t, "next of publisher "+m.Key, string(m.Payload), fmt.Sprint(next[m.Key]))
			next[m.Key]++
			total++
		}
		if len(f.Messages) > 0 || f.More {
			continue
		}
		if last {
			break
		}
		select {
		case <-published:
			last = true // what is there now is all
		default:
		}
	}
	if total < publishers*each {
		t.Fatalf("%d messages", total)
	}
}
