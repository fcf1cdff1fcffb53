package leasetest

import (
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

var operatorChecks = []check{
	{"Operator/Status_counts", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		op := kit.Operator(t, be)
		publish(t, be, append(append(events("1", 5), events("2", 3)...), event("other", "", 1))...)
		a := join(t, be, perTopic("1", "2", "3"), long).Registers("1", "2", "3")
		join(t, be, perGroup("*"), long).Registers()
		one := grantOf(a, a.Acquires(9), "1")
		got := a.Reads("1", one.Cursor, 9)
		a.Commits(backend.Progress{Ref: one.Ref, Cursor: got.Cut(3),
			Park: []backend.Park{{ID: got.Messages[0].ID, Lane: "k", Attempt: 1, Error: "e"}, {ID: got.Messages[2].ID, Lane: "k"}},
			Dead: []backend.Dead{{ID: got.Messages[1].ID, Attempt: 1, Reason: "r"}}})
		time.Sleep(time.Millisecond) // messages have an age
		st := kit.Must[[]operate.ConsumerStatus](t)(op.Status(t.Context()))
		kit.Equal(t, "consumers", len(st), 2)
		for i := range st {
			if st[i].OldestUnread <= 0 || st[i].OldestUnread > time.Minute {
				t.Fatalf("the oldest unread message of %s is %v old", st[i].Consumer, st[i].OldestUnread)
			}
			st[i].OldestUnread = 0
		}
		kit.Equal(t, "c", st[0], operate.ConsumerStatus{
			Consumer: "c", Per: "topic", Lock: "session", Resources: 3, Members: 1, Unowned: 0, LagMax: 3, LagTotal: 5, ParkedKeys: 1, DeadLetters: 1,
		})
		kit.Equal(t, "g", st[1], operate.ConsumerStatus{Consumer: "g", Per: "group", Lock: "session", Resources: 1, Members: 1, Standbys: 1, Unowned: 1, LagMax: 9, LagTotal: 9})
	})},
	{"Operator/Parked_messages_are_listed_lane_by_lane", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		op := kit.Operator(t, be)
		publish(t, be, append(events("1", 4), event("2", "other", 1))...)
		a := join(t, be, perTopic("1", "2"), long).Registers("1", "2")
		begin := time.Now()
		for _, g := range a.Acquires(9) {
			got := a.Reads(g.Resource, g.Cursor, 9)
			p := backend.Progress{Ref: g.Ref, Cursor: got.Cut(len(got.Messages))}
			for i, m := range got.Messages {
				park := backend.Park{ID: m.ID, Lane: m.Key}
				if i == 0 {
					park.Attempt, park.After, park.Error = 2, time.Hour, "no"
				}
				p.Park = append(p.Park, park)
			}
			a.Commits(p)
		}
		list := func(f operate.ParkedFilter) (ids []string, all []operate.ParkedInfo) {
			all = kit.Must[[]operate.ParkedInfo](t)(op.Parked(t.Context(), f))
			return each(all, func(p operate.ParkedInfo) string { return p.MessageID }), all
		}
		_, one := list(operate.ParkedFilter{Consumer: "c", Resource: "1"})
		kit.Equal(t, "parked of 1", len(one), 4)
		for i, p := range one {
			kit.Equal(t, "behind", p.Behind, i > 0)
			kit.Equal(t, "of", p.Resource+" "+p.Topic+" "+p.Key+" "+p.Kind, "1 1 "+one[0].Key+" "+one[0].Kind)
			if i > 0 {
				kit.Equal(t, "waiting", p.FirstFailed.IsZero() && p.Error == "" && p.Attempts == 0, true)
			}
		}
		first := one[0]
		kit.Equal(t, "failed", first.Error, "no")
		kit.Equal(t, "attempts", first.Attempts, 2)
		if wait := first.Due.Sub(first.FirstFailed); wait < time.Hour-time.Second || wait > time.Hour+time.Second || first.Due.Before(begin.Add(50*time.Minute)) {
			t.Errorf("failed first at %v and is due at %v; parked after %v for an hour", first.FirstFailed, first.Due, begin)
		}
		ids, all := list(operate.ParkedFilter{Consumer: "c"})
		kit.Equal(t, "parked", len(all), 5)
		some, _ := list(operate.ParkedFilter{Consumer: "c", Limit: 2})
		kit.Equal(t, "the first two", strings.Join(some, " "), strings.Join(ids[:2], " "))
		_, other := list(operate.ParkedFilter{Consumer: "c", Key: "other"})
		kit.Equal(t, "of a key", len(other), 1)
		kit.Equal(t, "of a key", other[0].Topic, "2")
		kit.Equal(t, "bytes", other[0].Size > 0, true)
		_, none := list(operate.ParkedFilter{Consumer: "nobody"})
		kit.Equal(t, "of a consumer that is not there", len(none), 0)
	})},
	{"Operator/Members_describes_live_sessions", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		op := kit.Operator(t, be)
		a := join(t, be, perTopic(), long).Registers("1", "2", "3")
		time.Sleep(time.Millisecond) // one is the first
		b := join(t, f.Again(t, be), perTopic(), time.Minute)
		a.Acquires(2)
		ms := kit.Must[[]operate.MemberStatus](t)(op.Members(t.Context(), "c"))
		kit.Equal(t, "members", len(ms), 2)
		kit.Equal(t, "first to join", ms[0].Session, a.ID)
		kit.Equal(t, "second to join", ms[1].Session, b.ID)
		m := ms[0]
		kit.Equal(t, "host", m.Host, "host")
		kit.Equal(t, "pid", m.PID, 7)
		kit.Equal(t, "owned", m.Owned, 2)
		kit.Equal(t, "fair share", m.FairShare, 2)
		if m.Since < 0 || m.Since > time.Minute || m.SinceBeat > m.Since+time.Second || m.TTLRemaining <= long-time.Minute || m.TTLRemaining > long {
			t.Fatalf("durations are off: %+v", m)
		}
		kit.OK(t, b.Session.Close(t.Context()))
		kit.Equal(t, "members", len(kit.Must[[]operate.MemberStatus](t)(op.Members(t.Context(), "c"))), 1)
		kit.Equal(t, "members of nobody", len(kit.Must[[]operate.MemberStatus](t)(op.Members(t.Context(), "nobody"))), 0)
	})},
	{"Operator/Leases_lists_the_furthest_behind_first", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		op := kit.Operator(t, be)
		publish(t, be, append(events("2", 3), events("3", 1)...)...)
		a := join(t, be, perTopic(), long).Registers("1", "2", "3")
		req := a.Request(9)
		req.Exclude = []string{"3"}
		gs := kit.Must[[]backend.Grant](t)(be.Acquire(t.Context(), req))
		ls := kit.Must[[]operate.LeaseStatus](t)(op.Leases(t.Context(), "c", 9))
		kit.Equal(t, "leases", len(ls), 3)
		for i, want := range []string{"2", "3", "1"} {
			kit.Equal(t, "resource", ls[i].Resource, want)
			kit.Equal(t, "lag", ls[i].Lag, []int64{3, 1, 0}[i])
		}
		kit.Equal(t, "unowned", ls[1].Session, "")
		kit.Equal(t, "owner", ls[0].Session, a.ID)
		kit.Equal(t, "epoch", ls[0].Epoch, grantOf(a, gs, "2").Epoch)
		kit.Equal(t, "limited", len(kit.Must[[]operate.LeaseStatus](t)(op.Leases(t.Context(), "c", 1))), 1)
	})},
	{"Check/Accepts_a_backend_that_is_ready", func(t testing.TB, f Factory) {
		kit.OK(t, f.New(t).Check(t.Context(), nil))
	}},
}
