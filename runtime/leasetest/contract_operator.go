package leasetest

import (
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

var operatorChecks = []check{
	{"Operator/Status_counts", func(t testing.TB, f Factory) {
		be := f.New(t)
		op := operator(t, be)
		publish(t, be, append(append(events("1", 5), events("2", 3)...), event("other", "", 1))...)
		a := join(t, be, perTopic("1", "2", "3"), long).register("1", "2", "3")
		join(t, be, perGroup("*"), long).register()
		var one backend.Grant
		for _, g := range a.acquire(9) {
			if g.Resource == "1" {
				one = g
			}
		}
		got := a.fetch("1", one.Cursor, 9)
		a.commit(backend.Progress{Ref: one.Ref, Cursor: got.Cut(3),
			Park: []backend.Park{{ID: got.Messages[0].ID, Lane: "k", Attempt: 1, Error: "e"}, {ID: got.Messages[2].ID, Lane: "k"}},
			Dead: []backend.Dead{{ID: got.Messages[1].ID, Attempt: 1, Reason: "r"}}})
		time.Sleep(time.Millisecond) // messages have an age
		st := must[[]operate.ConsumerStatus](t)(op.Status(t.Context()))
		equal(t, "consumers", len(st), 2)
		for i := range st {
			if st[i].OldestUnread <= 0 || st[i].OldestUnread > time.Minute {
				t.Fatalf("the oldest unread message of %s is %v old", st[i].Consumer, st[i].OldestUnread)
			}
			st[i].OldestUnread = 0
		}
		equal(t, "c", st[0], operate.ConsumerStatus{
			Consumer: "c", Per: "topic", Lock: "session", Resources: 3, Members: 1, Unowned: 0, LagMax: 3, LagTotal: 5, ParkedKeys: 1, DeadLetters: 1,
		})
		equal(t, "g", st[1], operate.ConsumerStatus{Consumer: "g", Per: "group", Lock: "session", Resources: 1, Members: 1, Standbys: 1, Unowned: 1, LagMax: 9, LagTotal: 9})
	}},
	{"Operator/Parked_messages_are_listed_lane_by_lane", func(t testing.TB, f Factory) {
		be := f.New(t)
		op := operator(t, be)
		publish(t, be, append(events("1", 4), event("2", "other", 1))...)
		a := join(t, be, perTopic("1", "2"), long).register("1", "2")
		begin := time.Now()
		for _, g := range a.acquire(9) {
			got := a.fetch(g.Resource, g.Cursor, 9)
			p := backend.Progress{Ref: g.Ref, Cursor: got.Cut(len(got.Messages))}
			for i, m := range got.Messages {
				park := backend.Park{ID: m.ID, Lane: m.Key}
				if i == 0 {
					park.Attempt, park.After, park.Error = 2, time.Hour, "no"
				}
				p.Park = append(p.Park, park)
			}
			a.commit(p)
		}
		list := func(f operate.ParkedFilter) (ids []string, all []operate.ParkedInfo) {
			all = must[[]operate.ParkedInfo](t)(op.Parked(t.Context(), f))
			for _, p := range all {
				ids = append(ids, p.MessageID)
			}
			return ids, all
		}
		_, one := list(operate.ParkedFilter{Consumer: "c", Resource: "1"})
		equal(t, "parked of 1", len(one), 4)
		for i, p := range one {
			equal(t, "behind", p.Behind, i > 0)
			equal(t, "of", p.Resource+" "+p.Topic+" "+p.Key+" "+p.Kind, "1 1 "+one[0].Key+" "+one[0].Kind)
			if i > 0 {
				equal(t, "waiting", p.FirstFailed.IsZero() && p.Error == "" && p.Attempts == 0, true)
			}
		}
		first := one[0]
		equal(t, "failed", first.Error, "no")
		equal(t, "attempts", first.Attempts, 2)
		if wait := first.Due.Sub(first.FirstFailed); wait < time.Hour-time.Second || wait > time.Hour+time.Second || first.Due.Before(begin.Add(50*time.Minute)) {
			t.Errorf("failed first at %v and is due at %v; parked after %v for an hour", first.FirstFailed, first.Due, begin)
		}
		ids, all := list(operate.ParkedFilter{Consumer: "c"})
		equal(t, "parked", len(all), 5)
		some, _ := list(operate.ParkedFilter{Consumer: "c", Limit: 2})
		equal(t, "the first two", strings.Join(some, " "), strings.Join(ids[:2], " "))
		_, other := list(operate.ParkedFilter{Consumer: "c", Key: "other"})
		equal(t, "of a key", len(other), 1)
		equal(t, "of a key", other[0].Topic, "2")
		equal(t, "bytes", other[0].Size > 0, true)
		_, none := list(operate.ParkedFilter{Consumer: "nobody"})
		equal(t, "of a consumer that is not there", len(none), 0)
	}},
	{"Operator/Members_describes_live_sessions", func(t testing.TB, f Factory) {
		be := f.New(t)
		op := operator(t, be)
		a := join(t, be, perTopic(), long).register("1", "2", "3")
		time.Sleep(time.Millisecond) // one is the first
		b := join(t, f.Again(t, be), perTopic(), time.Minute)
		a.acquire(2)
		ms := must[[]operate.MemberStatus](t)(op.Members(t.Context(), "c"))
		equal(t, "members", len(ms), 2)
		equal(t, "first to join", ms[0].Session, a.id)
		equal(t, "second to join", ms[1].Session, b.id)
		m := ms[0]
		equal(t, "host", m.Host, "host")
		equal(t, "pid", m.PID, 7)
		equal(t, "owned", m.Owned, 2)
		equal(t, "fair share", m.FairShare, 2)
		if m.Since < 0 || m.Since > time.Minute || m.SinceBeat > m.Since+time.Second || m.TTLRemaining <= long-time.Minute || m.TTLRemaining > long {
			t.Fatalf("durations are off: %+v", m)
		}
		ok(t, b.sess.Close(t.Context()))
		equal(t, "members", len(must[[]operate.MemberStatus](t)(op.Members(t.Context(), "c"))), 1)
		equal(t, "members of nobody", len(must[[]operate.MemberStatus](t)(op.Members(t.Context(), "nobody"))), 0)
	}},
	{"Operator/Leases_lists_the_furthest_behind_first", func(t testing.TB, f Factory) {
		be := f.New(t)
		op := operator(t, be)
		publish(t, be, append(events("2", 3), events("3", 1)...)...)
		a := join(t, be, perTopic(), long).register("1", "2", "3")
		req := a.request(9)
		req.Exclude = []string{"3"}
		gs := must[[]backend.Grant](t)(be.Acquire(t.Context(), req))
		ls := must[[]operate.LeaseStatus](t)(op.Leases(t.Context(), "c", 9))
		equal(t, "leases", len(ls), 3)
		for i, want := range []string{"2", "3", "1"} {
			equal(t, "resource", ls[i].Resource, want)
			equal(t, "lag", ls[i].Lag, []int64{3, 1, 0}[i])
		}
		equal(t, "unowned", ls[1].Session, "")
		equal(t, "owner", ls[0].Session, a.id)
		for _, g := range gs {
			if g.Resource == "2" {
				equal(t, "epoch", ls[0].Epoch, g.Epoch)
			}
		}
		equal(t, "limited", len(must[[]operate.LeaseStatus](t)(op.Leases(t.Context(), "c", 1))), 1)
	}},
	{"Check/Accepts_a_backend_that_is_ready", func(t testing.TB, f Factory) {
		ok(t, f.New(t).Check(t.Context(), nil))
	}},
}
