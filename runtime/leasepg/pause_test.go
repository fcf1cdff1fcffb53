package leasepg_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/internal/tabletest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// TestPauseWaitsForAcquisitions: an acquisition that found its consumer not paused, and is committed late, is over when Pause
// returns. One that begins while Pause waits is granted no lease.
func TestPauseWaitsForAcquisitions(t *testing.T) {
	be, pool := migrated(t)
	exec(t, pool, `CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$;
		CREATE TRIGGER dawdle AFTER UPDATE OF session ON leasegen.lease FOR EACH STATEMENT EXECUTE FUNCTION dawdle()`)
	info := backend.ConsumerInfo{Name: "c", Per: backend.PerTopic, Topics: []string{"*"}}
	a := kit.Join(t, be, info, time.Hour).Registers("x", "y")
	b := kit.Join(t, be, info, time.Hour)
	granted := make(chan int, 2)
	go func() { granted <- len(a.Acquires(1)) }()
	kit.Eventually(t, "it is at it", func() bool {
		return query[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep' AND query LIKE '%AcquireLeases%'") == 1
	})
	time.AfterFunc(100*time.Millisecond, func() { granted <- len(b.Acquires(1)) })
	kit.OK(t, be.Pause(t.Context(), "c"))
	owned := func() (n int) {
		for _, l := range kit.Must[[]operate.LeaseStatus](t)(be.Leases(t.Context(), "c", 0)) {
			if l.Session != "" {
				n++
			}
		}
		return n
	}
	kit.Equal(t, "owned when Pause has returned", owned(), 1)
	kit.Equal(t, "granted to both", <-granted+<-granted, 1)
	kit.Equal(t, "owned", owned(), 1)
}

// TestPauseDoesNotWaitForLong: a transaction that stays open in the middle of an acquisition makes Pause fail, and holds up
// the acquisitions of others no longer than that.
func TestPauseDoesNotWaitForLong(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	info := backend.ConsumerInfo{Name: "c", Per: backend.PerTopic, Topics: []string{"*"}}
	a := kit.Join(t, be, info, time.Hour).Registers("x")
	tx := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	_, err := tx.Exec(t.Context(), "SELECT FROM leasegen.pause FOR KEY SHARE")
	kit.OK(t, err)
	began := time.Now()
	if err := be.Pause(t.Context(), "c"); err == nil || !strings.Contains(err.Error(), "lock timeout") {
		t.Errorf("paused while an acquisition was under way: %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("that took %v", took)
	}
	a.Takes()
	kit.OK(t, tx.Rollback(t.Context()))
	kit.OK(t, be.Pause(t.Context(), "c"))
}

// TestPauseOfATable: a consumer that reads a table of its own is paused and resumed at once: the bell of its process rings.
func TestPauseOfATable(t *testing.T) {
	t.Parallel()
	be, pool := withTable(t)
	h := &tabletest.ByTopic{}
	c := byTopic(t, be, h)
	running(t, c)
	exec(t, pool, "INSERT INTO app.outbox (channel, n) VALUES ('eu', 0)")
	kit.Eventually(t, "the first row", func() bool { return len(h.Rows()) == 1 })
	kit.OK(t, be.Pause(t.Context(), c.Name()))
	kit.Eventually(t, "the lease is given back", func() bool {
		all := kit.Must[[]operate.ConsumerStatus](t)(be.Status(t.Context()))
		return all[0].Paused && all[0].Unowned == all[0].Resources
	})
	exec(t, pool, "INSERT INTO app.outbox (channel, n) VALUES ('eu', 1), ('us', 1)")
	time.Sleep(time.Second)
	kit.Equal(t, "rows handled while paused", len(h.Rows()), 1)
	kit.OK(t, be.Resume(t.Context(), c.Name()))
	kit.Eventually(t, "all rows", func() bool { return len(h.Rows()) == 3 })
}

// TestPauseOutlivesTheServer, whose last write it was.
func TestPauseOutlivesTheServer(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	be, pool := migratedAt(t, server.DB("paused"))
	info := backend.ConsumerInfo{Name: "c", Per: backend.PerTopic, Topics: []string{"*"}}
	kit.OK(t, be.Register(t.Context(), info, []string{"x"}))
	exec(t, pool, "ALTER DATABASE paused SET synchronous_commit = off")
	pool.Reset()
	kit.OK(t, be.Pause(t.Context(), "c"))
	server.Stop(pgtest.Immediate)
	server.Start()
	pool.Reset()
	a := kit.Join(t, be, info, time.Hour)
	kit.Equal(t, "granted", len(a.Acquires(1)), 0)
	kit.OK(t, be.Resume(t.Context(), "c"))
	a.Takes()
}

// TestRolesThatConsumedMayPause: a role that had its rights before there was a pause has those of it with the migration, so
// that its programs can be replaced before the grants are run again.
func TestRolesThatConsumedMayPause(t *testing.T) {
	pool := open(t, pgtest.DB(t))
	before, _, found := strings.Cut(leasepg.Migrations(), "-- 0012_pause.sql")
	kit.Equal(t, "migration 0012", found, true)
	exec(t, pool, before+"COMMIT")
	app, publisher := "app_"+kit.ID()[:8], "publisher_"+kit.ID()[:8]
	exec(t, pool, "CREATE ROLE "+app+"; CREATE ROLE "+publisher)
	grants := strings.NewReplacer(", leasegen.pause TO", " TO", ", leasegen.pause_consumer(text, boolean) TO", " TO").Replace(leasepg.Grants(app))
	for line := range strings.Lines(grants) {
		if strings.Contains(line, "ON leasegen.pause TO") {
			grants = strings.Replace(grants, line, "", 1)
		}
	}
	exec(t, pool, grants)
	exec(t, pool, leasepg.Grants(publisher, leasepg.WithRights(leasepg.PublishOnly)))
	_, err := leasepg.Migrate(t.Context(), pool)
	kit.OK(t, err)
	for role, may := range map[string]bool{app: true, publisher: false} {
		kit.Equal(t, role+" may", query[bool](t, pool, "SELECT has_function_privilege($1, 'leasegen.pause_consumer(text, boolean)', 'EXECUTE') "+
			"AND has_table_privilege($1, 'leasegen.pause', 'SELECT') AND has_column_privilege($1, 'leasegen.pause', 'paused_at', 'UPDATE')", role), may)
	}
}

// TestPauseTakesTheRightsOfConsumers: a role that consumes may pause by Operator.Pause alone, a role that only publishes may not.
func TestPauseTakesTheRightsOfConsumers(t *testing.T) {
	c := distrustful(t)
	info := backend.ConsumerInfo{Name: "c", Per: backend.PerTopic, Topics: []string{"*"}}
	as := func(rights leasepg.Rights) *pgxpool.Pool {
		name := "role_" + kit.ID()[:8]
		exec(t, c.admin, "CREATE ROLE "+name+" LOGIN")
		exec(t, c.owner, leasepg.Grants(name, leasepg.WithRights(rights)))
		cfg := c.admin.Config().Copy()
		cfg.ConnConfig.User = name
		pool := kit.Must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
		t.Cleanup(pool.Close)
		return pool
	}
	consumer := as(leasepg.ConsumeOnly)
	be := leasepg.New(consumer)
	a := kit.Join(t, be, info, time.Hour).Registers("x")
	kit.OK(t, be.Pause(t.Context(), "c"))
	kit.Equal(t, "granted", len(a.Acquires(1)), 0)
	kit.OK(t, be.Resume(t.Context(), "c"))
	a.Takes()
	for _, sql := range []string{"INSERT INTO leasegen.pause (consumer) VALUES ('other')", "DELETE FROM leasegen.pause", "UPDATE leasegen.pause SET consumer = 'other'"} {
		refusedFor(t, consumer, sql)
	}
	publisher := as(leasepg.PublishOnly)
	refusedFor(t, publisher, "SELECT leasegen.pause_consumer('c', true)")
	refusedFor(t, publisher, "SELECT FROM leasegen.pause")
	refusedFor(t, c.stranger, "SELECT leasegen.pause_consumer('c', true)")
}
