package leasetest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

var sessionChecks = []check{
	{"Names/Of_consumers_that_mislead_are_refused", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		for name, why := range map[string]string{
			"": "is empty", "a\x00b": "U+0000", "a\nb": "U+000A", "a\tb": "U+0009", "a\x1b[2Jb": "U+001B", "a\u202eb": "U+202E", "a\u200bb": "U+200B",
			"a\u00a0b": "U+00A0", "a\ufeffb": "U+FEFF", "a\u3164b": "U+3164", "a\ufe0fb": "U+FE0F", "a\xffb": "not UTF-8", strings.Repeat("n", 64): "64 bytes",
			strings.Repeat("\u202e", 1<<20): "bytes long",
		} {
			info := perTopic()
			info.Name = name
			_, err := be.OpenSession(t.Context(), backend.SessionSpec{ID: kit.ID(), TTL: long, Consumers: []string{"c", name}})
			for call, err := range map[string]error{
				"Check": be.Check(t.Context(), []backend.ConsumerInfo{perTopic(), info}), "OpenSession": err, "Register": be.Register(t.Context(), info, []string{"x"}),
			} {
				if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "give the consumer") || len(err.Error()) > 1000 {
					t.Errorf("%s of a consumer %.20q: %v", call, name, err)
				}
			}
			kit.Equal(t, "members", len(kit.Must[[]backend.Survey](t)(be.Survey(t.Context(), []string{"c"}))[0].Members), 0)
		}
		if op := be.Capabilities().Operator; op != nil {
			kit.Equal(t, "consumers", len(kit.Must[[]operate.ConsumerStatus](t)(op.Status(t.Context()))), 0)
		}
	})},
	{"Names/Of_consumers_may_be_any_text_that_is_seen", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		for _, name := range []string{"billing", "Billing v2.1_x-y", "a/b*c%d?e=f&g#h", `'";--\`, "größe", "注文", strings.Repeat("n", 63)} {
			info := perTopic()
			info.Name = name
			kit.OK(t, be.Check(t.Context(), []backend.ConsumerInfo{info}))
			kit.Equal(t, "resource of "+name, join(t, be, info, long).Registers("x").Takes().Resource, "x")
		}
	})},
	{"Session/Heartbeat_keeps_it_beyond_its_TTL", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), short).Registers("x")
		g := a.Takes()
		b := join(t, f.Again(t, be), perTopic(), long)
		for end := time.Now().Add(2 * short); time.Now().Before(end); time.Sleep(short / 5) {
			kit.OK(t, a.Heartbeat())
			if got := b.Acquires(1); len(got) > 0 {
				t.Fatalf("a lease was taken from a session that sends heartbeats: %+v", got)
			}
		}
		a.Commits(backend.Progress{Ref: g.Ref})
	})},
	{"Session/Ends_terminally_when_it_expires", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), short).Registers("x", "y")
		a.Acquires(1)
		b := join(t, f.Again(t, be), perTopic(), long)
		kit.Eventually(t, "the session is no longer counted", func() bool { return len(b.Surveys().Members) == 1 })
		kit.Lost(t, "heartbeat of an expired session", a.Heartbeat())
		_, err := be.Acquire(t.Context(), a.Request(1))
		kit.Lost(t, "acquire of an expired session", err)
		equalSlices(t, "taken over", resources(b.Acquires(2)), []string{"x", "y"})
		for range 3 {
			kit.Lost(t, "heartbeat after takeover", a.Heartbeat())
		}
		kit.Equal(t, "members", len(b.Surveys().Members), 1)
	})},
	{"Session/Close_frees_its_leases_at_once_and_no_others", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		other := f.Again(t, be)
		a := join(t, be, perTopic(), long).Registers("1", "2", "3", "4")
		held := a.Acquires(2)
		b := join(t, other, perTopic(), long)
		kept := b.Acquires(2)
		kit.OK(t, a.Session.Close(t.Context()))
		c := join(t, other, perTopic(), long)
		got := c.Acquires(4)
		kit.Equal(t, "leases freed", len(got), 2)
		for _, g := range got {
			rises(t, g, grantOf(a, held, g.Resource))
			kit.Equal(t, "suspicion after a clean end", g.Suspicion, 0)
		}
		for _, g := range kept {
			b.Commits(backend.Progress{Ref: g.Ref})
		}
		kit.Lost(t, "heartbeat after close", a.Heartbeat())
	})},
	{"Session/Close_can_be_repeated", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a := join(t, be, perTopic(), long).Registers("x")
		a.Takes()
		kit.OK(t, a.Session.Close(t.Context()))
		b := join(t, be, perTopic(), long)
		g := b.Takes()
		kit.OK(t, a.Session.Close(t.Context()))
		b.Commits(backend.Progress{Ref: g.Ref})
	})},
	{"Session/Must_be_open_to_acquire", fresh(func(t testing.TB, f Factory, be backend.Backend) { // no call revives one
		join(t, be, perTopic(), long).Registers("x")
		_, err := be.Acquire(t.Context(), backend.AcquireRequest{Session: kit.ID(), Consumer: perTopic(), Max: 1, Attempt: kit.ID()})
		kit.Lost(t, "acquire without a session", err)
	})},
	{"Session/Is_a_member_of_its_consumers_only", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		var sorted []string
		for _, consumers := range [][]string{{"c"}, {"c", "g"}, {"g"}} {
			id := kit.ID()
			sess := kit.Must[backend.Session](t)(be.OpenSession(t.Context(), backend.SessionSpec{ID: id, TTL: long, Consumers: consumers}))
			t.Cleanup(func() { sess.Close(t.Context()) })
			if slices.Contains(consumers, "c") {
				sorted = append(sorted, id)
			}
		}
		slices.Sort(sorted)
		got := kit.Must[[]backend.Survey](t)(be.Survey(t.Context(), []string{"c", "nobody"}))
		kit.Equal(t, "surveys", len(got), 2)
		equalSlices(t, "members of c, by id", sessions(got[0]), sorted)
		kit.Equal(t, "members of an unknown consumer", len(got[1].Members), 0)
	})},
}
