package leasetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// buried makes n dead letters of keys a and b in turn.
func buried(t testing.TB, be backend.Backend, n int) (*holder, backend.Grant, []string) {
	t.Helper()
	publish(t, be, events("x", n, "a", "b")...)
	a := join(t, be, perTopic(), long).register("x")
	g := a.acquireOne()
	got := a.fetch("x", g.Cursor, n)
	p := backend.Progress{Ref: g.Ref, Cursor: got.Next}
	for i, m := range got.Messages {
		p.Dead = append(p.Dead, backend.Dead{ID: m.ID, Attempt: i + 1, Reason: fmt.Sprintf("reason %d", i+1)})
	}
	a.commit(p)
	return a, g, ids(got.Messages)
}

var deadChecks = []check{
	{"Dead/Keeps_what_is_needed_to_understand_it", func(t testing.TB, f Factory) {
		be := f.New(t)
		e := event("x", "k", 1)
		e.Headers = map[string]string{"trace": "7"}
		publish(t, be, e)
		a := join(t, be, perTopic(), long).register("x")
		g := a.acquireOne()
		got := a.fetch("x", g.Cursor, 1)
		m := got.Messages[0]
		a.commit(backend.Progress{Ref: g.Ref, Cursor: got.Next, Park: []backend.Park{{ID: m.ID, Lane: "k", Attempt: 1, Error: "first"}}})
		time.Sleep(10 * time.Millisecond) // FirstFailed and DeadAt differ
		a.commit(backend.Progress{Ref: g.Ref, Dead: []backend.Dead{{ID: m.ID, Attempt: 3, Reason: "carrier: 503"}}})
		d := a.deadLetters()
		equal(t, "dead letters", len(d), 1)
		equal(t, "consumer", d[0].Consumer, "c")
		equal(t, "resource", d[0].Resource, "x")
		equal(t, "message", d[0].MessageID, m.ID)
		equal(t, "topic key kind", d[0].Topic+d[0].Key+d[0].Kind, "xkorder")
		equal(t, "attempts", d[0].Attempts, 3)
		equal(t, "reason", d[0].Reason, "carrier: 503")
		equal(t, "headers", fmt.Sprint(d[0].Headers), fmt.Sprint(e.Headers))
		equal(t, "size", d[0].Size, len(e.Payload))
		equal(t, "published", d[0].PublishedAt.Equal(m.PublishedAt), true)
		if !d[0].FirstFailed.Before(d[0].DeadAt) || d[0].FirstFailed.Before(m.PublishedAt) {
			t.Fatalf("published %v, first failed %v, dead %v", m.PublishedAt, d[0].FirstFailed, d[0].DeadAt)
		}
		one := must[[]operate.DeadLetterInfo](t)(a.operator().DeadLetters(t.Context(), operate.DeadLetterFilter{IDs: []string{d[0].ID}}))
		equal(t, "payload", string(one[0].Payload), string(e.Payload))
	}},
	{"Dead/Is_selected_by_every_field_of_the_filter", func(t testing.TB, f Factory) {
		be := f.New(t)
		a, _, id := buried(t, be, 4)
		all := a.deadLetters()
		equal(t, "all", len(all), 4)
		for i, d := range all {
			equal(t, "the oldest first", d.MessageID, id[i])
			if d.Payload != nil {
				t.Fatal("a list carries payloads")
			}
		}
		for _, c := range []struct {
			f    operate.DeadLetterFilter
			want int
		}{
			{operate.DeadLetterFilter{}, 4},
			{operate.DeadLetterFilter{Consumer: "c"}, 4},
			{operate.DeadLetterFilter{Consumer: "other"}, 0},
			{operate.DeadLetterFilter{IDs: []string{all[1].ID, all[3].ID}}, 2},
			{operate.DeadLetterFilter{Topic: "x"}, 4},
			{operate.DeadLetterFilter{Topic: "y*"}, 0},
			{operate.DeadLetterFilter{Key: "a"}, 2},
			{operate.DeadLetterFilter{Reason: "*3"}, 1},
			{operate.DeadLetterFilter{Reason: "reason_3"}, 0},
			{operate.DeadLetterFilter{Reason: "reason %"}, 0},
			{operate.DeadLetterFilter{Reason: "reason *", Key: "b"}, 2},
			{operate.DeadLetterFilter{Limit: 3}, 3},
		} {
			got := must[[]operate.DeadLetterInfo](t)(a.operator().DeadLetters(t.Context(), c.f))
			equal(t, fmt.Sprintf("selected by %+v", c.f), len(got), c.want)
		}
	}},
	{"Dead/Replay_puts_back_in_order_and_forgets_attempts", func(t testing.TB, f Factory) {
		be := f.New(t)
		a, _, id := buried(t, be, 6)
		feed := must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{a.info}))
		defer feed.Close()
		n := must[int](t)(a.operator().Replay(t.Context(), operate.DeadLetterFilter{Consumer: "c", Key: "a"}))
		equal(t, "replayed", n, 3)
		eventually(t, "the feed tells", func() bool { return must[backend.News](t)(feed.Next(t.Context())).Parked })
		p := a.parked()
		equalSlices(t, "parked", parkedIDs(p.Messages), []string{id[0], id[2], id[4]})
		for _, m := range p.Messages {
			equal(t, "attempt", m.Attempt, 0)
			equal(t, "key", m.Key, "a")
		}
		equal(t, "dead letters left", len(a.deadLetters()), 3)
		equal(t, "replayed again", must[int](t)(a.operator().Replay(t.Context(), operate.DeadLetterFilter{Consumer: "c", Key: "a"})), 0)
	}},
	{"Dead/Can_die_again_after_a_replay", func(t testing.TB, f Factory) {
		be := f.New(t)
		a, g, id := buried(t, be, 1)
		for range 2 {
			equal(t, "replayed", must[int](t)(a.operator().Replay(t.Context(), operate.DeadLetterFilter{})), 1)
			a.commit(backend.Progress{Ref: g.Ref, Dead: []backend.Dead{{ID: id[0], Attempt: 1, Reason: "again"}}})
			d := a.deadLetters()
			equal(t, "dead letters", len(d), 1)
			equal(t, "reason", d[0].Reason, "again")
		}
	}},
	{"Dead/Replay_of_an_unowned_resource_waits_for_its_owner", func(t testing.TB, f Factory) {
		be := f.New(t)
		a, g, id := buried(t, be, 1)
		a.release(g.Ref)
		must[int](t)(a.operator().Replay(t.Context(), operate.DeadLetterFilter{}))
		g = a.acquireOne()
		equal(t, "lanes", len(g.Lanes), 1)
		equalSlices(t, "parked", parkedIDs(a.parked().Messages), id)
	}},
	{"Dead/Purge_deletes", func(t testing.TB, f Factory) {
		be := f.New(t)
		a, _, _ := buried(t, be, 4)
		equal(t, "purged", must[int](t)(a.operator().Purge(t.Context(), operate.DeadLetterFilter{Key: "b"})), 2)
		equal(t, "left", len(a.deadLetters()), 2)
		equal(t, "replayed", must[int](t)(a.operator().Replay(t.Context(), operate.DeadLetterFilter{Key: "b"})), 0)
	}},
	{"Dead/Maintain_keeps_to_the_bounds_and_counts_what_it_drops", func(t testing.TB, f Factory) {
		be := f.New(t)
		a, _, id := buried(t, be, 6)
		maintain := func(keep time.Duration, limit int) operate.MaintainReport {
			info := a.info
			info.Keep, info.Max = keep, limit
			return must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{info}))
		}
		maintain(0, 0)
		maintain(long, 6)
		equal(t, "kept without need to drop", len(a.deadLetters()), 6)
		equal(t, "dropped", maintain(0, 4).DeadLettersDropped, 2)
		d := a.deadLetters()
		equal(t, "kept", len(d), 4)
		equal(t, "the oldest went first", d[0].MessageID, id[2])
		time.Sleep(20 * time.Millisecond)
		equal(t, "expired", maintain(10*time.Millisecond, 0).DeadLettersExpired, 4)
		equal(t, "left", len(a.deadLetters()), 0)
	}},
}
