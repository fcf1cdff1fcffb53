package leasetest

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// withID returns e with an id.
func withID(e backend.Event, id string) backend.Event {
	e.ID = id
	return e
}

// after returns e delayed.
func after(e backend.Event, d time.Duration) backend.Event {
	e.After = d
	return e
}

// reader owns topic x and reads it from the beginning, while a feed sees to what is delayed.
type reader struct {
	*kit.Actor
	*watched
	g backend.Grant
}

func read(t testing.TB, be backend.Backend) *reader {
	t.Helper()
	h := join(t, be, perTopic(), long).Registers("x")
	return &reader{h, watch(t, be, perTopic()), h.Takes()}
}

func (r *reader) all() []backend.Raw {
	r.T.Helper()
	return r.Reads("x", r.g.Cursor, 1000).Messages
}

// await waits until n messages are there.
func (r *reader) await(n int) []backend.Raw {
	r.T.Helper()
	var got []backend.Raw
	if got = r.all(); len(got) < n {
		r.until(fmt.Sprintf("%d messages", n), func(backend.News) bool {
			got = r.all()
			return len(got) >= n
		})
	}
	kit.Equal(r.T, "messages", len(got), n)
	return got
}

func payloads(ms []backend.Raw) []string {
	return each(ms, func(m backend.Raw) string { return string(m.Payload) })
}

func payloadsOf(es []backend.Event) []string {
	return each(es, func(e backend.Event) string { return string(e.Payload) })
}

var publishChecks = []check{
	{"Publish/Refuses_what_a_backend_cannot_keep_as_text", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		tooLong := strings.Repeat("secret", 171) // 1,026 bytes
		for name, bad := range map[string]backend.Event{
			"no topic":    {},
			"long topic":  {Topic: tooLong},
			"long key":    {Topic: "x", Key: tooLong},
			"long kind":   {Topic: "x", Kind: tooLong},
			"long ID":     {Topic: "x", ID: tooLong},
			"bad topic":   {Topic: "secret\xff"},
			"bad key":     {Topic: "x", Key: "secret\xff"},
			"bad kind":    {Topic: "x", Kind: "secret\xc3"},
			"bad ID":      {Topic: "x", ID: "secret\xed\xa0\x80"},
			"zero topic":  {Topic: "secret\x00"},
			"zero key":    {Topic: "x", Key: "secret\x00"},
			"zero kind":   {Topic: "x", Kind: "\x00secret"},
			"zero ID":     {Topic: "x", ID: "secret\x00"},
			"bad header":  {Topic: "x", Headers: map[string]string{"h": "secret\xff"}},
			"zero header": {Topic: "x", Headers: map[string]string{"secret\x00": "v"}},
		} {
			_, field, _ := strings.Cut(name, " ")
			for what, also := range map[string]int{"alone": 0, "among many": 1500} {
				es := append(events("x", also), bad)
				err := be.Publish(t.Context(), append(es, events("x", also)...))
				switch {
				case err == nil:
					t.Fatalf("%s, %s: it was published", name, what)
				case !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), fmt.Sprintf("event %d of %d", also+1, 2*also+1)):
					t.Fatalf("%s, %s: the error does not say where: %v", name, what, err)
				case strings.Contains(err.Error(), "secret"):
					t.Fatalf("%s, %s: the error tells a value: %v", name, what, err)
				}
			}
		}
		publish(t, be, event("x", "k", 1))
		kit.Equal(t, "published", len(read(t, be).all()), 1)
	})},
	{"Publish/The_longest_texts_pass_through_everything", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		longest := func() string { // 1,024 bytes that cannot be compressed
			var b [768]byte
			rand.Read(b[:])
			return base64.StdEncoding.EncodeToString(b[:])
		}
		e := event(longest(), longest(), 1)
		e.Kind, e.ID = longest(), longest()
		infos := []backend.ConsumerInfo{perPartition(), perTopic(), perStream()}
		if be.Capabilities().Streams == nil {
			infos = infos[:2]
		}
		for i := range infos {
			infos[i].Name = strings.Repeat(strconv.Itoa(i), 63)
			kit.OK(t, be.Register(t.Context(), infos[i], nil))
		}
		publish(t, be, e)
		publish(t, be, e) // deduped
		for _, info := range infos[1:] {
			resource := e.Topic
			if info.Per == backend.PerStream {
				resource = e.Key
			}
			h, g := owner(t, be, info, resource)
			got := h.Reads(resource, g.Cursor, 9)
			kit.Equal(t, "messages", len(got.Messages), 1)
			m := got.Messages[0]
			if m.Topic != e.Topic || m.Key != e.Key || m.Kind != e.Kind {
				t.Fatal("topic, key and kind are not those published")
			}
			h.Commits(backend.Progress{Ref: g.Ref, Seq: 1, Cursor: got.Next, Park: []backend.Park{{ID: m.ID, Lane: e.Key, Attempt: 1, Error: "once"}}})
			kit.Equal(t, "parked", len(h.Due().Messages), 1)
			h.Commits(backend.Progress{Ref: g.Ref, Seq: 2, Dead: []backend.Dead{{ID: m.ID, Attempt: 2, Reason: "twice"}}})
			kit.Equal(t, "dead letters", len(h.Dead()), 1)
		}
	})},
	{"Publish/Keeps_headers", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		e := event("x", "k", 1)
		e.Headers = map[string]string{"tenant": "7", "quote": `a"b\c`}
		publish(t, be, e, event("x", "k", 2))
		got := read(t, be).all()
		kit.Equal(t, "messages", len(got), 2)
		kit.Equal(t, "headers", fmt.Sprint(got[0].Headers), fmt.Sprint(e.Headers))
		kit.Equal(t, "no headers", len(got[1].Headers), 0)
	})},
	{"Publish/Many_at_once_keep_their_order", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		es := events("x", 2500, "a", "b", "")
		es[1700].Headers = map[string]string{"h": "v"}
		publish(t, be, es...)
		r := read(t, be)
		got := r.Reads("x", r.g.Cursor, 3000).Messages
		equalSlices(t, "payloads", payloads(got), payloadsOf(es))
		kit.Equal(t, "header", got[1700].Headers["h"], "v")
		kit.Equal(t, "key", got[1].Key, "b")
	})},
	{"Publish/An_ID_keeps_out_a_second_event", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		es := events("x", 9)
		// Within a call: the first counts, and the others keep their order.
		publish(t, be, es[0], withID(es[1], "i"), es[2], withID(es[3], "i"), withID(es[4], "j"))
		publish(t, be, withID(es[5], "j"), es[6])
		publish(t, f.Again(t, be), withID(es[7], "i"))
		publish(t, be, withID(event("y", "k", 10), "i")) // ids are those of a topic
		publish(t, be, withID(es[8], "k"))
		want := payloadsOf([]backend.Event{es[0], es[1], es[2], es[4], es[6], es[8]})
		r := read(t, be)
		equalSlices(t, "published", payloads(r.all()), want)
		kit.Equal(t, "on the other topic", len(r.Reads("y", nil, 9).Messages), 1)
		kit.OK(t, func() error { _, err := be.Maintain(t.Context(), []backend.ConsumerInfo{perTopic()}); return err }())
		publish(t, be, withID(es[7], "i")) // housekeeping does not forget it yet
		kit.Equal(t, "published after housekeeping", len(r.all()), len(want))
	})},
	{"Publish/Of_events_with_one_ID_published_at_once_one_stays", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		const ids = 25
		wait := publishers(t, f, be, 6, ids, func(p, i int) []backend.Event {
			es := []backend.Event{withID(event("x", "k", i), fmt.Sprint("i", i)), withID(event("x", "k", i+1), fmt.Sprint("i", i+1))}
			if p%2 == 1 {
				slices.Reverse(es) // claims in another order must not deadlock
			}
			return es
		})
		wait()
		got := payloads(read(t, be).all())
		slices.Sort(got)
		kit.Equal(t, "published", len(got), ids+1)
		kit.Equal(t, "different", len(slices.Compact(got)), ids+1)
	})},
	{"Publish/An_ID_of_a_publication_rolled_back_is_free", func(t testing.TB, f Factory) {
		needs(t, f.PublishLate != nil, "publications of the backend cannot be rolled back")
		be := f.New(t)
		_, rollback := f.PublishLate(t, be, withID(event("x", "k", 1), "i"))
		done := make(chan error, 1)
		go func() { done <- be.Publish(t.Context(), []backend.Event{withID(event("x", "k", 2), "i")}) }()
		rollback() // the second waits for this, or comes after it
		kit.OK(t, <-done)
		commit, _ := f.PublishLate(t, be, withID(event("x", "k", 3), "j"))
		go func() { done <- be.Publish(t.Context(), []backend.Event{withID(event("x", "k", 4), "j")}) }()
		commit()
		kit.OK(t, <-done)
		equalSlices(t, "published", payloads(read(t, be).all()), payloadsOf([]backend.Event{event("x", "k", 2), event("x", "k", 3)}))
	}},
	{"Publish/Delayed_events_join_the_log_in_time_and_not_before", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		r := read(t, be)
		const d = 400 * time.Millisecond
		publish(t, be, event("x", "k", 0)) // its time is the server's
		sent := time.Now()
		// atOnce checks how many are there, unless it took so long that the next may be, too.
		atOnce := func(what string, n int, next time.Duration) {
			if got := len(r.all()); time.Since(sent) < next || got < n {
				kit.Equal(t, what, got, n)
			}
		}
		publish(t, be, after(event("x", "k", 1), d), event("x", "k", 2))
		atOnce("at once", 2, d)
		got := r.await(3)
		equalSlices(t, "in time", payloads(got), payloadsOf([]backend.Event{event("x", "k", 0), event("x", "k", 2), event("x", "k", 1)}))
		if waited := got[2].PublishedAt.Sub(got[0].PublishedAt); waited < d || waited > d+2*time.Second+slack(t, be) {
			t.Fatalf("delayed by %v, want %v", waited, d)
		}
		at := event("x", "k", 3)
		later := 2*d + 5*slack(t, be) // both are published before that
		at.At = got[2].PublishedAt.Add(later)
		past := event("x", "k", 4)
		past.At = got[0].PublishedAt
		publish(t, be, at, past)
		atOnce("in the past is at once", 4, d+later)
		got = r.await(5)
		equalSlices(t, "at their times", payloads(got[3:]), payloadsOf([]backend.Event{past, at}))
		if got[4].PublishedAt.Before(at.At) {
			t.Fatalf("%s joined at %v, want at %v", got[4].Payload, got[4].PublishedAt, at.At)
		}
	})},
	{"Publish/Delayed_events_come_once_in_the_order_of_their_times", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		r := read(t, be)
		const gap = 50 * time.Millisecond
		var due time.Time
		at := func(n int, d time.Duration) backend.Event {
			e := event("x", "k", n)
			e.At = due.Add(d)
			return e
		}
		for range 3 { // replicas that see to it at the same time
			other := watch(t, f.Again(t, be), perTopic())
			repeat(t, func() { other.feed.Next(t.Context()) })
		}
		publish(t, be, event("x", "k", 0))                               // its time is the server's
		due = r.all()[0].PublishedAt.Add(2*time.Second + 5*slack(t, be)) // all are published before that
		want := []string{string(event("x", "k", 0).Payload)}
		for n := 1; n <= 300; {
			var es []backend.Event
			for ; len(es) < 60; n += 3 {
				es = append(es, at(n+1, gap), at(n+2, gap), at(n, 0))
			}
			publish(t, be, es...)
		}
		for _, first := range []int{1, 2} {
			for n := first; n <= 300; n += 3 {
				want = append(want, string(event("x", "k", n).Payload))
				if first == 2 {
					want = append(want, string(event("x", "k", n+1).Payload))
				}
			}
		}
		got := r.await(301)
		equalSlices(t, "payloads", payloads(got), want)
		for i, m := range got[1:] {
			if m.PublishedAt.Before(due) || i >= 100 && m.PublishedAt.Before(due.Add(gap)) {
				t.Fatalf("%s joined at %v, before its time", m.Payload, m.PublishedAt)
			}
		}
		time.Sleep(50 * time.Millisecond) // what came twice would be there by now
		kit.Equal(t, "in all", len(r.all()), 301)
	})},
	{"Publish/Delayed_events_wait_for_someone_to_look", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, withID(after(event("x", "k", 1), 50*time.Millisecond), "i"), withID(after(event("x", "k", 2), 0), "i"))
		time.Sleep(100 * time.Millisecond) // no process watches
		got := read(t, f.Again(t, be)).await(1)
		kit.Equal(t, "payload", string(got[0].Payload), string(event("x", "k", 1).Payload))
	})},
	{"Publish/A_transaction_publishes_with_all_options", func(t testing.TB, f Factory) {
		needs(t, f.PublishLate != nil, "publications of the backend cannot be rolled back")
		be := f.New(t)
		r := read(t, be)
		es := []backend.Event{withID(event("x", "k", 1), "i"), after(event("x", "k", 2), 10*time.Millisecond), event("x", "k", 3)}
		_, rollback := f.PublishLate(t, be, es...)
		rollback()
		commit, _ := f.PublishLate(t, be, es...)
		time.Sleep(20 * time.Millisecond) // what is due before the commit joins after it
		commit()
		got := payloads(r.await(3))
		equalSlices(t, "published", got, payloadsOf([]backend.Event{es[0], es[2], es[1]}))
	}},
}
