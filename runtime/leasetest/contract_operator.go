package leasetest

import (
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
)

var operatorChecks = []check{
	{"Operator/Status_counts", func(t testing.TB, f Factory) {
		be := f.New(t)
		op := be.(lease.Operator)
		publish(t, be, append(append(events("1", 5), events("2", 3)...), event("other", "", 1))...)
		a := join(t, be, perTopic("1", "2", "3"), long).register("1", "2", "3")
		join(t, be, perGroup("*"), long).register()
		var one lease.Grant
		for _, g := range a.acquire(9) {
			if g.Resource == "1" {
				one = g
			}
		}
		got := a.fetch("1", one.Cursor, 9)
		a.commit(lease.Progress{Ref: one.Ref, Cursor: got.Cut(3),
			Park: []lease.Park{{ID: got.Messages[0].ID, Lane: "k", Attempt: 1, Error: "e"}, {ID: got.Messages[2].ID, Lane: "k"}},
			Dead: []lease.Dead{{ID: got.Messages[1].ID, Attempt: 1, Reason: "r"}}})
		time.Sleep(time.Millisecond) // messages have an age
		st := must[[]lease.ConsumerStatus](t)(op.Status(t.Context()))
		equal(t, "consumers", len(st), 2)
		for i := range st {
			if st[i].OldestUnread <= 0 || st[i].OldestUnread > time.Minute {
				t.Fatalf("the oldest unread message of %s is %v old", st[i].Consumer, st[i].OldestUnread)
			}
			st[i].OldestUnread = 0
		}
		equal(t, "c", st[0], lease.ConsumerStatus{
			Consumer: "c", Per: "topic", Lock: "session", Resources: 3, Members: 1, Unowned: 0, LagMax: 3, LagTotal: 5, ParkedKeys: 1, DeadLetters: 1,
		})
		equal(t, "g", st[1], lease.ConsumerStatus{Consumer: "g", Per: "group", Lock: "session", Resources: 1, Members: 1, Standbys: 1, Unowned: 1, LagMax: 9, LagTotal: 9})
	}},
	{"Operator/Members_describes_live_sessions", func(t testing.TB, f Factory) {
		be := f.New(t)
		op := be.(lease.Operator)
		a := join(t, be, perTopic(), long).register("1", "2", "3")
		time.Sleep(time.Millisecond) // one is the first
		b := join(t, f.Again(t, be), perTopic(), time.Minute)
		a.acquire(2)
		ms := must[[]lease.MemberStatus](t)(op.Members(t.Context(), "c"))
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
		equal(t, "members", len(must[[]lease.MemberStatus](t)(op.Members(t.Context(), "c"))), 1)
		equal(t, "members of nobody", len(must[[]lease.MemberStatus](t)(op.Members(t.Context(), "nobody"))), 0)
	}},
	{"Operator/Leases_lists_the_furthest_behind_first", func(t testing.TB, f Factory) {
		be := f.New(t)
		op := be.(lease.Operator)
		publish(t, be, append(events("2", 3), events("3", 1)...)...)
		a := join(t, be, perTopic(), long).register("1", "2", "3")
		req := a.request(9)
		req.Exclude = []string{"3"}
		gs := must[[]lease.Grant](t)(be.Acquire(t.Context(), req))
		ls := must[[]lease.LeaseStatus](t)(op.Leases(t.Context(), "c", 9))
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
		equal(t, "limited", len(must[[]lease.LeaseStatus](t)(op.Leases(t.Context(), "c", 1))), 1)
	}},
	{"Check/Accepts_a_backend_that_is_ready", func(t testing.TB, f Factory) {
		ok(t, f.New(t).Check(t.Context(), nil))
	}},
}
