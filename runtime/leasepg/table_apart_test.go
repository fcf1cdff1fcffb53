package leasepg_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/tabletest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// troubles are what befalls a table while its consumer runs: how it begins, how it ends, and what
// the error says.
var troubles = []struct{ name, begin, end, says string }{
	{"locked", "", "", "another transaction has locked it"},
	{"renamed", "ALTER TABLE app.outbox RENAME TO away", "ALTER TABLE app.away RENAME TO outbox", "missing or was renamed"},
	{"moved", "CREATE SCHEMA aside; ALTER TABLE app.outbox SET SCHEMA aside", "ALTER TABLE aside.outbox SET SCHEMA app", "missing or was renamed"},
	{"revoked", "REVOKE ALL ON app.outbox FROM apart_reader", "GRANT SELECT ON app.outbox TO apart_reader", "GRANT SELECT ON app.outbox"},
}

// A table that is locked, renamed or gone stops its own consumer until it is fixed, and no other
// of the group: those of the log go on, on a pool of two connections.
func TestATableInTroubleStopsItsOwnConsumerAlone(t *testing.T) {
	t.Parallel()
	_, pool := withTable(t)
	exec(t, pool, "CREATE ROLE apart_reader LOGIN")
	t.Cleanup(func() { exec(t, pool, "DROP OWNED BY apart_reader; DROP ROLE apart_reader") })
	exec(t, pool, leasepg.Grants("apart_reader"))
	exec(t, pool, "GRANT USAGE ON SCHEMA app TO apart_reader; GRANT SELECT ON app.outbox TO apart_reader; GRANT SELECT ON SEQUENCE app.outbox_id_seq TO apart_reader")
	cfg := pool.Config()
	cfg.ConnConfig.User, cfg.MaxConns = "apart_reader", 2
	reader := kit.Must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
	t.Cleanup(reader.Close)
	be := leasepg.New(reader, leasepg.WithLogger(slog.New(slog.DiscardHandler)))

	h := &tabletest.ByTopic{}
	var logged atomic.Int64
	listed := kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, lease.Spec{
		Name: "logged", Per: backend.PerTopic, Topics: []string{"*"}, Handlers: []lease.Handler{
			lease.One("kind", func(context.Context, lease.Message[map[string]int]) error { logged.Add(1); return nil }),
		},
	}, quiet()))
	running(t, byTopic(t, be, h), listed)
	rows, published := 0, int64(0)
	both := func() {
		t.Helper()
		exec(t, pool, "INSERT INTO app.outbox (channel, n) VALUES ('eu', 1)")
		rows++
		kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1)))
		published++
	}
	both()
	kit.Eventually(t, "both are at work", func() bool { return len(h.Rows()) == rows && logged.Load() == published })

	for _, tr := range troubles {
		exec(t, pool, "INSERT INTO app.outbox (channel, n) VALUES ('eu', 1)")
		rows++
		end := func() { exec(t, pool, tr.end) }
		if tr.begin == "" {
			tx := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
			_, err := tx.Exec(t.Context(), "LOCK TABLE app.outbox IN ACCESS EXCLUSIVE MODE")
			kit.OK(t, err)
			end = func() { kit.OK(t, tx.Rollback(context.Background())) }
		} else {
			exec(t, pool, tr.begin)
		}
		info := byTopic(t, be, h).Info()
		for what, call := range map[string]func() error{
			"feed":     func() error { _, err := be.OpenFeed(t.Context(), []backend.ConsumerInfo{info}); return err },
			"register": func() error { return be.Register(t.Context(), info, nil) },
			"fetch": func() error {
				_, err := be.Fetch(t.Context(), backend.FetchRequest{Consumer: info, MaxPayload: 1, Items: []backend.FetchItem{{Resource: "eu", Limit: 1}}})
				return err
			},
		} {
			if err := call(); err == nil || !strings.Contains(err.Error(), "app.outbox") || strings.Contains(err.Error(), "leasegen migrate") {
				t.Errorf("%s: %s of the table does not name it alone: %v", tr.name, what, err)
			} else if what == "feed" && !strings.Contains(err.Error(), tr.says) {
				t.Errorf("%s: %s of the table says %v, want %q", tr.name, what, err, tr.says)
			}
		}
		for range 5 {
			kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1)))
			published++
			kit.Eventually(t, tr.name+": consumers of the log go on", func() bool { return logged.Load() == published })
		}
		end()
		both()
		kit.Eventually(t, tr.name+": the table's consumer comes back by itself", func() bool { return len(h.Rows()) >= rows })
		kit.Equal(t, tr.name+": rows handled", len(h.Rows()), rows)
	}
}

// A process that starts while a table is in trouble logs its name, and starts.
func TestCheckNamesTheTable(t *testing.T) {
	t.Parallel()
	_, pool := withTable(t)
	exec(t, pool, "ALTER TABLE app.outbox RENAME TO away")
	var log bytes.Buffer
	be := leasepg.New(pool, leasepg.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	kit.OK(t, be.Check(t.Context(), []backend.ConsumerInfo{byTopic(t, be, &tabletest.ByTopic{}).Info(), grouped}))
	if !strings.Contains(log.String(), "consumer=by_topic") || !strings.Contains(log.String(), "table app.outbox does not exist") {
		t.Errorf("the log does not name consumer and table: %s", log.String())
	}
}

// Tables share one connection that listens, whatever their number, and poll through the pool.
func TestTablesShareOneConnection(t *testing.T) {
	t.Parallel()
	_, pool := withTable(t)
	be := leasepg.New(openMax(t, pool.Config().ConnString(), 2))
	var feeds []backend.Feed
	for _, c := range []*lease.Consumer{byTopic(t, be, &tabletest.ByTopic{}), byGroup(t, be, &tabletest.ByGroup{}), byKey(t, be, &tabletest.ByKey{})} {
		feeds = append(feeds, kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{c.Info()})))
	}
	listening := func() int {
		return query[int](t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'leasegen'`)
	}
	kit.Eventually(t, "one connection listens", func() bool { return listening() == 1 })
	told := make(chan backend.News, 1)
	go func() {
		for {
			news, err := feeds[1].Next(t.Context())
			if err != nil {
				return
			}
			if len(news.Resources) > 0 {
				told <- news
				return
			}
		}
	}()
	exec(t, pool, "INSERT INTO app.outbox (channel, n) VALUES ('eu', 1)")
	select {
	case news := <-told:
		kit.Equal(t, "resource", news.Resources["by_group"][0], backend.Whole)
	case <-time.After(30 * time.Second):
		t.Error("the feed does not tell of a row")
	}
	kit.Equal(t, "connections that listen", listening(), 1)
	for _, f := range feeds {
		f.Close()
	}
	kit.Eventually(t, "none listens for nobody", func() bool { return listening() == 0 })
}
