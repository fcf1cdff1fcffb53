package leasetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

func perStream(patterns ...string) backend.ConsumerInfo {
	if len(patterns) == 0 {
		patterns = []string{"*"}
	}
	return backend.ConsumerInfo{Name: "c", Per: backend.PerStream, Topics: patterns}
}

// announced is a consumer of streams that the application names.
func announced() backend.ConsumerInfo {
	return backend.ConsumerInfo{Name: "c", Per: backend.PerStream, Announced: true}
}

// streaming skips what a backend without streams cannot do.
func streaming(run func(t testing.TB, f Factory, be backend.Backend)) func(testing.TB, Factory) {
	return fresh(func(t testing.TB, f Factory, be backend.Backend) {
		needs(t, be.Capabilities().Streams != nil, "the backend has no streams")
		run(t, f, be)
	})
}

// pass reads all of a stream and stores that.
func pass(h *kit.Actor, g backend.Grant) []backend.Raw {
	h.T.Helper()
	got := h.Reads(g.Resource, g.Cursor, 1000)
	h.Commits(backend.Progress{Ref: g.Ref, Cursor: got.Next})
	return got.Messages
}

// streams checks how many are wanted or owned, and how many of them are free.
func streams(h *kit.Actor, wanted, free int) {
	h.T.Helper()
	s := h.Surveys()
	if s.Resources != wanted || s.Free != free {
		h.T.Fatalf("%d streams are wanted and %d free, want %d and %d", s.Resources, s.Free, wanted, free)
	}
}

var streamChecks = []check{
	{"Stream/Is_granted_when_it_was_registered", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, event("x", "a", 1), event("x", "b", 1))
		h := join(t, be, perStream(), long).Registers()
		streams(h, 0, 0)
		kit.Equal(t, "acquired unregistered", len(h.Acquires(9)), 0)
		for range 2 { // known streams are left as they are
			h.Registers("a", "new")
			streams(h, 2, 2)
		}
		equalSlices(t, "acquired", resources(h.Acquires(9)), []string{"a", "new"})
		h.Registers("a")
		streams(h, 2, 0)
		kit.Equal(t, "acquired by another", len(join(t, f.Again(t, be), perStream(), long).Acquires(9)), 0)
	})},
	{"Stream/A_sweep_finds_all_that_have_work", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, event("orders.eu", "a", 1), event("orders.us", "b", 1), event("orders.us", "b", 2), event("mail", "c", 1), event("orders.eu", "", 1))
		h := join(t, be, perStream("orders.*"), long)
		sweep := func() { kit.OK(t, be.Register(t.Context(), h.Info, nil)) }
		sweep()
		gs := h.Acquires(9)
		equalSlices(t, "acquired", resources(gs), []string{"", "a", "b"})
		for _, g := range gs {
			pass(h, g)
			h.Retires(g.Ref)
		}
		sweep()
		streams(h, 0, 0)
		publish(t, be, event("orders.eu", "b", 3), event("mail", "a", 2))
		sweep()
		equalSlices(t, "acquired later", resources(h.Acquires(9)), []string{"b"})
	})},
	{"Stream/Has_the_messages_with_its_key", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, event("x", "a", 1), event("x", "b", 2), event("y", "a", 3), event("z", "a", 4), event("x", "", 5), event("x", "a", 6))
		h := join(t, be, perStream("x", "y"), long).Registers("a", "b", "")
		for _, g := range h.Acquires(9) {
			var got []string
			for _, m := range pass(h, g) {
				got = append(got, m.Topic+string(m.Payload))
			}
			want := map[string][]backend.Event{
				"a": {event("x", "a", 1), event("y", "a", 3), event("x", "a", 6)}, "b": {event("x", "b", 2)}, "": {event("x", "", 5)},
			}[g.Resource]
			if len(got) != len(want) {
				t.Fatalf("stream %q has %v", g.Resource, got)
			}
			for i, e := range want {
				kit.Equal(t, "message of "+g.Resource, compact(got[i]), compact(e.Topic+string(e.Payload)))
			}
		}
	})},
	{"Stream/Retired_without_work_is_gone_until_it_is_registered", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, events("x", 3, "a")...)
		h, g := owner(t, be, perStream(), "a")
		kit.Equal(t, "messages", len(pass(h, g)), 3)
		h.Retires(g.Ref)
		h.Retires(g.Ref) // its reply was lost
		streams(h, 0, 0)
		kit.Equal(t, "acquired", len(h.Acquires(9)), 0)
		equalSlices(t, "commit after it was retired", h.Fenced(backend.Progress{Ref: g.Ref}), []string{"a"})
		publish(t, be, event("x", "a", 4))
		h.Registers("a")
		streams(h, 1, 1)
		again := h.Takes()
		rises(t, again, g)
		kit.Equal(t, "messages since", len(pass(h, again)), 1)
	})},
	{"Stream/Retired_with_unread_messages_stays_wanted", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, events("x", 3, "a")...)
		h := join(t, be, perStream("x"), long).Registers("a", "b")
		gs := h.Acquires(2)
		for _, g := range gs {
			pass(h, g)
		}
		publish(t, be, event("x", "a", 4), event("other", "b", 1)) // while it is being retired
		h.Retires(kit.Refs(gs)...)
		streams(h, 1, 1)
		g := h.Takes()
		kit.Equal(t, "stream", g.Resource, "a")
		kit.Equal(t, "messages", len(pass(h, g)), 1)
		h.Retires(g.Ref)
		streams(h, 0, 0)
	})},
	{"Stream/Retired_with_parked_messages_stays_wanted", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, events("x", 1, "a")...)
		h, g := owner(t, be, perStream(), "a")
		got := h.Reads("a", g.Cursor, 9)
		h.Commits(backend.Progress{Ref: g.Ref, Cursor: got.Next, Park: []backend.Park{{ID: got.Messages[0].ID, Lane: "a", Attempt: 1, Error: "e"}}})
		h.Retires(g.Ref)
		streams(h, 1, 1)
		g = h.Takes()
		equalSlices(t, "lanes", g.Lanes, []string{"a"})
		h.Commits(backend.Progress{Ref: g.Ref, Done: []string{got.Messages[0].ID}})
		h.Retires(g.Ref)
		streams(h, 0, 0)
	})},
	{"Stream/Released_stays_wanted", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		h := join(t, be, announced(), long).Registers("a", "b")
		gs := h.Acquires(2)
		h.Releases(gs[0].Ref)
		streams(h, 2, 1)
		kit.OK(t, h.Session.Close(t.Context()))
		streams(join(t, f.Again(t, be), announced(), long), 2, 2)
	})},
	{"Stream/Retire_passes_over_what_is_not_held", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, announced(), long).Registers("a")
		b := join(t, f.Again(t, be), announced(), long)
		g := a.Takes()
		b.Retires(g.Ref, backend.Ref{Resource: "unknown", Epoch: 1}) // right epoch, another's lease
		a.Retires(backend.Ref{Resource: "a", Epoch: g.Epoch - 1})    // own lease, old epoch
		streams(a, 1, 0)
		a.Commits(backend.Progress{Ref: g.Ref})
	})},
	{"Stream/Announced_ones_are_wanted_until_retired", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, event("x", "c", 1)) // no stream of the application's
		h := join(t, be, announced(), long).Registers()
		kit.OK(t, be.Register(t.Context(), h.Info, nil))
		streams(h, 0, 0)
		h.Registers("a", "b")
		streams(h, 2, 2)
		for range 3 {
			g := h.Takes()
			streams(h, 2, 1)
			h.Retires(g.Ref)
			streams(h, 1, 1)
			h.Registers(g.Resource)
			streams(h, 2, 2)
		}
	})},
	{"Stream/Dead_letters_put_back_make_it_wanted", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, events("x", 1, "a")...)
		h, g := owner(t, be, perStream(), "a")
		got := h.Reads("a", g.Cursor, 9)
		h.Commits(backend.Progress{Ref: g.Ref, Cursor: got.Next, Dead: []backend.Dead{{ID: got.Messages[0].ID, Attempt: 1, Reason: "r"}}})
		h.Retires(g.Ref)
		streams(h, 0, 0)
		kit.Equal(t, "replayed", kit.Must[int](t)(h.Operator().Replay(t.Context(), operate.DeadLetterFilter{Consumer: "c"})), 1)
		kit.OK(t, be.Register(t.Context(), h.Info, nil)) // the runtime does so on news of a replay
		streams(h, 1, 1)
		h.Takes()
		equalSlices(t, "parked", parkedIDs(h.Due().Messages), ids(got.Messages))
	})},
	{"Stream/No_message_is_forgotten_between_retiring_and_registering", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		const publishers, each = 4, 40
		var wg sync.WaitGroup
		var mu sync.Mutex
		read := map[string]int{}
		// Owners take streams, read them and retire them at once.
		own := func(h *kit.Actor) (busy bool) {
			gs, err := h.Be.Acquire(t.Context(), h.Request(2))
			if err != nil {
				t.Error(err)
				return false
			}
			for _, g := range gs {
				fs, err := h.Be.Fetch(t.Context(), backend.FetchRequest{
					Consumer: h.Info, MaxPayload: kit.Roomy, Items: []backend.FetchItem{{Resource: g.Resource, From: g.Cursor, Limit: 1000}}})
				time.Sleep(time.Millisecond) // messages arrive
				if err == nil {
					_, err = h.Be.Commit(t.Context(), h.ID, h.Info.Name, []backend.Progress{{Ref: g.Ref, Cursor: fs[0].Next}})
				}
				if err == nil {
					err = h.Be.Capabilities().Streams.Retire(t.Context(), h.ID, h.Info.Name, []backend.Ref{g.Ref})
				}
				if err != nil {
					t.Error(err)
					return false
				}
				mu.Lock()
				for _, m := range fs[0].Messages {
					read[m.ID]++
				}
				mu.Unlock()
			}
			return len(gs) > 0
		}
		first := join(t, be, perStream(), long).Registers()
		var stops []func()
		for range 2 {
			h := join(t, f.Again(t, be), perStream(), long)
			stops = append(stops, repeat(t, func() { own(h) }))
		}
		for range publishers {
			from := f.Again(t, be)
			wg.Go(func() {
				for i := range each {
					key := fmt.Sprint("k", i/2) // what is forgotten of a stream stays so after its last message
					err := from.Publish(t.Context(), []backend.Event{event("x", key, i)})
					if err == nil {
						err = from.Register(t.Context(), first.Info, []string{key}) // as processes do that hear of it
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		for _, stop := range stops {
			stop()
		}
		for deadline := time.Now().Add(kit.Patience(t)); own(first) && time.Now().Before(deadline); {
		}
		streams(first, 0, 0)
		allOnce(t, "messages read", read, publishers*each)
	})},
	{"Stream/The_feed_names_those_with_news", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		other := perStream("mail")
		other.Name = "d"
		kit.OK(t, be.Register(t.Context(), perStream("orders.*"), []string{}))
		kit.OK(t, be.Register(t.Context(), other, []string{}))
		w := watch(t, be, perStream("orders.*"), other)
		from := f.Again(t, be)
		publish(t, from, event("orders.eu", "a", 1), event("noise", "z", 1), event("mail", "b", 1), event("orders.us", "", 1))
		seen := map[string]bool{}
		w.until("streams", func(n backend.News) bool {
			for name, rs := range n.Resources {
				for _, r := range rs {
					seen[name+"/"+r] = true
				}
			}
			return seen["c/a"] && seen["d/b"] && seen["c/"]
		})
		for _, r := range []string{"c/z", "d/z", "c/b", "d/a", "d/"} {
			if seen[r] {
				t.Fatalf("the feed names %s, without a message on its topics there", r)
			}
		}
	})},
}

// compact drops the spaces that a backend may add to JSON.
func compact(s string) string {
	return string(slices.DeleteFunc([]byte(s), func(c byte) bool { return c == ' ' }))
}
