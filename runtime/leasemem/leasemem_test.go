package leasemem_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

var errCut = errors.New("cut")

// failing makes one operation fail in one phase while on is true.
func failing(op string, phase leasemem.Phase, on *bool) leasemem.Option {
	return leasemem.WithFaults(func(_ context.Context, o string, p leasemem.Phase) error {
		if *on && o == op && p == phase {
			return errCut
		}
		return nil
	})
}

func topic(patterns ...string) backend.ConsumerInfo {
	return backend.ConsumerInfo{Name: "c", Per: backend.PerTopic, Topics: patterns}
}

func publish(t *testing.T, be backend.Publisher, topics ...string) {
	t.Helper()
	for _, name := range topics {
		if err := be.Publish(t.Context(), []backend.Event{{Topic: name, Kind: "k", Payload: []byte(`{}`)}}); err != nil {
			t.Fatal(err)
		}
	}
}

// owner opens a session, registers what the log holds and acquires it.
func owner(t *testing.T, be *leasemem.Backend, info backend.ConsumerInfo, id string, ttl time.Duration) (backend.Session, []backend.Grant) {
	t.Helper()
	s, err := be.OpenSession(t.Context(), backend.SessionSpec{ID: id, TTL: ttl, Consumers: []string{info.Name}})
	if err != nil {
		t.Fatal(err)
	}
	if err := be.Register(t.Context(), info, nil); err != nil {
		t.Fatal(err)
	}
	gs, err := be.Acquire(t.Context(), backend.AcquireRequest{Session: id, Consumer: info, Max: 100, Attempt: "attempt of " + id})
	if err != nil {
		t.Fatal(err)
	}
	return s, gs
}

func lag(t *testing.T, be *leasemem.Backend, consumer string) int64 {
	t.Helper()
	all, err := be.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range all {
		if st.Consumer == consumer {
			return st.LagTotal
		}
	}
	return -1
}

func TestAFaultBeforeHasNoEffectAndOneAfterHidesIt(t *testing.T) {
	for phase, want := range map[leasemem.Phase]int64{leasemem.Before: 0, leasemem.After: 1} {
		on := true
		be := leasemem.New(failing("Publish", phase, &on))
		other := be.Share()
		if err := be.Publish(t.Context(), []backend.Event{{Topic: "x"}}); !errors.Is(err, errCut) {
			t.Fatalf("got error %v", err)
		}
		owner(t, other, topic("*"), "s", time.Hour)
		if got := lag(t, other, "c"); got != want {
			t.Fatalf("phase %d: %d messages, want %d", phase, got, want)
		}
		publish(t, other, "x") // Share's handle has no faults
	}
}

func TestACancelledContextHasNoEffect(t *testing.T) {
	be := leasemem.New()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := be.Publish(ctx, []backend.Event{{Topic: "x"}}); !errors.Is(err, context.Canceled) {
		t.Fatalf("got error %v", err)
	}
	if owner(t, be, topic("*"), "s", time.Hour); lag(t, be, "c") != 0 {
		t.Fatal("a message was published")
	}
}

func TestFeedKeepsNewsThatAFaultHid(t *testing.T) {
	on := false
	be := leasemem.New(failing("FeedNext", leasemem.After, &on))
	f, err := be.OpenFeed(t.Context(), []backend.ConsumerInfo{topic("*")})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	publish(t, be, "x")
	on = true
	if _, err := f.Next(t.Context()); !errors.Is(err, errCut) {
		t.Fatalf("got error %v", err)
	}
	on = false
	if n, err := f.Next(t.Context()); err != nil || len(n.Topics) != 1 || n.Topics[0] != "x" {
		t.Fatalf("got %+v, %v", n, err)
	}
}

func TestTheClockOfTheBackendJudges(t *testing.T) {
	now := time.Now()
	be := leasemem.New(leasemem.WithClock(func() time.Time { return now }))
	publish(t, be, "x")
	a, first := owner(t, be, topic("*"), "a", time.Minute)
	now = now.Add(time.Minute - 1)
	if err := a.Heartbeat(t.Context()); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Minute)
	if err := a.Heartbeat(t.Context()); !errors.Is(err, backend.ErrSessionLost) {
		t.Fatalf("got error %v, want ErrSessionLost", err)
	}
	now = now.Add(-time.Hour) // a clock that is set back revives no session
	if err := a.Heartbeat(t.Context()); !errors.Is(err, backend.ErrSessionLost) {
		t.Fatalf("got error %v, want ErrSessionLost", err)
	}
	now = now.Add(2 * time.Hour)
	if _, gs := owner(t, be, topic("*"), "b", time.Minute); len(gs) != 1 || gs[0].Epoch <= first[0].Epoch || gs[0].Suspicion != 1 {
		t.Fatalf("granted %+v after %+v", gs, first)
	}
}

func TestATransactionPublishesWhenItCommits(t *testing.T) {
	be := leasemem.New()
	publish(t, be, "x")
	_, gs := owner(t, be, topic("*"), "s", time.Hour)
	for i, commit := range []bool{false, true} {
		tx, err := be.Begin(t.Context(), "s")
		if err != nil {
			t.Fatal(err)
		}
		publish(t, tx.Handle().(*leasemem.Tx), "x")
		before := lag(t, be, "c")
		if commit {
			err = tx.Commit(t.Context(), "s", "c", backend.Progress{Ref: gs[0].Ref})
		} else {
			err = tx.Rollback(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := lag(t, be, "c") - before; got != int64(i) {
			t.Fatalf("commit %v published %d messages", commit, got)
		}
	}
}

func TestTheLogForgetsWhatAllConsumersPassed(t *testing.T) {
	be := leasemem.New()
	publish(t, be, "a", "a", "b", "nobody's")
	ab := topic("a", "b")
	all := backend.ConsumerInfo{Name: "g", Per: backend.PerGroup, Topics: []string{"a"}}
	pass := func(info backend.ConsumerInfo, id string) {
		t.Helper()
		_, gs := owner(t, be, info, id, time.Hour)
		for _, g := range gs {
			fs, err := be.Fetch(t.Context(), backend.FetchRequest{Consumer: info, Items: []backend.FetchItem{{Resource: g.Resource, From: g.Cursor, Limit: 9}}})
			if err != nil {
				t.Fatal(err)
			}
			if fenced, err := be.Commit(t.Context(), id, info.Name, []backend.Progress{{Ref: g.Ref, Cursor: fs[0].Next}}); err != nil || len(fenced) > 0 {
				t.Fatalf("fenced %v, %v", fenced, err)
			}
		}
	}
	dropped := func(want int) {
		t.Helper()
		r, err := be.Maintain(t.Context(), []backend.ConsumerInfo{ab, all})
		if err != nil || r.SegmentsDropped != want {
			t.Fatalf("dropped %d, want %d, %v", r.SegmentsDropped, want, err)
		}
	}
	dropped(0) // no consumer, no retention
	pass(ab, "1")
	if err := be.Register(t.Context(), all, nil); err != nil {
		t.Fatal(err)
	}
	dropped(1) // b; the group has not passed a
	pass(all, "2")
	dropped(2)
	pass(topic("nobody's"), "3") // the same consumer, with other topics
	dropped(1)
}

func TestUnusableProgressChangesNothing(t *testing.T) {
	be := leasemem.New()
	publish(t, be, "x")
	_, gs := owner(t, be, topic("*"), "s", time.Hour)
	for _, p := range []backend.Progress{
		{Cursor: "of another backend"},
		{Mark: "m", Park: []backend.Park{{ID: "99"}}},
		{Mark: "m", Dead: []backend.Dead{{ID: "none"}}},
	} {
		p.Ref = gs[0].Ref
		if _, err := be.Commit(t.Context(), "s", "c", []backend.Progress{p}); err == nil {
			t.Fatalf("%+v was stored", p)
		}
	}
	if err := be.Release(t.Context(), "s", "c", []backend.Ref{gs[0].Ref}); err != nil {
		t.Fatal(err)
	}
	if _, gs = owner(t, be, topic("*"), "s2", time.Hour); gs[0].Mark != "" {
		t.Fatal("a part of unusable progress was stored")
	}
}

func TestInputThatIsWrongIsRefused(t *testing.T) {
	be := leasemem.New()
	if err := be.Publish(t.Context(), []backend.Event{{Topic: "x"}, {}}); err == nil {
		t.Error("an event without a topic was published")
	}
	if _, err := be.OpenSession(t.Context(), backend.SessionSpec{ID: "s"}); err == nil {
		t.Error("a session without a TTL was opened")
	}
	if owner(t, be, topic("*"), "s2", time.Hour); lag(t, be, "c") != 0 {
		t.Error("a part of what was refused was published")
	}
}

func ExampleTx() {
	be := leasemem.New()
	ctx := context.Background()
	be.Publish(ctx, []backend.Event{{Topic: "orders"}})
	info := backend.ConsumerInfo{Name: "billing", Per: backend.PerTopic, Topics: []string{"orders"}}
	be.OpenSession(ctx, backend.SessionSpec{ID: "s", TTL: time.Minute, Consumers: []string{"billing"}})
	be.Register(ctx, info, nil)
	grants, _ := be.Acquire(ctx, backend.AcquireRequest{Session: "s", Consumer: info, Max: 1, Attempt: "1"})

	tx, _ := be.Begin(ctx, "s")
	tx.Handle().(*leasemem.Tx).Do(func() { fmt.Println("charged") })
	fmt.Println("handled")
	fmt.Println("committed:", tx.Commit(ctx, "s", "billing", backend.Progress{Ref: grants[0].Ref}) == nil)
	// Output:
	// handled
	// charged
	// committed: true
}
