package leasetest

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
)

func perPartition(patterns ...string) backend.ConsumerInfo {
	if len(patterns) == 0 {
		patterns = []string{"*"}
	}
	return backend.ConsumerInfo{Name: "c", Per: backend.PerPartition, Topics: patterns}
}

// slots acquires all slots there are, and returns their grants by number.
func (h *holder) slots() []backend.Grant {
	h.t.Helper()
	ok(h.t, h.be.Register(h.t.Context(), h.info, nil))
	gs := h.acquire(1 << 20)
	byNumber := make([]backend.Grant, len(gs))
	for _, g := range gs {
		n, err := strconv.Atoi(g.Resource)
		if err != nil || n < 0 || n >= len(gs) || byNumber[n].Resource != "" {
			h.t.Fatalf("of %d slots one is named %q", len(gs), g.Resource)
		}
		byNumber[n] = g
	}
	if len(gs) < 2 {
		h.t.Fatalf("the log has %d slots", len(gs))
	}
	return byNumber
}

// read reads all slots at once.
func (h *holder) read(gs []backend.Grant) [][]backend.Raw {
	h.t.Helper()
	req := backend.FetchRequest{Consumer: h.info, MaxPayload: roomy}
	for _, g := range gs {
		req.Items = append(req.Items, backend.FetchItem{Resource: g.Resource, From: g.Cursor, Limit: 1000})
	}
	fs := must[[]backend.Fetched](h.t)(h.be.Fetch(h.t.Context(), req))
	out := make([][]backend.Raw, len(fs))
	for i, f := range fs {
		equal(h.t, "slot", f.Resource, gs[i].Resource)
		out[i] = f.Messages
	}
	return out
}

var partitionChecks = []check{
	{"Partition/Slots_have_every_message_once_and_each_key_in_one", func(t testing.TB, f Factory) {
		be := f.New(t)
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
		for slot, ms := range h.read(h.slots()) {
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
		equal(t, "messages", len(seen), 400)
		if used < 32 {
			t.Fatalf("all messages are in %d slots", used)
		}
	}},
	{"Partition/Messages_without_a_key_are_spread", func(t testing.TB, f Factory) {
		be := f.New(t)
		h := join(t, be, perPartition(), long)
		gs := h.slots()
		es := make([]backend.Event, 2*len(gs))
		for n := range es {
			es[n] = event("x", "", n)
		}
		publish(t, be, es...)
		most, used := 0, 0
		for _, ms := range h.read(gs) {
			most = max(most, len(ms))
			used += min(len(ms), 1)
		}
		if used < len(gs)/2 || most > 20 {
			t.Fatalf("%d messages are spread over %d of %d slots, %d in one", len(es), used, len(gs), most)
		}
	}},
	{"Partition/Slots_stay_the_same_for_later_messages", func(t testing.TB, f Factory) {
		be := f.New(t)
		h := join(t, be, perPartition(), long)
		gs := h.slots()
		for range 2 {
			publish(t, be, event("x", "a", 1), event("y", "a", 2))
		}
		slot := slices.IndexFunc(h.read(gs), func(ms []backend.Raw) bool { return len(ms) > 0 })
		got := h.fetch(gs[slot].Resource, gs[slot].Cursor, 3)
		equal(t, "messages", len(got.Messages), 3)
		equal(t, "more", got.More, true)
		h.commit(backend.Progress{Ref: gs[slot].Ref, Cursor: got.Next})
		h.release(refs(gs)...)
		publish(t, be, event("x", "a", 5))
		later := join(t, f.Again(t, be), perPartition(), long)
		for n, ms := range later.read(later.slots()) {
			want := 0
			if n == slot {
				want = 2 // the fourth and the fifth
			}
			equal(t, fmt.Sprint("messages of slot ", n), len(ms), want)
		}
	}},
	{"Partition/The_feed_names_the_slots_that_hold_the_news", func(t testing.TB, f Factory) {
		be := f.New(t)
		h := join(t, be, perPartition("x"), long)
		gs := h.slots()
		w := watch(t, be, h.info)
		publish(t, f.Again(t, be), event("x", "a", 1), event("x", "b", 1), event("other", "c", 1), event("x", "", 1))
		missing := map[string]bool{}
		for n, ms := range h.read(gs) {
			if len(ms) > 0 {
				missing[fmt.Sprint(n)] = true
			}
		}
		w.until("slots", func(n backend.News) bool {
			for _, r := range n.Resources["c"] {
				delete(missing, r)
			}
			return len(missing) == 0
		})
	}},
	{"Partition/All_slots_are_there_whoever_registers", func(t testing.TB, f Factory) {
		be := f.New(t)
		h := join(t, be, perPartition(), long)
		ok(t, be.Register(t.Context(), h.info, []string{"no slot"}))
		all := h.survey().Resources
		ok(t, f.Again(t, be).Register(t.Context(), h.info, nil))
		equal(t, "slots", h.survey().Resources, all)
		equal(t, "acquired", len(h.slots()), all)
	}},
}
