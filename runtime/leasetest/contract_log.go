package leasetest

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

var logChecks = []check{
	{"Fetch/Returns_messages_as_published", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		want := []backend.Event{
			{Topic: "x", Key: "k", Kind: "a", Payload: []byte(`{"n":1}`), Headers: map[string]string{"trace": "1", "ü": "'\"\\"}},
			{Topic: "x", Kind: "b", Payload: []byte{0, 0xff, '\n', 0}},
			{Topic: "x", Key: "κ", Kind: "", Payload: []byte{}},
		}
		publish(t, be, want...)
		a := join(t, be, perTopic(), long).Registers("x")
		got := a.Reads("x", a.Takes().Cursor, 9).Messages
		kit.Equal(t, "messages", len(got), len(want))
		seen := map[string]bool{}
		for i, m := range got {
			w := want[i]
			if m.Topic != w.Topic || m.Key != w.Key || m.Kind != w.Kind || !bytes.Equal(m.Payload, w.Payload) || fmt.Sprint(m.Headers) != fmt.Sprint(w.Headers) {
				t.Fatalf("message %d: got %+v, want %+v", i, m, w)
			}
			kit.Equal(t, "size", m.Size, len(w.Payload))
			kit.Equal(t, "attempt", m.Attempt, 0)
			if age := time.Since(m.PublishedAt).Abs(); age > time.Minute {
				t.Fatalf("message %d was published %v ago", i, age)
			}
			if m.ID == "" || seen[m.ID] {
				t.Fatalf("id %q is empty or used twice", m.ID)
			}
			seen[m.ID] = true
		}
	})},
	{"Fetch/Reads_on_from_any_cut", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, _, all := reading(t, be, 7)
		kit.Equal(t, "messages", len(all.Messages), 7)
		for n := range 8 {
			rest := a.Reads("x", all.Cut(n), 9)
			equalSlices(t, fmt.Sprintf("after the first %d", n), ids(rest.Messages), ids(all.Messages[n:]))
		}
		kit.Equal(t, "after Next", len(a.Reads("x", all.Next, 9).Messages), 0)
		publish(t, be, event("x", "", 8))
		kit.Equal(t, "new after Next", len(a.Reads("x", all.Next, 9).Messages), 1)
		kit.Equal(t, "all after a fetch without news", len(a.Reads("x", a.Reads("x", all.Next, 9).Next, 9).Messages), 0)
	})},
	{"Fetch/Says_More_when_the_limit_cut_it_short", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, events("x", 5)...)
		a, g := sole(t, be)
		at := g.Cursor
		for _, want := range []int{2, 2, 1} {
			got := a.Reads("x", at, 2)
			kit.Equal(t, "messages", len(got.Messages), want)
			kit.Equal(t, "more", got.More, want == 2)
			at = got.Next
		}
	})},
	{"Fetch/Reads_many_resources_at_once", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		topics, want := names("t", 50), map[string]int{}
		for i := 0; i < 50; i += 2 {
			want[topics[i]] = i/2 + 1
			publish(t, be, events(topics[i], i/2+1)...)
		}
		a := join(t, be, perTopic(), long).Registers(topics...)
		got := readAll(a, a.Acquires(50))
		kit.Equal(t, "items", len(got), 50)
		for _, g := range got {
			kit.Equal(t, "messages of "+g.Resource, len(g.Messages), want[g.Resource])
			for _, m := range g.Messages {
				kit.Equal(t, "topic", m.Topic, g.Resource)
			}
		}
	})},
	{"Fetch/Group_reads_all_matching_topics_in_one_order", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perGroup("orders.*", "mail"), long).Registers()
		var want []string
		for i := range 40 {
			topic := []string{"orders.eu", "noise", "mail", "orders.us", "mailbox"}[i%5]
			publish(t, be, event(topic, "", i))
			if i%5 != 1 && i%5 != 4 {
				want = append(want, fmt.Sprintf(`%s{"n":%d,"key":""}`, topic, i))
			}
		}
		got := readOut(a, backend.Whole, a.Takes().Cursor, 7)
		equalSlices(t, "messages", each(got, func(m backend.Raw) string { return m.Topic + string(m.Payload) }), want)
	})},
	{"Fetch/Does_not_load_what_is_larger_than_MaxPayload", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		for _, n := range []int{99, 100, 101, 70_000} {
			publish(t, be, backend.Event{Topic: "x", Payload: bytes.Repeat([]byte{'a'}, n)})
		}
		a := join(t, be, perTopic(), long).Registers("x")
		got := kit.Must[[]backend.Fetched](t)(be.Fetch(t.Context(), backend.FetchRequest{
			Consumer: a.Info, MaxPayload: 100, Items: []backend.FetchItem{{Resource: "x", From: a.Takes().Cursor, Limit: 9}},
		}))[0].Messages
		kit.Equal(t, "messages", len(got), 4)
		for i, n := range []int{99, 100, 101, 70_000} {
			kit.Equal(t, "size", got[i].Size, n)
			if n > 100 && got[i].Payload != nil {
				t.Fatalf("a payload of %d bytes was loaded", n)
			}
			if n <= 100 && len(got[i].Payload) != n {
				t.Fatalf("of a payload of %d bytes %d were loaded", n, len(got[i].Payload))
			}
		}
	})},
	{"Publish/Is_all_or_none_and_in_order", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).Registers("x")
		publish(t, be, events("x", 500)...)
		got := a.Reads("x", a.Takes().Cursor, 1000).Messages
		kit.Equal(t, "messages", len(got), 500)
		for i, m := range got {
			kit.Equal(t, "payload", string(m.Payload), fmt.Sprintf(`{"n":%d,"key":"k"}`, i+1))
		}
		kit.OK(t, be.Publish(t.Context(), nil))
	})},
	{"Concurrent_publishers_lose_nothing_and_keep_their_order", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).Registers("x")
		wait := publishers(t, f, be, 16, 40, func(p, i int) []backend.Event {
			return []backend.Event{event("x", fmt.Sprint(p), i)}
		})
		var published atomic.Bool
		go func() { wait(); published.Store(true) }()
		g := a.Takes()
		next, at, total := map[string]int{}, g.Cursor, 0
		for {
			all := published.Load() // an empty read is the last one if all was published before it
			part := a.Reads("x", at, 13)
			for _, m := range part.Messages {
				want := fmt.Sprintf(`{"n":%d,"key":%q}`, next[m.Key], m.Key)
				kit.Equal(t, "next of publisher "+m.Key, string(m.Payload), want)
				next[m.Key]++
				total++
			}
			a.Commits(backend.Progress{Ref: g.Ref, Cursor: part.Next})
			at = part.Next
			if all && len(part.Messages) == 0 {
				break
			}
		}
		kit.Equal(t, "messages", total, 16*40)
	})},
	{"Maintain/Keeps_what_has_not_been_passed_or_is_still_needed", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, events("x", 10)...)
		a := join(t, be, perTopic(), long).Registers("x")
		slow := join(t, be, perGroup("*"), long).Registers()
		ga, gs := a.Takes(), slow.Takes()
		fa := a.Reads("x", ga.Cursor, 10)
		a.Commits(backend.Progress{Ref: ga.Ref, Cursor: fa.Next,
			Park: []backend.Park{{ID: fa.Messages[0].ID, Lane: "k", Attempt: 1, Error: "e"}},
			Dead: []backend.Dead{{ID: fa.Messages[1].ID, Attempt: 1, Reason: "r"}}})
		fs := slow.Reads(backend.Whole, gs.Cursor, 4)
		slow.Commits(backend.Progress{Ref: gs.Ref, Cursor: fs.Next})
		for range 2 {
			kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{a.Info, slow.Info}))
		}
		rest := slow.Reads(backend.Whole, fs.Next, 99)
		equalSlices(t, "left for the slow consumer", ids(rest.Messages), ids(fa.Messages[4:]))
		slow.Commits(backend.Progress{Ref: gs.Ref, Cursor: rest.Next})
		kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{a.Info, slow.Info}))
		equalSlices(t, "parked", parkedIDs(a.Due().Messages), ids(fa.Messages[:1]))
		kit.Equal(t, "its payload", string(a.Due().Messages[0].Payload), string(fa.Messages[0].Payload))
		dead := kit.Must[[]operate.DeadLetterInfo](t)(a.Operator().DeadLetters(t.Context(), operate.DeadLetterFilter{IDs: []string{a.Dead()[0].ID}}))
		kit.Equal(t, "payload of the dead letter", string(dead[0].Payload), string(fa.Messages[1].Payload))
		publish(t, be, event("x", "k", 11))
		kit.Equal(t, "new messages", len(a.Reads("x", fa.Next, 9).Messages), 1)
	})},
	{"Maintain/Forgets_dead_sessions_but_never_revives_them", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), short)
		b := join(t, be, perTopic(), long)
		kit.Eventually(t, "the session expired", func() bool { return len(b.Surveys().Members) == 1 })
		kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{a.Info}))
		kit.Lost(t, "heartbeat of a forgotten session", a.Heartbeat())
		kit.OK(t, b.Heartbeat())
	})},
}

// lateChecks apply where a transaction with a lower id may commit after one with a
// higher id was read.
var lateChecks = []check{
	{"Fetch/Finds_messages_that_were_committed_late", late(func(t testing.TB, f Factory, be backend.Backend, a *kit.Actor, resource string) {
		commit1, _ := f.PublishLate(t, be, event("x", "", 1))
		commit2, _ := f.PublishLate(t, be, event("x", "", 2))
		_, rollback := f.PublishLate(t, be, event("x", "", 3))
		publish(t, be, event("x", "", 4), event("x", "", 5))
		g := a.Takes()
		read := func(at backend.Cursor, want ...string) backend.Cursor {
			t.Helper()
			got := a.Reads(resource, at, 9)
			equalSlices(t, "read", payloads(got.Messages), want)
			return got.Next
		}
		n := func(i int) string { return fmt.Sprintf(`{"n":%d,"key":""}`, i) }
		at := read(g.Cursor, n(4), n(5))
		commit2()
		at = read(at, n(2)) // from a cursor that was not stored
		a.Commits(backend.Progress{Ref: g.Ref, Cursor: at})
		rollback()
		commit1()
		a.Releases(g.Ref)
		g = a.Takes()
		at = read(g.Cursor, n(1)) // from a stored one
		a.Commits(backend.Progress{Ref: g.Ref, Cursor: at})
		read(at)
		publish(t, be, event("x", "", 6))
		read(at, n(6))
	})},
	{"Fetch/Finds_late_messages_after_any_cut", late(func(t testing.TB, f Factory, be backend.Backend, a *kit.Actor, resource string) {
		commit, _ := f.PublishLate(t, be, event("x", "", 0))
		publish(t, be, events("x", 4)...)
		g := a.Takes()
		got := a.Reads(resource, g.Cursor, 9)
		kit.Equal(t, "messages", len(got.Messages), 4)
		a.Commits(backend.Progress{Ref: g.Ref, Cursor: got.Cut(2)})
		a.Releases(g.Ref)
		commit()
		seen := counts(ids(readOut(a, resource, a.Takes().Cursor, 2)))
		allOnce(t, "messages left", seen, 3)
		kit.Equal(t, "deliveries of the last", seen[got.Messages[3].ID], 1)
	})},
}

// late runs a check for both kinds of resources.
func late(run func(t testing.TB, f Factory, be backend.Backend, a *kit.Actor, resource string)) func(testing.TB, Factory) {
	return func(t testing.TB, f Factory) {
		needs(t, f.PublishLate != nil, "events become visible in the order of their ids")
		be := f.New(t)
		run(t, f, be, join(t, be, perTopic(), long).Registers("x"), "x")
		be = f.New(t)
		run(t, f, be, join(t, be, perGroup("*"), long).Registers(), backend.Whole)
	}
}
