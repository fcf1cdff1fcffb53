package leasetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
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
		if err == nil && ok(n) {
			return
		}
		if err = cmp.Or(err, ctx.Err()); err != nil {
			w.t.Fatalf("no news of %s: %v", what, err)
		}
	}
}

// names reads news until all that is wanted was named.
func (w *watched) names(of func(backend.News) []string, want ...string) {
	w.t.Helper()
	missing := counts(want)
	w.until(fmt.Sprint(want), func(n backend.News) bool {
		for _, name := range of(n) {
			delete(missing, name)
		}
		return len(missing) == 0
	})
}

func (w *watched) topics(want ...string) {
	w.t.Helper()
	w.names(func(n backend.News) []string { return n.Topics }, want...)
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
		w.until("orders.eu", func(n backend.News) bool {
			if slices.Contains(n.Topics, "noise") {
				t.Fatal("the feed reports a topic that no consumer matches")
			}
			return slices.Contains(n.Topics, "orders.eu")
		})
		publish(t, other, event("mail", "", 1), event("orders.us", "", 1), event("orders.eu", "", 2))
		w.topics("mail", "orders.us", "orders.eu")
	})},
	{"Feed/Misses_nothing_under_load", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		w := watch(t, be, perTopic("*"))
		topics := names("t", 200)
		published := publishers(t, f, be, 4, 50, func(p, i int) []backend.Event {
			return []backend.Event{event(topics[50*p+i], "", i)}
		})
		w.topics(topics...)
		published()
	})},
	{"Feed/Reports_changes_of_ownership", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		other := f.Again(t, be)
		a := join(t, be, perTopic(), long).Registers("x")
		w := watch(t, be, perTopic())
		quiet := func() { // what is known by now is no news later
			t.Helper()
			w.until("an end of changes of ownership", func(n backend.News) bool { return !n.Ownership })
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
		late := time.Hour // beyond what the machine is allowed at that moment
		for i := 0; late > 0 && i < tries(t); i++ {
			time.AfterFunc(20*time.Millisecond, func() {
				if err := other.Publish(context.WithoutCancel(t.Context()), []backend.Event{event(fmt.Sprint("t", i), "", i)}); err != nil {
					t.Error(err)
				}
			})
			began := time.Now()
			w.topics(fmt.Sprint("t", i))
			late = min(late, time.Since(began)-220*time.Millisecond-slack(t, be))
		}
		if late > 0 {
			t.Fatalf("the fastest of %d wakings was %v later than 200 ms and what the machine is allowed", tries(t), late)
		}
	})},
}
