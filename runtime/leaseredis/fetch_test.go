package leaseredis_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// logBook keeps what is logged.
type logBook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// count is how often a text was logged.
func (l *logBook) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

func (l *logBook) option() leaseredis.Option {
	return leaseredis.WithLogger(slog.New(slog.NewTextHandler(l, nil)))
}

// A key of another type stops its own resource only, with one warning.
func TestAKeyOfAnotherTypeStopsNoOtherResource(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	namespace := redistest.Namespace(t)
	var log logBook
	be := on(client, namespace, log.option())
	topics := []string{"a", "b", "c"}
	kit.OK(t, be.Register(t.Context(), topical, topics))
	for _, topic := range topics {
		kit.OK(t, be.Publish(t.Context(), kit.Events(topic, 2)))
	}
	key := "{" + namespace + "0}:t:b"
	kit.OK(t, client.Del(t.Context(), key).Err())
	kit.OK(t, client.Set(t.Context(), key, "mine", 0).Err())
	req := backend.FetchRequest{Consumer: topical, MaxPayload: 1 << 20}
	for _, topic := range topics {
		req.Items = append(req.Items, backend.FetchItem{Resource: topic, Limit: 9})
	}
	for range 5 {
		fs := kit.Must[[]backend.Fetched](t)(be.Fetch(t.Context(), req))
		for i, want := range []int{2, 0, 2} {
			kit.Equal(t, "messages of "+topics[i], len(fs[i].Messages), want)
		}
		kit.Equal(t, "cursor of b", fs[1].Next, nil)
		kit.Equal(t, "more of b", fs[1].More, false)
	}
	kit.Equal(t, "warnings", log.count("holds something else"), 1)
	kit.OK(t, client.Del(t.Context(), key).Err())
	kit.OK(t, be.Publish(t.Context(), kit.Events("b", 3)))
	kit.Equal(t, "messages when the key is free", len(kit.Fetch(t, be, topical, "b", nil, 9).Messages), 3)
}

// Entries that others delete are passed over; the reader neither stops nor spins.
func TestDeletedEntriesArePassedOver(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	namespace := redistest.Namespace(t)
	be := on(client, namespace, leaseredis.WithLogger(discard))
	kit.OK(t, be.Register(t.Context(), topical, []string{"x"}))
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 10)))
	key := "{" + namespace + "0}:t:x"
	entries := kit.Must[[]redis.XMessage](t)(client.XRange(t.Context(), key, "-", "+").Result())
	kit.OK(t, client.XDel(t.Context(), key, entries[3].ID, entries[4].ID).Err())
	first := kit.Fetch(t, be, topical, "x", nil, 3)
	kit.Equal(t, "messages", len(first.Messages), 3)
	kit.Equal(t, "after those deleted", string(kit.Fetch(t, be, topical, "x", first.Next, 1).Messages[0].Payload), `{"n":5}`)
	kit.OK(t, client.XTrimMaxLen(t.Context(), key, 2).Err())
	rest := kit.Fetch(t, be, topical, "x", first.Next, 9)
	kit.Equal(t, "left after XTRIM", len(rest.Messages), 2)
	kit.Equal(t, "the last", string(rest.Messages[1].Payload), `{"n":9}`)
	kit.OK(t, client.Del(t.Context(), key).Err())
	gone := kit.Fetch(t, be, topical, "x", first.Next, 9)
	kit.Equal(t, "left after DEL", len(gone.Messages), 0)
	kit.Equal(t, "more after DEL", gone.More, false)
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1)))
	kit.Equal(t, "published since", len(kit.Fetch(t, be, topical, "x", rest.Next, 9).Messages), 1)
}

// Entries that others write into a topic are read like any other, whatever they hold: the handler's
// failure ends as a dead letter with all their fields, and what stands around them is handled.
func TestPoisonEntriesBecomeDeadLetters(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	namespace := redistest.Namespace(t)
	be := on(client, namespace, leaseredis.WithLogger(discard))
	kit.OK(t, be.Register(t.Context(), topical, []string{"x"}))
	key := "{" + namespace + "0}:t:x"
	add := func(fields ...any) {
		kit.OK(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: key, Values: fields}).Err())
	}
	// First those with ids of their own kind, of which several share a millisecond.
	const poison = 1000
	for i := range poison / 2 {
		add("what", fmt.Sprint(i))
	}
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 500)))
	for i := range poison / 2 {
		last := kit.Must[[]redis.XMessage](t)(client.XRevRangeN(t.Context(), key, "+", "-", 1).Result())[0].ID
		ms, _, _ := strings.Cut(last, "-")
		fields := [][]any{
			{"what", "no known field"}, {"kind", "kind"}, {"kind", "kind", "payload", "{not json"}, {"payload", "{}"},
			{"kind", "kind", "payload", strings.Repeat("x", 600_000)}, {"kind", "\xff\x00", "key", "\xff", "payload", "\x00"},
			{"kind", "kind", "payload", "[]", "headers", "{"}, {"", ""},
		}[i%8]
		if i%8 == 4 && i > 80 {
			fields = []any{"kind", "kind"}
		}
		kit.OK(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: key, ID: ms + "-*", Values: fields}).Err())
	}
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 10)))
	var handled atomic.Int64
	run(t, be, lease.Spec{Name: topical.Name, Per: backend.PerTopic, Topics: []string{"*"}, Batch: 7,
		UnknownWait: -1, Retry: lease.Retry{Max: 1, Order: lease.OrderNone},
		Handlers: []lease.Handler{lease.One("kind", func(_ context.Context, m lease.Message[struct{ N *int }]) error {
			if m.Payload.N == nil {
				return fmt.Errorf("no number")
			}
			handled.Add(1)
			return nil
		})}})
	kit.Eventually(t, "all good ones are handled", func() bool { return handled.Load() == 510 })
	kit.Eventually(t, "all others are dead letters", func() bool {
		st := kit.Must[[]operate.ConsumerStatus](t)(be.Status(t.Context()))
		return len(st) == 1 && st[0].LagTotal == 0 && st[0].DeadLetters == poison
	})
	dead := kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(t.Context(), operate.DeadLetterFilter{Consumer: topical.Name}))
	found := false
	for _, d := range dead {
		if d.Reason == "" {
			t.Fatalf("dead letter %s has no reason", d.ID)
		}
		found = found || d.Kind == "" && strings.Contains(string(kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(t.Context(), operate.DeadLetterFilter{IDs: []string{d.ID}}))[0].Payload), `"what":"7"`)
		if found {
			break
		}
	}
	if !found {
		t.Error("no dead letter has the fields of the entry")
	}
}

// Cuts fall between entries that share a millisecond, and no entry is read twice or left out.
func TestCutsBetweenEntriesOfOneMillisecond(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	namespace := redistest.Namespace(t)
	be := on(client, namespace, leaseredis.WithLogger(discard))
	kit.OK(t, be.Register(t.Context(), topical, []string{"x"}))
	for i := range 7 {
		kit.OK(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: "{" + namespace + "0}:t:x", ID: fmt.Sprintf("5-%d", i), Values: []any{"payload", i}}).Err())
	}
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 2)))
	whole := kit.Fetch(t, be, topical, "x", nil, 99)
	kit.Equal(t, "messages", len(whole.Messages), 9)
	seen := map[string]bool{}
	for _, m := range whole.Messages {
		seen[m.ID] = true
	}
	kit.Equal(t, "different ids", len(seen), 9)
	for n := range 10 {
		rest := kit.Fetch(t, be, topical, "x", whole.Cut(n), 99)
		kit.Equal(t, fmt.Sprint("left after ", n), len(rest.Messages), 9-n)
	}
}

// A connection that fails while something is read is an error, and never an empty answer.
func TestABrokenLinkIsNotTheEndOfTheLog(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	be := on(client, redistest.Namespace(t), leaseredis.WithTags(3), leaseredis.WithLogger(discard))
	for _, info := range []backend.ConsumerInfo{topical, grouped} {
		kit.OK(t, be.Register(t.Context(), info, nil))
	}
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 5)))
	hook := &linkHook{}
	client.AddHook(hook)
	broken := fmt.Errorf("the link is cut")
	hook.set(func(cmds []redis.Cmder) (before, after error) { return nil, broken })
	for _, info := range []backend.ConsumerInfo{topical, grouped} {
		resource := "x"
		if info.Per == backend.PerGroup {
			resource = backend.Whole
		}
		fs, err := be.Fetch(t.Context(), backend.FetchRequest{Consumer: info, MaxPayload: 99, Items: []backend.FetchItem{{Resource: resource, Limit: 9}}})
		if err == nil {
			t.Errorf("%s: %+v and no error", info.Name, fs)
		}
	}
	hook.set(nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	fs, err := be.Fetch(ctx, backend.FetchRequest{Consumer: grouped, MaxPayload: 99, Items: []backend.FetchItem{{Resource: backend.Whole, Limit: 9}}})
	kit.OK(t, err)
	kit.Equal(t, "messages", len(fs[0].Messages), 5)
}

// Large messages are read a few at a time, whatever the limit, and no message is left out.
func TestLargeMessagesAreReadAFewAtATime(t *testing.T) {
	for _, tags := range []int{1, 3} {
		be := on(redistest.Shared(t).Client(t), redistest.Namespace(t), leaseredis.WithTags(tags), leaseredis.WithLogger(discard))
		for _, info := range []backend.ConsumerInfo{topical, grouped} {
			kit.OK(t, be.Register(t.Context(), info, []string{}))
		}
		const n, size = 120, 600_000
		for i := range n {
			payload := append(fmt.Append(nil, i, " "), make([]byte, size)...)
			kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: fmt.Sprint("x", i/60), Payload: payload}}))
		}
		for _, info := range []backend.ConsumerInfo{topical, grouped} {
			resource, want, at := backend.Whole, n, backend.Cursor(nil)
			if info.Per == backend.PerTopic {
				resource, want = "x0", n/2
			}
			got := 0
			for more := true; more; {
				f := kit.Fetch(t, be, info, resource, at, 1000)
				if got > 0 && len(f.Messages) > 60 {
					t.Fatalf("%d messages at once", len(f.Messages))
				}
				for _, m := range f.Messages {
					if !strings.HasPrefix(string(m.Payload), fmt.Sprint(got, " ")) {
						t.Fatalf("%s: message %d begins with %.9q", info.Name, got, m.Payload)
					}
					got++
				}
				at, more = f.Next, f.More
			}
			kit.Equal(t, "messages of "+info.Name, got, want)
		}
	}
}
