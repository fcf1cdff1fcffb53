package leasepg_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// A call for many leases costs as much for each of them as one for few, whatever ANALYZE has seen of the tables: no row
// of a call is compared with each other one, and no lease is looked at that it is not for.
func TestManyCostAsFew(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, pgtest.Config("shared_preload_libraries", "pg_stat_statements"), pgtest.Config("fsync", "off"), pgtest.Config("autovacuum", "off"))
	none := func(*meter) {}
	analyze := func(m *meter) { exec(t, m.pool, "ANALYZE") }
	for name, seen := range map[string]struct{ before, after func(*meter) }{
		"never":      {none, none},
		"empty":      {analyze, none},
		"with_all":   {none, analyze},
		"one_a_head": {func(m *meter) { others(t, m, 500, 1); analyze(m) }, none},
		"much_else":  {none, func(m *meter) { others(t, m, 2, 20_000); analyze(m) }},
	} {
		t.Run(name, func(t *testing.T) {
			be, m := measuredDB(t, server, "bulk_"+name)
			seen.before(m)
			id := crowded(t, be)
			seen.after(m)
			cheap := m.perLease(id, few)
			for step, took := range m.perLease(id, many) {
				if took > 2*cheap[step]+10*time.Microsecond {
					t.Errorf("%s: %v for each of %d, %v for each of %d", step, took, many, cheap[step], few)
				}
			}
		})
	}
}

// others are consumers with so many leases each.
func others(t *testing.T, m *meter, consumers, leases int) {
	t.Helper()
	exec(t, m.pool, `INSERT INTO leasegen.lease (consumer, resource) SELECT 'other-' || c, 'topic-' || l FROM generate_series(1, $1::int) c, generate_series(1, $2::int) l`,
		consumers, leases)
}

const (
	few  = 100
	many = 2000
)

// crowded joins where so many topics have two messages each.
func crowded(t *testing.T, be *leasepg.Backend) *kit.Actor {
	t.Helper()
	topics := kit.Topics(few + many)
	var events []backend.Event
	for _, topic := range topics {
		events = append(events, kit.Events(topic, 2)...)
	}
	kit.OK(t, be.Publish(t.Context(), events))
	kit.OK(t, be.Register(t.Context(), topical, topics))
	id := kit.Join(t, be, topical, time.Hour, rowed)
	id.As(rowed).Registers(kit.Topics(few + many)...)
	return id
}

// perLease is what each step for so many leases costs the server, for each lease, at best: in processor time, which is the same
// where others use the processors as well.
func (m *meter) perLease(id *kit.Actor, n int) map[string]time.Duration {
	m.t.Helper()
	best := map[string]time.Duration{}
	note := func(step string, what func()) {
		before := m.processor()
		what()
		each := (m.processor() - before) / time.Duration(n)
		if was, ok := best[step]; !ok || each < was {
			best[step] = each
		}
	}
	var grants []backend.Grant
	for range 3 { // plans may change when they were used a few times
		if len(grants) > 0 {
			note("released", func() { id.Releases(kit.Refs(grants)...) })
		}
		note("acquired", func() { grants = id.Acquires(n) })
	}
	rows := id.As(rowed)
	for range 3 {
		var streams []backend.Grant
		note("acquired as rows", func() { streams = rows.Acquires(n) })
		note("renewed", func() {
			lost, err := id.Be.Capabilities().Rows.Renew(m.t.Context(), id.ID, rowed, kit.Refs(streams))
			kit.OK(m.t, err)
			kit.Equal(m.t, "leases that were not renewed", len(lost), 0)
		})
		note("retired", func() { rows.Retires(kit.Refs(streams)...) })
		names := make([]string, n)
		for i, g := range streams {
			names[i] = g.Resource
		}
		note("registered", func() { rows.Registers(names...) })
		events := kit.Events("other", n)
		for i := range events {
			events[i].ID = kit.ID()
		}
		note("published", func() { kit.OK(m.t, id.Be.Publish(m.t.Context(), events)) })
	}
	req := backend.FetchRequest{Consumer: topical, MaxPayload: 1 << 20}
	for _, g := range grants {
		req.Items = append(req.Items, backend.FetchItem{Resource: g.Resource, From: g.Cursor, Limit: 5})
	}
	fetched, err := id.Be.Fetch(m.t.Context(), req)
	kit.OK(m.t, err)
	progress := func(fill func(i int, p *backend.Progress)) []backend.Progress {
		ps := make([]backend.Progress, len(grants))
		for i, g := range grants {
			ps[i] = backend.Progress{Ref: g.Ref, Cursor: fetched[i].Next}
			fill(i, &ps[i])
		}
		return ps
	}
	for round := range 3 {
		seq := int64(round*10 + 1)
		message := func(i, n int) string { return fetched[i].Messages[n].ID }
		for n, step := range []struct {
			name string
			fill func(i int, p *backend.Progress)
		}{
			{"moved", func(int, *backend.Progress) {}},
			{"parked", func(i int, p *backend.Progress) {
				p.Park = []backend.Park{{ID: message(i, 0), Lane: "k", Attempt: 1}, {ID: message(i, 1), Lane: "k", Attempt: 1}}
			}},
			{"again", func(i int, p *backend.Progress) { p.Park = []backend.Park{{ID: message(i, 0), Lane: "k", Attempt: 2}} }},
			{"done", func(i int, p *backend.Progress) { p.Done = []string{message(i, 0)} }},
			{"dead", func(i int, p *backend.Progress) {
				p.Dead = []backend.Dead{{ID: message(i, 1), Attempt: 3, Reason: "no"}}
			}},
		} {
			note(step.name, func() {
				id.Commits(progress(func(i int, p *backend.Progress) { p.Seq = seq + int64(n); step.fill(i, p) })...)
			})
		}
	}
	return best
}

// processor is the processor time that the processes of the database's connections have had.
func (m *meter) processor() time.Duration {
	m.t.Helper()
	var sum time.Duration
	for _, pid := range query[[]int](m.t, m.pool, "SELECT array_agg(pid) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'") {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		kit.OK(m.t, err)
		ns, _, _ := strings.Cut(string(stat), " ")
		sum += time.Duration(kit.Must[int64](m.t)(strconv.ParseInt(ns, 10, 64)))
	}
	return sum
}

// Acquiring a lease reads what is parked of it, and no other parked message of the consumer, whatever ANALYZE has seen.
func TestAcquiringReadsNoOthersParked(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, pgtest.Config("shared_preload_libraries", "pg_stat_statements"), pgtest.Config("fsync", "off"), pgtest.Config("autovacuum", "off"))
	for name, analyze := range map[string]string{"never": "SELECT", "seen": "ANALYZE"} {
		t.Run(name, func(t *testing.T) {
			be, m := measuredDB(t, server, "parked_"+name)
			kit.OK(t, be.Register(t.Context(), topical, append(kit.Topics(400), "mine")))
			exec(t, m.pool, `INSERT INTO leasegen.parked (consumer, resource, lane, message_id, topic, key, kind, payload, published_at, attempt, next_at, error)
				SELECT $1, CASE WHEN n <= 3 THEN 'mine' ELSE ($2::text[])[1 + n % 400] END, 'lane-' || n % 1000, n, 't', 'k', 'k', '',
				       clock_timestamp(), 1, clock_timestamp() + interval '1 day', 'no' FROM generate_series(1, 200000) n`, topical.Name, kit.Topics(400))
			exec(t, m.pool, analyze)
			id := kit.Join(t, be, topical, time.Hour)
			var grants []backend.Grant
			costs := m.costs(func() {
				for len(grants) == 0 || grants[0].Resource != "mine" {
					grants = id.Acquires(1)
				}
			})
			kit.Equal(t, "lanes", len(grants[0].Lanes), 3)
			if pages := costs["GrantedLanes"].pages; pages == 0 || pages > 12 { // 18, where it began with other leases
				t.Errorf("the lanes of a lease were found in %d pages on average, want few", pages)
			}
		})
	}
}
