package leasetest

import (
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// versionPers are the kinds of consumers whose resources have messages of several topics, with
// the resource that messages of key k belong to; of a slot it depends on the backend.
var versionPers = []backend.Per{backend.PerGroup, backend.PerPartition, backend.PerStream}

// acquireAll takes every resource that is free.
func (h *holder) acquireAll() []backend.Grant {
	h.t.Helper()
	return h.acquire(1 << 20)
}

// readOn reads on in all resources, from where they are in at, and returns the topics of what it found.
func (h *holder) readOn(at map[string]backend.Cursor) (topics []string) {
	h.t.Helper()
	req := backend.FetchRequest{Consumer: h.info, MaxPayload: roomy}
	for r, c := range at {
		req.Items = append(req.Items, backend.FetchItem{Resource: r, From: c, Limit: 100})
	}
	for _, f := range must[[]backend.Fetched](h.t)(h.be.Fetch(h.t.Context(), req)) {
		for _, m := range f.Messages {
			topics = append(topics, m.Topic)
		}
		at[f.Resource] = f.Next
	}
	return topics
}

// reads waits until so many messages were read on.
func (h *holder) reads(at map[string]backend.Cursor, want ...string) {
	h.t.Helper()
	var got []string
	eventually(h.t, "the messages are read", func() bool {
		got = append(got, h.readOn(at)...)
		return len(got) >= len(want)
	})
	equalSlices(h.t, "topics read", got, want)
}

var versionChecks = func() (all []check) {
	for _, per := range versionPers {
		all = append(all, check{"Versions/Who_owns_reads_what_any_member_wants_per=" + per.String(), func(t testing.TB, f Factory) {
			be := f.New(t)
			needs(t, be, per)
			narrow := backend.ConsumerInfo{Name: "c", Per: per, Topics: []string{"a"}}
			wide := narrow
			wide.Topics = []string{"b", "a"}
			publish(t, be, event("b", "k", 1), event("a", "k", 2)) // nobody wants b yet
			old := join(t, be, narrow, long)
			ok(t, be.Register(t.Context(), narrow, nil))
			at := map[string]backend.Cursor{}
			for _, g := range old.acquireAll() {
				at[g.Resource] = g.Cursor
			}
			old.reads(at, "a")
			again := f.Again(t, be)
			fresh := join(t, again, wide, long)
			ok(t, again.Register(t.Context(), wide, nil))
			publish(t, be, event("b", "k", 3), event("c", "k", 4), event("a", "k", 5))
			old.reads(at, "b", "a")
			// Neither the older version nor its housekeeping takes that back.
			ok(t, be.Register(t.Context(), narrow, nil))
			must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{narrow}))
			publish(t, be, event("b", "k", 6), event("a", "k", 7))
			old.reads(at, "b", "a")
			// A process that crashes and comes back has missed nothing.
			ok(t, fresh.sess.Close(t.Context()))
			must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{narrow}))
			publish(t, be, event("b", "k", 8), event("a", "k", 9))
			old.reads(at, "b", "a")
		}})
	}
	return append(all,
		check{"Versions/What_becomes_visible_late_counts_by_the_patterns_of_then", func(t testing.TB, f Factory) {
			if f.PublishLate == nil {
				t.Skip("messages are visible in the order of their ids")
			}
			be := f.New(t)
			narrow := backend.ConsumerInfo{Name: "c", Per: backend.PerGroup, Topics: []string{"a"}}
			wide := narrow
			wide.Topics = []string{"a", "b"}
			old := join(t, be, narrow, long)
			ok(t, be.Register(t.Context(), narrow, nil))
			commit, _ := f.PublishLate(t, be, event("b", "k", 1))
			publish(t, be, event("a", "k", 2))
			g := old.acquireOne()
			at := map[string]backend.Cursor{g.Resource: g.Cursor}
			old.reads(at, "a")
			join(t, be, wide, long)
			ok(t, be.Register(t.Context(), wide, nil))
			commit()
			old.reads(at, "b")
		}},
		check{"Versions/Housekeeping_of_an_older_member_keeps_what_others_want", func(t testing.TB, f Factory) {
			be := f.New(t)
			wide := backend.ConsumerInfo{Name: "c", Per: backend.PerTopic, Topics: []string{"a", "b"}}
			narrow := wide
			narrow.Topics = []string{"a"}
			fresh := join(t, be, wide, long).register("a", "b")
			again := f.Again(t, be)
			join(t, again, narrow, long)
			ok(t, again.Register(t.Context(), narrow, []string{"a"}))
			other := join(t, again, backend.ConsumerInfo{Name: "other", Per: backend.PerTopic, Topics: []string{"*"}}, long).register("b")
			publish(t, be, event("b", "k", 1))
			g := other.acquireOne()
			other.commit(backend.Progress{Ref: g.Ref, Seq: 1, Cursor: other.fetch("b", g.Cursor, 10).Next})
			must[operate.MaintainReport](t)(again.Maintain(t.Context(), []backend.ConsumerInfo{narrow, other.info}))
			for _, g := range fresh.acquireAll() {
				if g.Resource == "b" {
					equal(t, "messages left", len(fresh.fetch("b", g.Cursor, 10).Messages), 1)
					return
				}
			}
			t.Fatal("the topic b has no lease")
		}},
		check{"Parked/Tells_why_and_for_how_long_over_handovers_until_that_changes", func(t testing.TB, f Factory) {
			be := f.New(t)
			parking := time.Now()
			a, g, id := laned(t, be, 1)
			a.commit(backend.Progress{Ref: g.Ref, Seq: 2, Park: []backend.Park{{ID: id[0], Lane: "k"}}})
			parked := time.Now()
			waited := func() time.Duration {
				t.Helper()
				p := a.parked()
				equal(t, "parked messages due", len(p.Messages), 1)
				return p.Messages[0].Waited
			}
			time.Sleep(20 * time.Millisecond)
			a.commit(backend.Progress{Ref: g.Ref, Seq: 3, Park: []backend.Park{{ID: id[0], Lane: "k"}}})
			a.release(g.Ref)
			g = a.acquireOne()
			least := time.Since(parked)
			w := waited()
			if most := time.Since(parking); w < least-clockSlack || w > most+clockSlack {
				t.Fatalf("it waited %v after a handover, want %v to %v", w, least, most)
			}
			for i, p := range []backend.Park{{Error: "e"}, {Attempt: 1, Error: "e"}} {
				time.Sleep(20 * time.Millisecond)
				changing := time.Now()
				p.ID, p.Lane = id[0], "k"
				a.commit(backend.Progress{Ref: g.Ref, Seq: int64(i) + 1, Park: []backend.Park{p}})
				w = waited()
				if most := time.Since(changing); w > most+clockSlack {
					t.Fatalf("it waited %v since it was parked as %+v, want up to %v", w, p, most)
				}
				equal(t, "error told", a.parked().Messages[0].Error, "e")
			}
		}},
	)
}()

// clockSlack is what two clocks of one machine may differ by.
const clockSlack = 5 * time.Millisecond
