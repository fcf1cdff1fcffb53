package leasetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// watch opens a feed and keeps what it says.
type watched struct {
	t    testing.TB
	feed backend.Feed
}

func watch(t testing.TB, be backend.Backend, infos ...backend.ConsumerInfo) *watched {
	t.Helper()
	f := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), infos))
	t.Cleanup(f.Close)
	return &watched{t, f}
}

// until reads news until ok.
func (w *watched) until(what string, ok func(backend.News) bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), kit.Patience(w.t))
	defer cancel()
	for {
		n, err := w.feed.Next(ctx)
		if err != nil {
			w.t.Fatalf("no news of %s: %v", what, err)
		}
		if ok(n) {
			return
		}
	}
}

func (w *watched) topics(want ...string) {
	w.t.Helper()
	missing := map[string]bool{}
	for _, t := range want {
		missing[t] = true
	}
	w.until(fmt.Sprint("topics ", want), func(n backend.News) bool {
		for _, t := range n.Topics {
			delete(missing, t)
		}
		return len(missing) == 0
	})
}

func (w *watched) ownership(what string) {
	w.t.Helper()
	w.until(what, func(n backend.News) bool { return n.Ownership })
}

var feedChecks = []check{
	{"Feed/Reports_topics_that_consumers_match", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		w := watch(t, be, perTopic("orders.*"), perGroup("mail"))
		other := f.Again(t, be)
		publish(t, other, event("noise", "", 1), event("orders.eu", "", 1))
		ctx, cancel := context.WithTimeout(t.Context(), kit.Patience(t))
		defer cancel()
		for seen := false; !seen; {
			n := kit.Must[backend.News](t)(w.feed.Next(ctx))
			for _, topic := range n.Topics {
				if topic == "noise" {
					t.Fatal("the feed reports a topic that no consumer matches")
				}
				seen = seen || topic == "orders.eu"
			}
		}
		publish(t, other, event("mail", "", 1), event("orders.us", "", 1), event("orders.eu", "", 2))
		w.topics("mail", "orders.us", "orders.eu")
	})},
	{"Feed/Misses_nothing_under_load", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		w := watch(t, be, perTopic("*"))
		var wg sync.WaitGroup
		var want []string
		for p := range 4 {
			from := f.Again(t, be)
			for i := range 50 {
				want = append(want, fmt.Sprintf("t%d.%02d", p, i))
			}
			wg.Go(func() {
				for i := range 50 {
					if err := from.Publish(t.Context(), []backend.Event{event(fmt.Sprintf("t%d.%02d", p, i), "", i)}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		w.topics(want...)
		wg.Wait()
	})},
	{"Feed/Reports_changes_of_ownership", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		other := f.Again(t, be)
		a := join(t, be, perTopic(), long).Registers("x")
		w := watch(t, be, perTopic())
		quiet := func() { // what is known by now is no news later
			for deadline := time.Now().Add(kit.Patience(t)); ; {
				if n := kit.Must[backend.News](t)(w.feed.Next(t.Context())); !n.Ownership {
					return
				}
				if time.Now().After(deadline) {
					t.Fatal("the feed reports changes of ownership without end")
				}
			}
		}
		quiet()
		b := join(t, other, perTopic(), long)
		w.ownership("a session that joined")
		quiet()
		g := b.Takes()
		if f.Polls { // between two polls it might be as if it had never been taken
			w.ownership("an acquired lease")
			quiet()
		}
		b.Releases(g.Ref)
		w.ownership("a released lease")
		quiet()
		kit.OK(t, b.Session.Close(t.Context()))
		w.ownership("a session that left")
		quiet()
		join(t, other, perTopic(), short)
		w.ownership("a session that joined")
		w.ownership("a session that died")
		a.Takes()
	})},
	{"Feed/Waits_a_poll_interval_and_no_longer_than_its_context", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		w := watch(t, be, perTopic("orders.*"))
		ctx, cancel := context.WithTimeout(t.Context(), kit.Patience(t))
		defer cancel()
		began := time.Now()
		calls := 0
		for time.Since(began) < 2*time.Second {
			kit.Must[backend.News](t)(w.feed.Next(ctx))
			calls++
		}
		if calls < 1 || calls > 40 {
			t.Fatalf("an idle feed answered %d times in 2 s", calls)
		}
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, stop)
		for deadline := time.Now().Add(kit.Patience(t)); ; {
			if _, err := w.feed.Next(ctx); err != nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("Next goes on after its context ended")
			}
		}
	})},
	{"Feed/Wakes_soon", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		w := watch(t, be, perTopic())
		other := f.Again(t, be)
		best, limit := time.Hour, 200*time.Millisecond+slack(t, be)
		for i := 0; i == 0 || best > limit && i < tries(t); i++ {
			time.AfterFunc(20*time.Millisecond, func() {
				if err := other.Publish(context.WithoutCancel(t.Context()), []backend.Event{event(fmt.Sprint("t", i), "", i)}); err != nil {
					t.Error(err)
				}
			})
			began := time.Now()
			w.topics(fmt.Sprint("t", i))
			best = min(best, time.Since(began)-20*time.Millisecond)
		}
		if best > limit {
			t.Fatalf("the fastest of %d wakings took %v, want at most %v", tries(t), best, limit)
		}
	})},
}
