package leasetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
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
	return func(t testing.TB, f Factory) {
		be := f.New(t)
		if be.Capabilities().Streams == nil {
			t.Skip("the backend has no streams")
		}
		run(t, f, be)
	}
}

func (h *holder) retire(refs ...backend.Ref) {
	h.t.Helper()
	ok(h.t, h.be.Capabilities().Streams.Retire(h.t.Context(), h.id, h.info.Name, refs))
}

// pass reads all of a stream and stores that.
func (h *holder) pass(g backend.Grant) []backend.Raw {
	h.t.Helper()
	got := h.fetch(g.Resource, g.Cursor, 1000)
	h.commit(backend.Progress{Ref: g.Ref, Cursor: got.Next})
	return got.Messages
}

// streams checks how many are wanted or owned, and how many of them are free.
func (h *holder) streams(wanted, free int) {
	h.t.Helper()
	s := h.survey()
	if s.Resources != wanted || s.Free != free {
		h.t.Fatalf("%d streams are wanted and %d free, want %d and %d", s.Resources, s.Free, wanted, free)
	}
}

var streamChecks = []check{
	{"Stream/Is_granted_when_it_was_registered", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, event("x", "a", 1), event("x", "b", 1))
		h := join(t, be, perStream(), long).register()
		h.streams(0, 0)
		equal(t, "acquired unregistered", len(h.acquire(9)), 0)
		for range 2 { // known streams are left as they are
			h.register("a", "new")
			h.streams(2, 2)
		}
		equalSlices(t, "acquired", resources(h.acquire(9)), []string{"a", "new"})
		h.register("a")
		h.streams(2, 0)
		equal(t, "acquired by another", len(join(t, f.Again(t, be), perStream(), long).acquire(9)), 0)
	})},
	{"Stream/A_sweep_finds_all_that_have_work", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, event("orders.eu", "a", 1), event("orders.us", "b", 1), event("orders.us", "b", 2), event("mail", "c", 1), event("orders.eu", "", 1))
		h := join(t, be, perStream("orders.*"), long)
		sweep := func() { ok(t, be.Register(t.Context(), h.info, nil)) }
		sweep()
		gs := h.acquire(9)
		equalSlices(t, "acquired", resources(gs), []string{"", "a", "b"})
		for _, g := range gs {
			h.pass(g)
			h.retire(g.Ref)
		}
		sweep()
		h.streams(0, 0)
		publish(t, be, event("orders.eu", "b", 3), event("mail", "a", 2))
		sweep()
		equalSlices(t, "acquired later", resources(h.acquire(9)), []string{"b"})
	})},
	{"Stream/Has_the_messages_with_its_key", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, event("x", "a", 1), event("x", "b", 2), event("y", "a", 3), event("z", "a", 4), event("x", "", 5), event("x", "a", 6))
		h := join(t, be, perStream("x", "y"), long).register("a", "b", "")
		for _, g := range h.acquire(9) {
			var got []string
			for _, m := range h.pass(g) {
				got = append(got, m.Topic+string(m.Payload))
			}
			want := map[string][]backend.Event{
				"a": {event("x", "a", 1), event("y", "a", 3), event("x", "a", 6)}, "b": {event("x", "b", 2)}, "": {event("x", "", 5)},
			}[g.Resource]
			if len(got) != len(want) {
				t.Fatalf("stream %q has %v", g.Resource, got)
			}
			for i, e := range want {
				equal(t, "message of "+g.Resource, compact(got[i]), compact(e.Topic+string(e.Payload)))
			}
		}
	})},
	{"Stream/Retired_without_work_is_gone_until_it_is_registered", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, events("x", 3, "a")...)
		h := join(t, be, perStream(), long).register("a")
		g := h.acquireOne()
		equal(t, "messages", len(h.pass(g)), 3)
		h.retire(g.Ref)
		h.retire(g.Ref) // its reply was lost
		h.streams(0, 0)
		equal(t, "acquired", len(h.acquire(9)), 0)
		equalSlices(t, "commit after it was retired", h.tryCommit(backend.Progress{Ref: g.Ref}), []string{"a"})
		publish(t, be, event("x", "a", 4))
		h.register("a")
		h.streams(1, 1)
		again := h.acquireOne()
		if again.Epoch <= g.Epoch {
			t.Fatalf("epoch %d after %d", again.Epoch, g.Epoch)
		}
		equal(t, "messages since", len(h.pass(again)), 1)
	})},
	{"Stream/Retired_with_unread_messages_stays_wanted", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, events("x", 3, "a")...)
		h := join(t, be, perStream("x"), long).register("a", "b")
		gs := h.acquire(2)
		for _, g := range gs {
			h.pass(g)
		}
		publish(t, be, event("x", "a", 4), event("other", "b", 1)) // while it is being retired
		h.retire(refs(gs)...)
		h.streams(1, 1)
		g := h.acquireOne()
		equal(t, "stream", g.Resource, "a")
		equal(t, "messages", len(h.pass(g)), 1)
		h.retire(g.Ref)
		h.streams(0, 0)
	})},
	{"Stream/Retired_with_parked_messages_stays_wanted", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, events("x", 1, "a")...)
		h := join(t, be, perStream(), long).register("a")
		g := h.acquireOne()
		got := h.fetch("a", g.Cursor, 9)
		h.commit(backend.Progress{Ref: g.Ref, Cursor: got.Next, Park: []backend.Park{{ID: got.Messages[0].ID, Lane: "a", Attempt: 1, Error: "e"}}})
		h.retire(g.Ref)
		h.streams(1, 1)
		g = h.acquireOne()
		equalSlices(t, "lanes", g.Lanes, []string{"a"})
		h.commit(backend.Progress{Ref: g.Ref, Done: []string{got.Messages[0].ID}})
		h.retire(g.Ref)
		h.streams(0, 0)
	})},
	{"Stream/Released_stays_wanted", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		h := join(t, be, announced(), long).register("a", "b")
		gs := h.acquire(2)
		h.release(gs[0].Ref)
		h.streams(2, 1)
		ok(t, h.sess.Close(t.Context()))
		join(t, f.Again(t, be), announced(), long).streams(2, 2)
	})},
	{"Stream/Retire_passes_over_what_is_not_held", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, announced(), long).register("a")
		b := join(t, f.Again(t, be), announced(), long)
		g := a.acquireOne()
		b.retire(g.Ref, backend.Ref{Resource: "unknown", Epoch: 1}) // right epoch, another's lease
		a.retire(backend.Ref{Resource: "a", Epoch: g.Epoch - 1})    // own lease, old epoch
		a.streams(1, 0)
		a.commit(backend.Progress{Ref: g.Ref})
	})},
	{"Stream/Announced_ones_are_wanted_until_retired", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, event("x", "c", 1)) // no stream of the application's
		h := join(t, be, announced(), long).register()
		ok(t, be.Register(t.Context(), h.info, nil))
		h.streams(0, 0)
		h.register("a", "b")
		h.streams(2, 2)
		for range 3 {
			g := h.acquireOne()
			h.streams(2, 1)
			h.retire(g.Ref)
			h.streams(1, 1)
			h.register(g.Resource)
			h.streams(2, 2)
		}
	})},
	{"Stream/Dead_letters_put_back_make_it_wanted", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		publish(t, be, events("x", 1, "a")...)
		h := join(t, be, perStream(), long).register("a")
		g := h.acquireOne()
		got := h.fetch("a", g.Cursor, 9)
		h.commit(backend.Progress{Ref: g.Ref, Cursor: got.Next, Dead: []backend.Dead{{ID: got.Messages[0].ID, Attempt: 1, Reason: "r"}}})
		h.retire(g.Ref)
		h.streams(0, 0)
		equal(t, "replayed", must[int](t)(h.operator().Replay(t.Context(), operate.DeadLetterFilter{Consumer: "c"})), 1)
		ok(t, be.Register(t.Context(), h.info, nil)) // the runtime does so on news of a replay
		h.streams(1, 1)
		h.acquireOne()
		equalSlices(t, "parked", parkedIDs(h.parked().Messages), ids(got.Messages))
	})},
	{"Stream/No_message_is_forgotten_between_retiring_and_registering", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		const publishers, each = 4, 40
		var wg, owning sync.WaitGroup
		var mu sync.Mutex
		read := map[string]int{}
		stop := make(chan struct{})
		// Owners take streams, read them and retire them at once.
		own := func(h *holder) (busy bool) {
			gs, err := h.be.Acquire(t.Context(), h.request(2))
			if err != nil {
				t.Error(err)
				return false
			}
			for _, g := range gs {
				fs, err := h.be.Fetch(t.Context(), backend.FetchRequest{
					Consumer: h.info, MaxPayload: roomy, Items: []backend.FetchItem{{Resource: g.Resource, From: g.Cursor, Limit: 1000}}})
				time.Sleep(time.Millisecond) // messages arrive
				if err == nil {
					_, err = h.be.Commit(t.Context(), h.id, h.info.Name, []backend.Progress{{Ref: g.Ref, Cursor: fs[0].Next}})
				}
				if err == nil {
					err = h.be.Capabilities().Streams.Retire(t.Context(), h.id, h.info.Name, []backend.Ref{g.Ref})
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
		first := join(t, be, perStream(), long).register()
		for range 2 {
			h := join(t, f.Again(t, be), perStream(), long)
			owning.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						own(h)
					}
				}
			})
		}
		for range publishers {
			from := f.Again(t, be)
			wg.Go(func() {
				for i := range each {
					key := fmt.Sprint("k", i/2) // what is forgotten of a stream stays so after its last message
					err := from.Publish(t.Context(), []backend.Event{event("x", key, i)})
					if err == nil {
						err = from.Register(t.Context(), first.info, []string{key}) // as processes do that hear of it
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		close(stop)
		owning.Wait()
		for deadline := time.Now().Add(patience(t)); own(first) && time.Now().Before(deadline); {
		}
		first.streams(0, 0)
		equal(t, "messages read", len(read), publishers*each)
		for id, n := range read {
			equal(t, "times "+id+" was read", n, 1)
		}
	})},
	{"Stream/The_feed_names_those_with_news", streaming(func(t testing.TB, f Factory, be backend.Backend) {
		other := perStream("mail")
		other.Name = "d"
		ok(t, be.Register(t.Context(), perStream("orders.*"), []string{}))
		ok(t, be.Register(t.Context(), other, []string{}))
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
				t.Fatalf("the feed names %s, of whose topics nothing was published there", r)
			}
		}
	})},
}

// compact drops the spaces that a backend may add to JSON.
func compact(s string) string {
	return string(slices.DeleteFunc([]byte(s), func(c byte) bool { return c == ' ' }))
}
