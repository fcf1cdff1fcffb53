package leasetest

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

var logChecks = []check{
	{"Fetch/Returns_messages_as_published", func(t testing.TB, f Factory) {
		be := f.New(t)
		want := []backend.Event{
			{Topic: "x", Key: "k", Kind: "a", Payload: []byte(`{"n":1}`), Headers: map[string]string{"trace": "1", "ü": "'\"\\"}},
			{Topic: "x", Kind: "b", Payload: []byte{0, 0xff, '\n', 0}},
			{Topic: "x", Key: "κ", Kind: "", Payload: []byte{}},
		}
		publish(t, be, want...)
		a := join(t, be, perTopic(), long).register("x")
		got := a.fetch("x", a.acquireOne().Cursor, 9).Messages
		equal(t, "messages", len(got), len(want))
		seen := map[string]bool{}
		for i, m := range got {
			w := want[i]
			if m.Topic != w.Topic || m.Key != w.Key || m.Kind != w.Kind || !bytes.Equal(m.Payload, w.Payload) || fmt.Sprint(m.Headers) != fmt.Sprint(w.Headers) {
				t.Fatalf("message %d: got %+v, want %+v", i, m, w)
			}
			equal(t, "size", m.Size, len(w.Payload))
			equal(t, "attempt", m.Attempt, 0)
			if age := time.Since(m.PublishedAt).Abs(); age > time.Minute {
				t.Fatalf("message %d was published %v ago", i, age)
			}
			if m.ID == "" || seen[m.ID] {
				t.Fatalf("id %q is empty or used twice", m.ID)
			}
			seen[m.ID] = true
		}
	}},
	{"Fetch/Reads_on_from_any_cut", func(t testing.TB, f Factory) {
		be := f.New(t)
		publish(t, be, events("x", 7)...)
		a := join(t, be, perTopic(), long).register("x")
		all := a.fetch("x", a.acquireOne().Cursor, 7)
		equal(t, "messages", len(all.Messages), 7)
		for n := range 8 {
			rest := a.fetch("x", all.Cut(n), 9)
			equalSlices(t, fmt.Sprintf("after the first %d", n), ids(rest.Messages), ids(all.Messages[n:]))
		}
		equal(t, "after Next", len(a.fetch("x", all.Next, 9).Messages), 0)
		publish(t, be, event("x", "", 8))
		equal(t, "new after Next", len(a.fetch("x", all.Next, 9).Messages), 1)
		equal(t, "all after a fetch without news", len(a.fetch("x", a.fetch("x", all.Next, 9).Next, 9).Messages), 0)
	}},
	{"Fetch/Says_More_when_the_limit_cut_it_short", func(t testing.TB, f Factory) {
		be := f.New(t)
		publish(t, be, events("x", 5)...)
		a := join(t, be, perTopic(), long).register("x")
		at := a.acquireOne().Cursor
		for _, want := range []int{2, 2, 1} {
			got := a.fetch("x", at, 2)
			equal(t, "messages", len(got.Messages), want)
			if want == 1 {
				equal(t, "more at the end", got.More, false)
			} else {
				equal(t, "more", got.More, true)
			}
			at = got.Next
		}
	}},
	{"Fetch/Reads_many_resources_at_once", func(t testing.TB, f Factory) {
		be := f.New(t)
		var topics []string
		for i := range 50 {
			topics = append(topics, fmt.Sprintf("t%02d", i))
			if i%2 == 0 {
				publish(t, be, events(topics[i], i/2+1)...)
			}
		}
		a := join(t, be, perTopic(), long).register(topics...)
		req := backend.FetchRequest{Consumer: a.info, MaxPayload: roomy}
		for _, g := range a.acquire(50) {
			req.Items = append(req.Items, backend.FetchItem{Resource: g.Resource, From: g.Cursor, Limit: 100})
		}
		got := must[[]backend.Fetched](t)(be.Fetch(t.Context(), req))
		equal(t, "items", len(got), 50)
		for i, g := range got {
			equal(t, "resource, in the order asked", g.Resource, req.Items[i].Resource)
			var i, want int
			fmt.Sscanf(g.Resource, "t%d", &i)
			if i%2 == 0 {
				want = i/2 + 1
			}
			equal(t, "messages of "+g.Resource, len(g.Messages), want)
			for _, m := range g.Messages {
				equal(t, "topic", m.Topic, g.Resource)
			}
		}
	}},
	{"Fetch/Group_reads_all_matching_topics_in_one_order", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perGroup("orders.*", "mail"), long).register()
		var want []string
		for i := range 40 {
			topic := []string{"orders.eu", "noise", "mail", "orders.us", "mailbox"}[i%5]
			publish(t, be, event(topic, "", i))
			if i%5 != 1 && i%5 != 4 {
				want = append(want, fmt.Sprintf(`%s{"n":%d,"key":""}`, topic, i))
			}
		}
		at, got := a.acquireOne().Cursor, []string(nil)
		for {
			part := a.fetch(backend.Whole, at, 7)
			for _, m := range part.Messages {
				got = append(got, m.Topic+string(m.Payload))
			}
			at = part.Next
			if len(part.Messages) == 0 {
				break
			}
		}
		equalSlices(t, "messages", got, want)
	}},
	{"Fetch/Does_not_load_what_is_larger_than_MaxPayload", func(t testing.TB, f Factory) {
		be := f.New(t)
		for _, n := range []int{99, 100, 101, 70_000} {
			publish(t, be, backend.Event{Topic: "x", Payload: bytes.Repeat([]byte{'a'}, n)})
		}
		a := join(t, be, perTopic(), long).register("x")
		got := must[[]backend.Fetched](t)(be.Fetch(t.Context(), backend.FetchRequest{
			Consumer: a.info, MaxPayload: 100, Items: []backend.FetchItem{{Resource: "x", From: a.acquireOne().Cursor, Limit: 9}},
		}))[0].Messages
		equal(t, "messages", len(got), 4)
		for i, n := range []int{99, 100, 101, 70_000} {
			equal(t, "size", got[i].Size, n)
			if n > 100 && got[i].Payload != nil {
				t.Fatalf("a payload of %d bytes was loaded", n)
			}
			if n <= 100 && len(got[i].Payload) != n {
				t.Fatalf("of a payload of %d bytes %d were loaded", n, len(got[i].Payload))
			}
		}
	}},
	{"Publish/Is_all_or_none_and_in_order", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic(), long).register("x")
		publish(t, be, events("x", 500)...)
		got := a.fetch("x", a.acquireOne().Cursor, 1000).Messages
		equal(t, "messages", len(got), 500)
		for i, m := range got {
			equal(t, "payload", string(m.Payload), fmt.Sprintf(`{"n":%d,"key":"k"}`, i+1))
		}
		ok(t, be.Publish(t.Context(), nil))
	}},
	{"Concurrent_publishers_lose_nothing_and_keep_their_order", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic(), long).register("x")
		const publishers, each = 16, 40
		var wg sync.WaitGroup
		for p := range publishers {
			from := f.Again(t, be)
			wg.Go(func() {
				for n := range each {
					if err := from.Publish(t.Context(), []backend.Event{event("x", fmt.Sprint(p), n)}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		g := a.acquireOne()
		next, at, total := map[string]int{}, g.Cursor, 0
		for last := false; ; {
			part := a.fetch("x", at, 13)
			for _, m := range part.Messages {
				want := fmt.Sprintf(`{"n":%d,"key":%q}`, next[m.Key], m.Key)
				equal(t, "next of publisher "+m.Key, string(m.Payload), want)
				next[m.Key]++
				total++
			}
			a.commit(backend.Progress{Ref: g.Ref, Cursor: part.Next})
			at = part.Next
			if len(part.Messages) > 0 {
				continue
			}
			if last {
				break
			}
			select {
			case <-done:
				last = true // read once more, now that all is published
			default:
			}
		}
		equal(t, "messages", total, publishers*each)
	}},
	{"Maintain/Keeps_what_has_not_been_passed_or_is_still_needed", func(t testing.TB, f Factory) {
		be := f.New(t)
		publish(t, be, events("x", 10)...)
		a := join(t, be, perTopic(), long).register("x")
		slow := join(t, be, perGroup("*"), long).register()
		ga, gs := a.acquireOne(), slow.acquireOne()
		fa := a.fetch("x", ga.Cursor, 10)
		a.commit(backend.Progress{Ref: ga.Ref, Cursor: fa.Next,
			Park: []backend.Park{{ID: fa.Messages[0].ID, Lane: "k", Attempt: 1, Error: "e"}},
			Dead: []backend.Dead{{ID: fa.Messages[1].ID, Attempt: 1, Reason: "r"}}})
		fs := slow.fetch(backend.Whole, gs.Cursor, 4)
		slow.commit(backend.Progress{Ref: gs.Ref, Cursor: fs.Next})
		for range 2 {
			must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{a.info, slow.info}))
		}
		rest := slow.fetch(backend.Whole, fs.Next, 99)
		equalSlices(t, "left for the slow consumer", ids(rest.Messages), ids(fa.Messages[4:]))
		slow.commit(backend.Progress{Ref: gs.Ref, Cursor: rest.Next})
		must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{a.info, slow.info}))
		equalSlices(t, "parked", parkedIDs(a.parked().Messages), ids(fa.Messages[:1]))
		equal(t, "its payload", string(a.parked().Messages[0].Payload), string(fa.Messages[0].Payload))
		dead := must[[]operate.DeadLetterInfo](t)(a.operator().DeadLetters(t.Context(), operate.DeadLetterFilter{IDs: []string{a.deadLetters()[0].ID}}))
		equal(t, "payload of the dead letter", string(dead[0].Payload), string(fa.Messages[1].Payload))
		publish(t, be, event("x", "k", 11))
		equal(t, "new messages", len(a.fetch("x", fa.Next, 9).Messages), 1)
	}},
	{"Maintain/Forgets_dead_sessions_but_never_revives_them", func(t testing.TB, f Factory) {
		be := f.New(t)
		a := join(t, be, perTopic(), short)
		b := join(t, be, perTopic(), long)
		eventually(t, "the session expired", func() bool { return len(b.survey().Members) == 1 })
		must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{a.info}))
		wantLost(t, "heartbeat of a forgotten session", a.sess.Heartbeat(t.Context()))
		ok(t, b.sess.Heartbeat(t.Context()))
	}},
}

// lateChecks apply where a transaction with a lower id may commit after one with a
// higher id was read.
var lateChecks = []check{
	{"Fetch/Finds_messages_that_were_committed_late", late(func(t testing.TB, f Factory, be backend.Backend, a *holder, resource string) {
		commit1, _ := f.PublishLate(t, be, event("x", "", 1))
		commit2, _ := f.PublishLate(t, be, event("x", "", 2))
		_, rollback := f.PublishLate(t, be, event("x", "", 3))
		publish(t, be, event("x", "", 4), event("x", "", 5))
		g := a.acquireOne()
		read := func(at backend.Cursor, want ...string) backend.Cursor {
			t.Helper()
			got := a.fetch(resource, at, 9)
			var payloads []string
			for _, m := range got.Messages {
				payloads = append(payloads, string(m.Payload))
			}
			equalSlices(t, "read", payloads, want)
			return got.Next
		}
		n := func(i int) string { return fmt.Sprintf(`{"n":%d,"key":""}`, i) }
		at := read(g.Cursor, n(4), n(5))
		commit2()
		at = read(at, n(2)) // from a cursor that was not stored
		a.commit(backend.Progress{Ref: g.Ref, Cursor: at})
		rollback()
		commit1()
		a.release(g.Ref)
		g = a.acquireOne()
		at = read(g.Cursor, n(1)) // from a stored one
		a.commit(backend.Progress{Ref: g.Ref, Cursor: at})
		read(at)
		publish(t, be, event("x", "", 6))
		read(at, n(6))
	})},
	{"Fetch/Finds_late_messages_after_any_cut", late(func(t testing.TB, f Factory, be backend.Backend, a *holder, resource string) {
		commit, _ := f.PublishLate(t, be, event("x", "", 0))
		publish(t, be, events("x", 4)...)
		g := a.acquireOne()
		got := a.fetch(resource, g.Cursor, 9)
		equal(t, "messages", len(got.Messages), 4)
		a.commit(backend.Progress{Ref: g.Ref, Cursor: got.Cut(2)})
		a.release(g.Ref)
		commit()
		g = a.acquireOne()
		seen := map[string]int{}
		for at := g.Cursor; ; {
			part := a.fetch(resource, at, 2)
			for _, m := range part.Messages {
				seen[m.ID]++
			}
			if at = part.Next; len(part.Messages) == 0 {
				break
			}
		}
		equal(t, "messages left", len(seen), 3)
		for id, n := range seen {
			equal(t, "deliveries of "+id, n, 1)
		}
		equal(t, "deliveries of the last", seen[got.Messages[3].ID], 1)
	})},
}

// late runs a check for both kinds of resources.
func late(run func(t testing.TB, f Factory, be backend.Backend, a *holder, resource string)) func(testing.TB, Factory) {
	return func(t testing.TB, f Factory) {
		if f.PublishLate == nil {
			t.Skip("events become visible in the order of their ids")
		}
		be := f.New(t)
		run(t, f, be, join(t, be, perTopic(), long).register("x"), "x")
		be = f.New(t)
		run(t, f, be, join(t, be, perGroup("*"), long).register(), backend.Whole)
	}
}
