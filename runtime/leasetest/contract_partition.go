package leasetest

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

func perPartition(patterns ...string) backend.ConsumerInfo {
	if len(patterns) == 0 {
		patterns = []string{"*"}
	}
	return backend.ConsumerInfo{Name: "c", Per: backend.PerPartition, Topics: patterns}
}

// slotsOf acquires all slots there are, and returns their grants by number.
func slotsOf(h *kit.Actor) []backend.Grant {
	h.T.Helper()
	kit.OK(h.T, h.Be.Register(h.T.Context(), h.Info, nil))
	gs := h.Acquires(1 << 20)
	byNumber := make([]backend.Grant, len(gs))
	for _, g := range gs {
		n, err := strconv.Atoi(g.Resource)
		if err != nil || n < 0 || n >= len(gs) || byNumber[n].Resource != "" {
			h.T.Fatalf("of %d slots one is named %q", len(gs), g.Resource)
		}
		byNumber[n] = g
	}
	if len(gs) < 2 {
		h.T.Fatalf("the log has %d slots", len(gs))
	}
	return byNumber
}

// readSlots reads all slots at once.
func readSlots(h *kit.Actor, gs []backend.Grant) [][]backend.Raw {
	h.T.Helper()
	return each(readAll(h, gs), func(f backend.Fetched) []backend.Raw { return f.Messages })
}

var partitionChecks = []check{
	{"Partition/Slots_have_every_message_once_and_each_key_in_one", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		var es []backend.Event
		for n := range 600 {
			key := fmt.Sprint("customer ", n%97)
			if n%5 == 0 {
				key = ""
			}
			es = append(es, event(fmt.Sprint("t", n%3), key, n))
		}
		publish(t, be, es...)
		h := join(t, be, perPartition("t0", "t1"), long)
		slotOf, last, seen := map[string]int{}, map[string]string{}, map[string]bool{}
		used := 0
		for slot, ms := range readSlots(h, slotsOf(h)) {
			if len(ms) > 0 {
				used++
			}
			for _, m := range ms {
				if seen[m.ID] || m.Topic == "t2" {
					t.Fatalf("message %s of %s was read twice, or matches no topic", m.ID, m.Topic)
				}
				seen[m.ID] = true
				if m.Key == "" {
					continue
				}
				if s, ok := slotOf[m.Key]; ok && s != slot {
					t.Fatalf("key %q is in slots %d and %d", m.Key, s, slot)
				}
				slotOf[m.Key] = slot
				if m.ID <= last[m.Key] && len(m.ID) <= len(last[m.Key]) {
					t.Fatalf("key %q: message %s after %s", m.Key, m.ID, last[m.Key])
				}
				last[m.Key] = m.ID
			}
		}
		kit.Equal(t, "messages", len(seen), 400)
		if used < 32 {
			t.Fatalf("all messages are in %d slots", used)
		}
	})},
	{"Partition/Messages_without_a_key_are_spread", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		h := join(t, be, perPartition(), long)
		gs := slotsOf(h)
		es := make([]backend.Event, 2*len(gs))
		for n := range es {
			es[n] = event("x", "", n)
		}
		publish(t, be, es...)
		most, used := 0, 0
		for _, ms := range readSlots(h, gs) {
			most = max(most, len(ms))
			used += min(len(ms), 1)
		}
		if used < len(gs)/2 || most > 20 {
			t.Fatalf("%d messages are spread over %d of %d slots, %d in one", len(es), used, len(gs), most)
		}
	})},
	{"Partition/Slots_stay_the_same_for_later_messages", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		h := join(t, be, perPartition(), long)
		gs := slotsOf(h)
		for range 2 {
			publish(t, be, event("x", "a", 1), event("y", "a", 2))
		}
		slot := slices.IndexFunc(readSlots(h, gs), func(ms []backend.Raw) bool { return len(ms) > 0 })
		got := h.Reads(gs[slot].Resource, gs[slot].Cursor, 3)
		kit.Equal(t, "messages", len(got.Messages), 3)
		kit.Equal(t, "more", got.More, true)
		h.Commits(backend.Progress{Ref: gs[slot].Ref, Cursor: got.Next})
		h.Releases(kit.Refs(gs)...)
		publish(t, be, event("x", "a", 5))
		later := join(t, f.Again(t, be), perPartition(), long)
		for n, ms := range readSlots(later, slotsOf(later)) {
			want := 0
			if n == slot {
				want = 2 // the fourth and the fifth
			}
			kit.Equal(t, fmt.Sprint("messages of slot ", n), len(ms), want)
		}
	})},
	{"Partition/The_feed_names_the_slots_that_hold_the_news", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		h := join(t, be, perPartition("x"), long)
		gs := slotsOf(h)
		w := watch(t, be, h.Info)
		publish(t, f.Again(t, be), event("x", "a", 1), event("x", "b", 1), event("other", "c", 1), event("x", "", 1))
		var used []string
		for n, ms := range readSlots(h, gs) {
			if len(ms) > 0 {
				used = append(used, fmt.Sprint(n))
			}
		}
		w.names(func(n backend.News) []string { return n.Resources["c"] }, used...)
	})},
	{"Partition/All_slots_are_there_whoever_registers", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		h := join(t, be, perPartition(), long)
		kit.OK(t, be.Register(t.Context(), h.Info, []string{"no slot"}))
		all := h.Surveys().Resources
		kit.OK(t, f.Again(t, be).Register(t.Context(), h.Info, nil))
		kit.Equal(t, "slots", h.Surveys().Resources, all)
		kit.Equal(t, "acquired", len(slotsOf(h)), all)
	})},
}
