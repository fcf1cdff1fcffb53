package leasepg_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// The bound of one statement, in pages of 8 kB: counted by the server, so that it is the same on every
// machine.
const scaleBuffers = 5000

// scaleDepth is what a hundred descents cost more where indexes are deeper.
const scaleDepth = 500

// scaleGrowing are statements that are known to grow, slowly: with the leases of a consumer, with the partitions of the log, and with the parked lanes of what is granted.
var scaleGrowing = []string{"Survey", "RegisterTopics", "SweepStreams", "GrantedLanes"}

// scaleWaiting are statements that wait, for others or for a while.
var scaleWaiting = []string{"WaitForLock", "WaitForNudge"}

// scaleMaking are statements that make partitions and indexes, each of them once.
var scaleMaking = []string{"EnsureSegments", "IndexLog"}

// scaleTime is what the slowest call of a statement may take where bare requests take no time.
const scaleTime = 50 * time.Millisecond

// callCost is what the calls of one statement cost the server.
type callCost struct {
	pages int           // touched by one call, on average
	took  time.Duration // by the slowest one
}

// meter reads what statements did on a server with pg_stat_statements.
type meter struct {
	t    testing.TB
	pool *pgxpool.Pool
}

var queryName = regexp.MustCompile(`-- name: (\w+)`)

// costs runs something and returns what each of leasegen's statements cost.
func (m *meter) costs(what func()) map[string]callCost {
	m.t.Helper()
	exec(m.t, m.pool, "SELECT pg_stat_statements_reset()")
	what()
	rows, err := m.pool.Query(context.Background(), `SELECT query, ((shared_blks_hit + shared_blks_read) / calls)::int, max_exec_time
		FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()`)
	kit.OK(m.t, err)
	out := map[string]callCost{}
	var (
		text  string
		pages int
		ms    float64
	)
	_, err = pgx.ForEachRow(rows, []any{&text, &pages, &ms}, func() error {
		if name := queryName.FindStringSubmatch(text); name != nil {
			was := out[name[1]]
			out[name[1]] = callCost{max(was.pages, pages), max(was.took, time.Duration(ms*float64(time.Millisecond)))}
		}
		return nil
	})
	kit.OK(m.t, err)
	return out
}

// measured starts a server that counts what statements do.
func measured(t testing.TB) *pgtest.Server {
	t.Helper()
	return pgtest.Start(t, pgtest.Config("shared_preload_libraries", "pg_stat_statements"), pgtest.Config("fsync", "off"),
		pgtest.Config("shared_buffers", "256MB"), pgtest.Config("max_connections", "200"), pgtest.Config("pg_stat_statements.max", "2000"),
		pgtest.Config("max_prepared_transactions", "2"), pgtest.Config("jit", "on"))
}

func measuredDB(t testing.TB, s *pgtest.Server, name string) (*leasepg.Backend, *meter) {
	t.Helper()
	be, pool := migratedAt(t, s.DB(name))
	exec(t, pool, "CREATE EXTENSION pg_stat_statements")
	return be, &meter{t, pool}
}

var scaled = struct{ topics, slots, streams, group, idle backend.ConsumerInfo }{
	topics:  backend.ConsumerInfo{Name: "topics", Per: backend.PerTopic, Topics: []string{"*"}, Keep: 1000 * time.Hour, Max: 1 << 30, OnceKeep: 1000 * time.Hour},
	slots:   backend.ConsumerInfo{Name: "slots", Per: backend.PerPartition, Topics: []string{"*"}},
	streams: backend.ConsumerInfo{Name: "streams", Per: backend.PerStream, Topics: []string{"*"}},
	group:   backend.ConsumerInfo{Name: "group", Per: backend.PerGroup, Topics: []string{"*"}},
	idle:    backend.ConsumerInfo{Name: "idle", Per: backend.PerTopic, Topics: []string{"*"}},
}

// fillScale fills a database by SQL. Nearly all messages of a partition are of one transaction, and half of them of
// four topics: that is what ANALYZE sees.
func fillScale(t testing.TB, be *leasepg.Backend, m *meter, messages int) {
	t.Helper()
	topics, keys, kept := min(max(messages/100, 100), 40_000), max(messages/50, 100), messages/10
	const most = 1_000_000 // as many as a partition has
	for from := 0; from < messages; from += most {
		exec(t, m.pool, "SELECT leasegen.ensure_segments($1)", from+3*most)
		exec(t, m.pool, `INSERT INTO leasegen.message (topic, key, kind, payload)
			SELECT CASE WHEN g % 2 = 0 THEN 'topic-' || g % 4 ELSE 'topic-' || g % $3 END, 'key-' || g % $4, 'kind', 'payload'
			FROM generate_series($1::int + 1, $2::int) g`, from, min(from+most, messages), topics, keys)
	}
	// Empty partitions like those before and after.
	exec(t, m.pool, "SELECT setval('leasegen.message_id_seq', (last_value / 1000000 + 1) * 1000000 + 10) FROM leasegen.message_id_seq")
	exec(t, m.pool, `INSERT INTO leasegen.message (topic, key, kind, payload) SELECT 'topic-' || g % 4, 'key-' || g, 'kind', 'payload' FROM generate_series(1, 1000) g`)
	for _, c := range []backend.ConsumerInfo{scaled.topics, scaled.slots, scaled.streams, scaled.group, scaled.idle} {
		kit.OK(t, be.Register(t.Context(), c, nil))
	}
	exec(t, m.pool, `INSERT INTO leasegen.parked (consumer, resource, lane, message_id, topic, key, kind, payload, published_at, attempt, next_at, error)
		SELECT 'topics', 'topic-' || g % $2, 'key-' || g, g, 'topic-' || g % $2, 'key-' || g, 'kind', 'payload', clock_timestamp(), 1,
		       clock_timestamp() + CASE WHEN g % 2 = 0 THEN interval '0' ELSE interval '1 hour' END, 'error' FROM generate_series(1, $1::int) g`, kept, topics)
	exec(t, m.pool, `INSERT INTO leasegen.dead_letter (consumer, resource, message_id, topic, key, kind, payload, published_at, failed_at, attempts, reason)
		SELECT 'topics', 'topic-' || g % $2, g, 'topic-' || g % $2, 'key-' || g, 'kind', 'payload', clock_timestamp(), clock_timestamp(), 1, 'reason'
		FROM generate_series(1, $1::int) g`, kept, topics)
	exec(t, m.pool, "INSERT INTO leasegen.published_id (topic, id) SELECT 'topic-1', 'id-' || g FROM generate_series(1, $1::int) g", kept)
	exec(t, m.pool, "INSERT INTO leasegen.once (consumer, key, done) SELECT 'topics', 'key-' || g, true FROM generate_series(1, $1::int) g", kept)
	crowd(t, be, messages)
	exec(t, m.pool, "UPDATE leasegen.lease SET wanted = false, rested_at = clock_timestamp() - interval '1 year' WHERE consumer = 'streams'")
	exec(t, m.pool, "VACUUM ANALYZE")
}

// crowd adds up to 500 consumers, and up to 100 sessions that share the leases of one.
func crowd(t testing.TB, be *leasepg.Backend, messages int) {
	t.Helper()
	all := []backend.ConsumerInfo{scaled.topics, scaled.slots, scaled.streams, scaled.group, scaled.idle}
	for i := range messages / 20_000 {
		other := backend.ConsumerInfo{Name: fmt.Sprint("other-", i), Per: backend.PerGroup, Topics: []string{"*"}}
		kit.OK(t, be.Register(t.Context(), other, nil))
		all = append(all, other)
	}
	for range messages / 100_000 {
		session := kit.Join(t, be, all[0], time.Hour, all[1:]...)
		session.As(scaled.idle).Acquires(400)
	}
}

// caughtUp sets the cursors of a consumer to the present.
func caughtUp(t testing.TB, pool *pgxpool.Pool, consumer string) {
	t.Helper()
	exec(t, pool, `UPDATE leasegen.lease SET pos = (SELECT max(id) FROM leasegen.message), snap = pg_current_snapshot(), x = pg_current_xact_id() WHERE consumer = $1`, consumer)
}

// steadyUse does what processes do all the time, and returns what each statement touched.
func steadyUse(t testing.TB, be *leasepg.Backend, m *meter) map[string]callCost {
	t.Helper()
	out := map[string]callCost{}
	measure := func(use string, what func()) {
		t.Helper()
		for name, cost := range m.costs(what) {
			out[use+": "+name] = cost
		}
	}
	ctx := t.Context()
	for _, c := range []backend.ConsumerInfo{scaled.topics, scaled.slots, scaled.streams, scaled.group} {
		caughtUp(t, m.pool, c.Name)
	}
	exec(t, m.pool, "VACUUM leasegen.lease")
	session := kit.Join(t, be, scaled.topics, time.Hour, scaled.slots, scaled.streams, scaled.group)
	measure("start", func() {
		for _, c := range []backend.ConsumerInfo{scaled.topics, scaled.slots, scaled.streams, scaled.group} {
			kit.OK(t, be.Register(ctx, c, nil))
		}
	})
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(ctx, []backend.ConsumerInfo{scaled.topics, scaled.slots, scaled.streams, scaled.group}))
	defer feed.Close()
	const some = 100
	var names []string
	for i := range some {
		names = append(names, fmt.Sprint("topic-", i%20))
	}
	publish := func() {
		var es []backend.Event
		for i := range some {
			es = append(es, backend.Event{Topic: names[i], Key: fmt.Sprint("key-", i), Kind: "kind", Payload: []byte("payload")})
		}
		kit.OK(t, be.Publish(ctx, es))
	}
	var grants map[string][]backend.Grant
	measure("acquire", func() {
		grants = map[string][]backend.Grant{
			scaled.topics.Name: session.Acquires(20),
			scaled.slots.Name:  session.As(scaled.slots).Acquires(256),
			scaled.group.Name:  session.As(scaled.group).Acquires(1),
		}
	})
	measure("acquire none", func() {
		for _, c := range []backend.ConsumerInfo{scaled.slots, scaled.group} {
			session.As(c).Acquires(256)
		}
	})
	read := func(c backend.ConsumerInfo, from map[string]backend.Cursor, resources []string) (n int) {
		t.Helper()
		req := backend.FetchRequest{Consumer: c, MaxPayload: 1 << 20}
		for _, r := range resources {
			req.Items = append(req.Items, backend.FetchItem{Resource: r, From: from[r], Limit: min(20, 4000/len(resources))})
		}
		for _, f := range kit.Must[[]backend.Fetched](t)(be.Fetch(ctx, req)) {
			n += len(f.Messages)
			from[f.Resource] = f.Next
		}
		return n
	}
	at := map[string]map[string]backend.Cursor{}
	var topics, slots []string
	for i := range 20 {
		topics = append(topics, fmt.Sprint("topic-", i))
	}
	for i := range 256 {
		slots = append(slots, fmt.Sprint(i))
	}
	keys := []string{}
	for i := range 20 {
		keys = append(keys, fmt.Sprint("key-", i))
	}
	stored := func(c backend.ConsumerInfo, resources []string) {
		t.Helper()
		exec(t, m.pool, "UPDATE leasegen.lease SET session = NULL, wanted = true WHERE consumer = $1 AND resource = ANY ($2)", c.Name, resources)
		exec(t, m.pool, "UPDATE leasegen.lease SET session = $3 WHERE consumer = $1 AND resource <> ALL ($2) AND session IS NULL AND wanted", c.Name, resources, session.ID)
		at[c.Name] = map[string]backend.Cursor{}
		for _, g := range session.As(c).Acquires(len(resources)) {
			at[c.Name][g.Resource] = g.Cursor
			grants[c.Name] = append(grants[c.Name], g)
		}
	}
	all := []struct {
		c         backend.ConsumerInfo
		resources []string
	}{{scaled.topics, topics}, {scaled.slots, slots}, {scaled.streams, keys}, {scaled.group, []string{backend.Whole}}}
	for _, a := range all {
		stored(a.c, a.resources)
	}
	measure("publish", publish)
	measure("feed", func() {
		for range 3 {
			kit.Must[backend.News](t)(feed.Next(ctx))
		}
	})
	for _, a := range all {
		measure("read "+a.c.Name, func() {
			if n := read(a.c, at[a.c.Name], a.resources); n < 20 {
				t.Errorf("%s: %d messages read", a.c.Name, n)
			}
		})
	}
	// Beside a transaction that stays open, and then is late.
	tx := begin(t, m.pool)
	_, err := tx.Exec(ctx, `INSERT INTO leasegen.message (topic, key, kind, payload) SELECT 'topic-' || g % 20, 'key-' || g % 20, 'kind', 'payload' FROM generate_series(1, 1000) g`)
	kit.OK(t, err)
	publish()
	for _, a := range all {
		measure("read "+a.c.Name+" beside a writer", func() { read(a.c, at[a.c.Name], a.resources) })
	}
	publish()
	for _, a := range all {
		measure("read "+a.c.Name+" beside a writer, again", func() { read(a.c, at[a.c.Name], a.resources) })
	}
	kit.OK(t, tx.Commit(ctx))
	for _, a := range all {
		measure("read "+a.c.Name+" late", func() {
			if n := read(a.c, at[a.c.Name], a.resources); n < 20 {
				t.Errorf("%s: %d late messages read", a.c.Name, n)
			}
		})
	}
	for _, a := range all {
		measure("read "+a.c.Name+" from the beginning", func() {
			if n := read(a.c, map[string]backend.Cursor{}, a.resources); n < 20 {
				t.Errorf("%s: %d messages read from the beginning", a.c.Name, n)
			}
		})
	}
	measure("commit", func() {
		var ps []backend.Progress
		for _, g := range grants[scaled.slots.Name][:100] {
			ps = append(ps, backend.Progress{Ref: g.Ref, Cursor: g.Cursor})
		}
		_, err := be.Commit(ctx, session.ID, scaled.slots.Name, ps)
		kit.OK(t, err)
	})
	measure("parked", func() {
		kit.Must[backend.Parked](t)(be.FetchParked(ctx, backend.ParkedRequest{Consumer: scaled.topics, Session: session.ID, Limit: 100, MaxPayload: 1 << 20}))
	})
	measure("survey", func() {
		kit.Must[[]backend.Survey](t)(be.Survey(ctx, []string{"topics", "slots", "streams", "group"}))
	})
	measure("retire", func() {
		kit.OK(t, be.Retire(ctx, session.ID, scaled.streams.Name, kit.Refs(grants[scaled.streams.Name])))
	})
	measure("wanted again", func() { kit.OK(t, be.Register(ctx, scaled.streams, keys)) })
	measure("wanted still", func() { kit.OK(t, be.Register(ctx, scaled.streams, keys)) })
	measure("release", func() {
		kit.OK(t, be.Release(ctx, session.ID, scaled.slots.Name, kit.Refs(grants[scaled.slots.Name])[:100]))
	})
	measure("heartbeat", func() { kit.OK(t, session.Heartbeat()) })
	measure("maintain", func() {
		kit.Must[operate.MaintainReport](t)(be.Maintain(ctx, []backend.ConsumerInfo{scaled.topics, scaled.slots, scaled.streams, scaled.group}))
	})
	other := kit.Join(t, be, scaled.topics, time.Hour, scaled.slots, scaled.streams, scaled.group)
	measure("close", func() { kit.OK(t, other.Session.Close(ctx)) })
	return out
}

// TestScale: no statement in steady use touches more where there is more, under statistics that mislead. SCALE_TABLE is the
// file for a table of ten, or a hundred, times as much: make scale.
func TestScale(t *testing.T) {
	sizes := []int{10_000, 100_000}
	if os.Getenv("SCALE_TABLE") != "" {
		sizes = []int{100_000, 1_000_000, 10_000_000}
	}
	s := measured(t)
	var found []map[string]callCost
	var bares []*pace.Bare
	for i, n := range sizes {
		be, m := measuredDB(t, s, fmt.Sprint("scale", i))
		began := time.Now()
		fillScale(t, be, m, n)
		filled := time.Since(began)
		began = time.Now()
		bare := pace.Beside(t, m.pool.Ping)
		found, bares = append(found, steadyUse(t, be, m)), append(bares, bare)
		bare.Stop()
		t.Logf("%d messages: filled in %v, used for %v", n, filled, time.Since(began))
	}
	var table strings.Builder
	for _, name := range slices.Sorted(maps.Keys(found[len(found)-1])) {
		if strings.HasSuffix(name, "LookAround") || !slices.ContainsFunc(found, func(f map[string]callCost) bool { return f[name].pages > 0 }) {
			continue // work at its own times; statements that touch no page
		}
		fmt.Fprintf(&table, "| %s |", name)
		for i := range found {
			fmt.Fprintf(&table, " %d |", found[i][name].pages)
		}
		fmt.Fprintf(&table, " %.1f ms |\n", found[len(found)-1][name].took.Seconds()*1000)
		_, statement, _ := strings.Cut(name, ": ")
		if slices.Contains(scaleMaking, statement) {
			continue
		}
		for i, f := range found {
			if f[name].pages > scaleBuffers {
				t.Errorf("%s touches %d pages at %d messages", name, f[name].pages, sizes[i])
			}
			if !slices.Contains(scaleWaiting, statement) {
				bares[i].Within(t, fmt.Sprintf("one call of %s at %d messages", name, sizes[i]), f[name].took, scaleTime)
			}
		}
		if least, most := found[0][name].pages, found[len(found)-1][name].pages; most > 2*least+scaleDepth && !slices.Contains(scaleGrowing, statement) {
			t.Errorf("%s grows: %d pages at %d messages, %d at %d", name, least, sizes[0], most, sizes[len(sizes)-1])
		}
	}
	t.Logf("pages of 8 kB a call, and the slowest call at the last size\n%s", table.String())
	if path := os.Getenv("SCALE_TABLE"); path != "" {
		kit.OK(t, os.WriteFile(path, []byte(table.String()), 0o644))
	}
}
