package leasetest

import (
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

// versionPers are the kinds of consumers whose resources have messages of several topics, with
// the resource that messages of key k belong to; of a slot it depends on the backend.
var versionPers = []backend.Per{backend.PerGroup, backend.PerPartition, backend.PerStream}

// readOn reads on in all resources, from where they are in at, and returns the topics of what it found.
func readOn(h *kit.Actor, at map[string]backend.Cursor) (topics []string) {
	h.T.Helper()
	req := backend.FetchRequest{Consumer: h.Info, MaxPayload: kit.Roomy}
	for r, c := range at {
		req.Items = append(req.Items, backend.FetchItem{Resource: r, From: c, Limit: 100})
	}
	for _, f := range kit.Must[[]backend.Fetched](h.T)(h.Be.Fetch(h.T.Context(), req)) {
		for _, m := range f.Messages {
			topics = append(topics, m.Topic)
		}
		at[f.Resource] = f.Next
	}
	return topics
}

// reads waits until so many messages were read on.
func reads(h *kit.Actor, at map[string]backend.Cursor, want ...string) {
	h.T.Helper()
	var got []string
	kit.Eventually(h.T, "the messages are read", func() bool {
		got = append(got, readOn(h, at)...)
		return len(got) >= len(want)
	})
	equalSlices(h.T, "topics read", got, want)
}

var versionChecks = func() (all []check) {
	for _, per := range versionPers {
		all = append(all, check{"Versions/Who_owns_reads_what_any_member_wants_per=" + per.String(), fresh(func(t testing.TB, f Factory, be backend.Backend) {
			needsPer(t, be, per)
			narrow := backend.ConsumerInfo{Name: "c", Per: per, Topics: []string{"a"}}
			wide := narrow
			wide.Topics = []string{"b", "a"}
			publish(t, be, event("b", "k", 1), event("a", "k", 2)) // no member wants b yet
			old := join(t, be, narrow, long)
			kit.OK(t, be.Register(t.Context(), narrow, nil))
			at := map[string]backend.Cursor{}
			for _, g := range old.Acquires(1 << 20) {
				at[g.Resource] = g.Cursor
			}
			reads(old, at, "a")
			again := f.Again(t, be)
			fresh := join(t, again, wide, long)
			kit.OK(t, again.Register(t.Context(), wide, nil))
			publish(t, be, event("b", "k", 3), event("c", "k", 4), event("a", "k", 5))
			reads(old, at, "b", "a")
			// Neither the older version nor its housekeeping takes that back.
			kit.OK(t, be.Register(t.Context(), narrow, nil))
			kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{narrow}))
			publish(t, be, event("b", "k", 6), event("a", "k", 7))
			reads(old, at, "b", "a")
			// A process that crashes and comes back has missed no message.
			kit.OK(t, fresh.Session.Close(t.Context()))
			kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{narrow}))
			publish(t, be, event("b", "k", 8), event("a", "k", 9))
			reads(old, at, "b", "a")
		})})
	}
	return append(all,
		check{"Versions/What_becomes_visible_late_counts_by_the_patterns_of_then", func(t testing.TB, f Factory) {
			needs(t, f.PublishLate != nil, "messages are visible in the order of their ids")
			be := f.New(t)
			narrow := backend.ConsumerInfo{Name: "c", Per: backend.PerGroup, Topics: []string{"a"}}
			wide := narrow
			wide.Topics = []string{"a", "b"}
			old := join(t, be, narrow, long)
			kit.OK(t, be.Register(t.Context(), narrow, nil))
			commit, _ := f.PublishLate(t, be, event("b", "k", 1))
			publish(t, be, event("a", "k", 2))
			g := old.Takes()
			at := map[string]backend.Cursor{g.Resource: g.Cursor}
			reads(old, at, "a")
			join(t, be, wide, long)
			kit.OK(t, be.Register(t.Context(), wide, nil))
			commit()
			reads(old, at, "b")
		}},
		check{"Versions/Housekeeping_of_an_older_member_keeps_what_others_want", fresh(func(t testing.TB, f Factory, be backend.Backend) {
			wide := backend.ConsumerInfo{Name: "c", Per: backend.PerTopic, Topics: []string{"a", "b"}}
			narrow := wide
			narrow.Topics = []string{"a"}
			fresh := join(t, be, wide, long).Registers("a", "b")
			again := f.Again(t, be)
			join(t, again, narrow, long)
			kit.OK(t, again.Register(t.Context(), narrow, []string{"a"}))
			other := join(t, again, backend.ConsumerInfo{Name: "other", Per: backend.PerTopic, Topics: []string{"*"}}, long).Registers("b")
			publish(t, be, event("b", "k", 1))
			g := other.Takes()
			other.Commits(backend.Progress{Ref: g.Ref, Seq: 1, Cursor: other.Reads("b", g.Cursor, 10).Next})
			kit.Must[operate.MaintainReport](t)(again.Maintain(t.Context(), []backend.ConsumerInfo{narrow, other.Info}))
			b := grantOf(fresh, fresh.Acquires(9), "b")
			kit.Equal(t, "messages left", len(fresh.Reads("b", b.Cursor, 10).Messages), 1)
		})},
		check{"Parked/Tells_why_and_for_how_long_over_handovers_until_that_changes", fresh(func(t testing.TB, f Factory, be backend.Backend) {
			parking := time.Now()
			a, g, id := laned(t, be, 1)
			a.Commits(backend.Progress{Ref: g.Ref, Seq: 2, Park: []backend.Park{{ID: id[0], Lane: "k"}}})
			parked := time.Now()
			waited := func() time.Duration {
				t.Helper()
				p := a.Due()
				kit.Equal(t, "parked messages due", len(p.Messages), 1)
				return p.Messages[0].Waited
			}
			time.Sleep(20 * time.Millisecond)
			a.Commits(backend.Progress{Ref: g.Ref, Seq: 3, Park: []backend.Park{{ID: id[0], Lane: "k"}}})
			a.Releases(g.Ref)
			g = a.Takes()
			least := time.Since(parked)
			w := waited()
			if most := time.Since(parking); w < least-clockSlack || w > most+clockSlack {
				t.Fatalf("it waited %v after a handover, want %v to %v", w, least, most)
			}
			for i, p := range []backend.Park{{Error: "e"}, {Attempt: 1, Error: "e"}} {
				time.Sleep(20 * time.Millisecond)
				changing := time.Now()
				p.ID, p.Lane = id[0], "k"
				a.Commits(backend.Progress{Ref: g.Ref, Seq: int64(i) + 1, Park: []backend.Park{p}})
				w = waited()
				if most := time.Since(changing); w > most+clockSlack {
					t.Fatalf("it waited %v since it was parked as %+v, want up to %v", w, p, most)
				}
				kit.Equal(t, "error told", a.Due().Messages[0].Error, "e")
			}
		})},
	)
}()

// clockSlack is what two clocks of one machine may differ by.
const clockSlack = 5 * time.Millisecond
