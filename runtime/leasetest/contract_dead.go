package leasetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

// buried makes n dead letters of keys a and b in turn.
func buried(t testing.TB, be backend.Backend, n int) (*kit.Actor, backend.Grant, []string) {
	t.Helper()
	a, g, got := reading(t, be, n, "a", "b")
	p := backend.Progress{Ref: g.Ref, Cursor: got.Next}
	for i, m := range got.Messages {
		p.Dead = append(p.Dead, backend.Dead{ID: m.ID, Attempt: i + 1, Reason: fmt.Sprintf("reason %d", i+1)})
	}
	a.Commits(p)
	return a, g, ids(got.Messages)
}

var deadChecks = []check{
	{"Dead/Keeps_what_is_needed_to_understand_it", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		e := event("x", "k", 1)
		e.Headers = map[string]string{"trace": "7"}
		publish(t, be, e)
		a, g := sole(t, be)
		got := a.Reads("x", g.Cursor, 1)
		m := got.Messages[0]
		a.Commits(backend.Progress{Ref: g.Ref, Cursor: got.Next, Park: []backend.Park{{ID: m.ID, Lane: "k", Attempt: 1, Error: "first"}}})
		time.Sleep(10 * time.Millisecond) // FirstFailed and DeadAt differ
		a.Commits(backend.Progress{Ref: g.Ref, Dead: []backend.Dead{{ID: m.ID, Attempt: 3, Reason: "carrier: 503"}}})
		d := a.Dead()
		kit.Equal(t, "dead letters", len(d), 1)
		kit.Equal(t, "consumer", d[0].Consumer, "c")
		kit.Equal(t, "resource", d[0].Resource, "x")
		kit.Equal(t, "message", d[0].MessageID, m.ID)
		kit.Equal(t, "topic key kind", d[0].Topic+d[0].Key+d[0].Kind, "xkorder")
		kit.Equal(t, "attempts", d[0].Attempts, 3)
		kit.Equal(t, "reason", d[0].Reason, "carrier: 503")
		kit.Equal(t, "headers", fmt.Sprint(d[0].Headers), fmt.Sprint(e.Headers))
		kit.Equal(t, "size", d[0].Size, len(e.Payload))
		kit.Equal(t, "published", d[0].PublishedAt.Equal(m.PublishedAt), true)
		if !d[0].FirstFailed.Before(d[0].DeadAt) || d[0].FirstFailed.Before(m.PublishedAt) {
			t.Fatalf("published %v, first failed %v, dead %v", m.PublishedAt, d[0].FirstFailed, d[0].DeadAt)
		}
		one := kit.Must[[]operate.DeadLetterInfo](t)(a.Operator().DeadLetters(t.Context(), operate.DeadLetterFilter{IDs: []string{d[0].ID}}))
		kit.Equal(t, "payload", string(one[0].Payload), string(e.Payload))
	})},
	{"Dead/Is_selected_by_every_field_of_the_filter", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, _, id := buried(t, be, 4)
		all := a.Dead()
		kit.Equal(t, "all", len(all), 4)
		for i, d := range all {
			kit.Equal(t, "the oldest first", d.MessageID, id[i])
			if d.Payload != nil {
				t.Fatal("a list carries payloads")
			}
		}
		time.Sleep(time.Millisecond) // they have an age
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
			{operate.DeadLetterFilter{Kind: "order"}, 4},
			{operate.DeadLetterFilter{Kind: "orde"}, 0},
			{operate.DeadLetterFilter{Text: "EASON 3"}, 1},
			{operate.DeadLetterFilter{Text: "A", Key: "a"}, 2}, // within the reasons
			{operate.DeadLetterFilter{Text: "reason *"}, 0},
			{operate.DeadLetterFilter{Text: "_"}, 0},
			{operate.DeadLetterFilter{Text: "%"}, 0},
			{operate.DeadLetterFilter{Text: "\x00"}, 0},
			{operate.DeadLetterFilter{Text: "\xff"}, 0},
			{operate.DeadLetterFilter{MaxAge: long}, 4},
			{operate.DeadLetterFilter{MinAge: long}, 0},
			{operate.DeadLetterFilter{MinAge: time.Microsecond, MaxAge: long, Limit: 3}, 3},
			{operate.DeadLetterFilter{After: all[0].ID}, 3},
			{operate.DeadLetterFilter{After: all[3].ID}, 0},
			{operate.DeadLetterFilter{Through: all[0].ID}, 1},
			{operate.DeadLetterFilter{Through: all[3].ID, MaxAge: long}, 4},
			{operate.DeadLetterFilter{After: all[0].ID, Through: all[2].ID}, 2},
			{operate.DeadLetterFilter{After: all[2].ID, Through: all[0].ID}, 0},
			{operate.DeadLetterFilter{After: all[0].ID, Key: "b", Limit: 1}, 1},
			{operate.DeadLetterFilter{IDs: []string{all[0].ID, all[2].ID}, After: all[0].ID}, 1},
			{operate.DeadLetterFilter{IDs: []string{all[0].ID, all[2].ID}, Text: "reason 3"}, 1},
		} {
			got := kit.Must[[]operate.DeadLetterInfo](t)(a.Operator().DeadLetters(t.Context(), c.f))
			kit.Equal(t, fmt.Sprintf("selected by %+v", c.f), len(got), c.want)
			groups := kit.Must[operate.DeadLetterGroups](t)(a.Operator().DeadLetterGroups(t.Context(), c.f))
			kit.Equal(t, fmt.Sprintf("counted of %+v", c.f), groups.Total, c.want)
		}
		for _, f := range []operate.DeadLetterFilter{{After: "none"}, {Through: "none"}} {
			if _, err := a.Operator().DeadLetters(t.Context(), f); err == nil {
				t.Errorf("%+v is no error", f)
			}
		}
	})},
	{"Dead/Pages_have_each_once_whatever_goes_and_comes", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g, id := buried(t, be, 7)
		op, filter := a.Operator(), operate.DeadLetterFilter{Consumer: "c", Limit: 2}
		var got []string
		for pages := 1; ; pages++ {
			page := kit.Must[[]operate.DeadLetterInfo](t)(op.DeadLetters(t.Context(), filter))
			if len(page) == 0 {
				break
			}
			for _, d := range page {
				got = append(got, d.MessageID)
			}
			filter.After = page[len(page)-1].ID
			kit.Equal(t, "purged", kit.Must[int](t)(op.Purge(t.Context(), operate.DeadLetterFilter{IDs: []string{filter.After}})), 1)
			if pages == 2 { // another dies
				publish(t, be, event("x", "late", 8))
				late := a.Reads("x", nil, 100).Messages
				a.Commits(backend.Progress{Ref: g.Ref, Dead: []backend.Dead{{ID: late[len(late)-1].ID, Attempt: 1, Reason: "late"}}})
				id = append(id, late[len(late)-1].ID)
			}
		}
		equalSlices(t, "messages of all pages", got, id)
	})},
	{"Dead/Through_moves_what_was_listed_and_no_more", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g, id := buried(t, be, 6)
		op, all := a.Operator(), a.Dead()
		filter := operate.DeadLetterFilter{Consumer: "c", Reason: "reason *", Through: all[3].ID}
		publish(t, be, event("x", "late", 7))
		late := a.Reads("x", nil, 100).Messages
		a.Commits(backend.Progress{Ref: g.Ref, Dead: []backend.Dead{{ID: late[len(late)-1].ID, Attempt: 1, Reason: "reason 1"}}})
		kit.Equal(t, "purged beforehand", kit.Must[int](t)(op.Purge(t.Context(), operate.DeadLetterFilter{IDs: []string{all[3].ID}})), 1)
		kit.Equal(t, "replayed", kit.Must[int](t)(op.Replay(t.Context(), filter)), 3)
		equalSlices(t, "parked", parkedIDs(a.Due().Messages), []string{id[0], id[2], id[1]}) // lane by lane
		kit.Equal(t, "purged", kit.Must[int](t)(op.Purge(t.Context(), operate.DeadLetterFilter{Consumer: "c", After: all[3].ID, Through: all[5].ID, Limit: 1})), 1)
		left := each(a.Dead(), func(d operate.DeadLetterInfo) string { return d.MessageID })
		equalSlices(t, "left", left, []string{id[5], late[len(late)-1].ID})
	})},
	{"Dead/Groups_have_one_pattern_for_reasons_that_differ_in_numbers", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g, got := reading(t, be, 9, `"`, "é*", "b'")
		reasons := []string{"carrier: 503", "carrier: 5 ünd", "carrier: 404", "a*b", "a*b", `don't "%_\" 12`, `don't "%_\" 7`, "carrier: 1", "id 3f2b8c1e-0000-4aaa-9bbb-0123456789ab"}
		p := backend.Progress{Ref: g.Ref, Cursor: got.Next}
		for i, m := range got.Messages {
			p.Dead = append(p.Dead, backend.Dead{ID: m.ID, Attempt: 1, Reason: reasons[i]})
		}
		a.Commits(p)
		op, all := a.Operator(), a.Dead()
		answer := kit.Must[operate.DeadLetterGroups](t)(op.DeadLetterGroups(t.Context(), operate.DeadLetterFilter{}))
		kit.Equal(t, "counted", fmt.Sprint(answer.Total, answer.More), "9 false")
		kit.Equal(t, "the last", answer.Last, all[len(all)-1].ID)
		want := map[string]int{"carrier: *": 3, "carrier: * ünd": 1, "a*b": 2, `don't "%_\" *`: 2, "id *": 1}
		selects := map[string]int{"carrier: *": 4} // and all others just their own
		kit.Equal(t, "groups", len(answer.Groups), len(want))
		kit.Equal(t, "the largest", answer.Groups[0].Reason, "carrier: *")
		for _, group := range answer.Groups {
			kit.Equal(t, "of "+group.Reason, fmt.Sprint(group.Consumer, " ", group.Kind, " ", group.Count), fmt.Sprint("c order ", want[group.Reason]))
			var last operate.DeadLetterInfo
			for _, d := range all {
				if backend.ReasonPattern(d.Reason) == group.Reason {
					last = d
					if d.DeadAt.Before(group.Oldest) || d.DeadAt.After(group.Newest) {
						t.Errorf("%s died %v, of %v to %v", group.Reason, d.DeadAt, group.Oldest, group.Newest)
					}
				}
			}
			kit.Equal(t, "the newest of "+group.Reason, group.Example, last.ID)
			n := len(kit.Must[[]operate.DeadLetterInfo](t)(op.DeadLetters(t.Context(), operate.DeadLetterFilter{Consumer: group.Consumer, Kind: group.Kind, Reason: group.Reason})))
			kit.Equal(t, "selected by "+group.Reason, n, max(selects[group.Reason], want[group.Reason]))
		}
		keyed := kit.Must[operate.DeadLetterGroups](t)(op.DeadLetterGroups(t.Context(), operate.DeadLetterFilter{Key: "é*", Limit: 2}))
		kit.Equal(t, "of a key, the first two", keyed.Total, 2)
		first := kit.Must[[]operate.DeadLetterInfo](t)(op.DeadLetters(t.Context(), operate.DeadLetterFilter{Key: "é*"}))
		kit.Equal(t, "of a key, the second", keyed.Last, first[1].ID)
		kit.Equal(t, "of none", len(kit.Must[operate.DeadLetterGroups](t)(op.DeadLetterGroups(t.Context(), operate.DeadLetterFilter{Consumer: "nobody"})).Groups), 0)
	})},
	{"Dead/Replay_puts_back_in_order_and_forgets_attempts", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, _, id := buried(t, be, 6)
		feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{a.Info}))
		defer feed.Close()
		n := kit.Must[int](t)(a.Operator().Replay(t.Context(), operate.DeadLetterFilter{Consumer: "c", Key: "a"}))
		kit.Equal(t, "replayed", n, 3)
		kit.Eventually(t, "the feed tells", func() bool { return kit.Must[backend.News](t)(feed.Next(t.Context())).Parked })
		p := a.Due()
		equalSlices(t, "parked", parkedIDs(p.Messages), []string{id[0], id[2], id[4]})
		for _, m := range p.Messages {
			kit.Equal(t, "attempt", m.Attempt, 0)
			kit.Equal(t, "key", m.Key, "a")
		}
		kit.Equal(t, "dead letters left", len(a.Dead()), 3)
		kit.Equal(t, "replayed again", kit.Must[int](t)(a.Operator().Replay(t.Context(), operate.DeadLetterFilter{Consumer: "c", Key: "a"})), 0)
	})},
	{"Dead/Can_die_again_after_a_replay", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g, id := buried(t, be, 1)
		for range 2 {
			kit.Equal(t, "replayed", kit.Must[int](t)(a.Operator().Replay(t.Context(), operate.DeadLetterFilter{})), 1)
			a.Commits(backend.Progress{Ref: g.Ref, Dead: []backend.Dead{{ID: id[0], Attempt: 1, Reason: "again"}}})
			d := a.Dead()
			kit.Equal(t, "dead letters", len(d), 1)
			kit.Equal(t, "reason", d[0].Reason, "again")
		}
	})},
	{"Dead/Replay_of_an_unowned_resource_waits_for_its_owner", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, g, id := buried(t, be, 1)
		a.Releases(g.Ref)
		kit.Must[int](t)(a.Operator().Replay(t.Context(), operate.DeadLetterFilter{}))
		g = a.Takes()
		kit.Equal(t, "lanes", len(g.Lanes), 1)
		equalSlices(t, "parked", parkedIDs(a.Due().Messages), id)
	})},
	{"Dead/Purge_deletes", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, _, _ := buried(t, be, 4)
		kit.Equal(t, "purged", kit.Must[int](t)(a.Operator().Purge(t.Context(), operate.DeadLetterFilter{Key: "b"})), 2)
		kit.Equal(t, "left", len(a.Dead()), 2)
		kit.Equal(t, "replayed", kit.Must[int](t)(a.Operator().Replay(t.Context(), operate.DeadLetterFilter{Key: "b"})), 0)
	})},
	{"Dead/Maintain_keeps_to_the_bounds_and_counts_what_it_drops", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, _, id := buried(t, be, 6)
		maintain := func(keep time.Duration, limit int) operate.MaintainReport {
			info := a.Info
			info.Keep, info.Max = keep, limit
			return kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{info}))
		}
		maintain(0, 0)
		maintain(long, 6)
		kit.Equal(t, "kept without need to drop", len(a.Dead()), 6)
		kit.Equal(t, "dropped", maintain(0, 4).DeadLettersDropped, 2)
		d := a.Dead()
		kit.Equal(t, "kept", len(d), 4)
		kit.Equal(t, "the oldest went first", d[0].MessageID, id[2])
		time.Sleep(20 * time.Millisecond)
		kit.Equal(t, "expired", maintain(10*time.Millisecond, 0).DeadLettersExpired, 4)
		kit.Equal(t, "left", len(a.Dead()), 0)
	})},
}
