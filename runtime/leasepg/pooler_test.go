package leasepg_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leasetest"
)

// misname is a proxy that gives clients another process id than the server's, as a pooler
// in transaction mode does.
func misname(t *testing.T, server string) (port int) {
	t.Helper()
	l := kit.Must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			wg.Go(func() { defer up.Close(); io.Copy(up, client) })
			wg.Go(func() { defer client.Close(); relay(client, up) })
		}
	})
	return l.Addr().(*net.TCPAddr).Port
}

// relay copies messages of the server, and changes the BackendKeyData among them.
func relay(to io.Writer, from io.Reader) error {
	for {
		var head [5]byte
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return err
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(from, body); err != nil {
			return err
		}
		if head[0] == 'K' {
			binary.BigEndian.PutUint32(body, binary.BigEndian.Uint32(body)+1_000_000)
		}
		if _, err := to.Write(append(head[:], body...)); err != nil {
			return err
		}
	}
}

// TestTransactionPooler: it is noticed, told once, and messages are found by polling.
func TestTransactionPooler(t *testing.T) {
	direct := open(t, pgtest.DB(t))
	_, err := leasepg.Migrate(t.Context(), direct)
	kit.OK(t, err)
	cfg := direct.Config().Copy()
	cfg.ConnConfig.Port = uint16(misname(t, fmt.Sprintf("%s:%d", cfg.ConnConfig.Host, cfg.ConnConfig.Port)))
	cfg.ConnConfig.Fallbacks = nil
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	pool := kit.Must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
	defer pool.Close()
	var log bytes.Buffer
	be := leasepg.New(pool, leasepg.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	kit.OK(t, be.Check(t.Context(), nil))
	kit.OK(t, be.Check(t.Context(), nil))
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
	defer feed.Close()
	kit.Equal(t, "warnings", strings.Count(log.String(), "transaction pooler"), 1)
	kit.Equal(t, "listening connections", query[int](t, direct,
		"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'listen%'"), 0)
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1)))
	kit.Eventually(t, "the feed reports it", func() bool {
		news, err := feed.Next(t.Context())
		return !errors.Is(err, net.ErrClosed) && len(news.Topics) == 1
	})
	id := kit.Join(t, be, topical, 1<<40)
	kit.OK(t, be.Register(t.Context(), topical, nil))
	kit.Equal(t, "acquired", len(id.Acquires(9)), 1)
	kit.OK(t, id.Heartbeat())
}

const cancelRequest = 80877102 // the code of a connection that asks to cancel another one's query

// TestConformancePooled: everything holds behind PgBouncer in transaction mode. The pooler
// has enough connections for all: heartbeats, too, wait for one where it has not.
func TestConformancePooled(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, pgtest.Config("max_connections", "600"), pgtest.Config("fsync", "off"))
	p := pgtest.StartPooler(t, server, "default_pool_size = 30")
	proxy := faultproxy.Start(t, p.Addr())
	if !pgtest.PoolerPrepares(t) { // 1.18 to 1.20 may exit when a query is cancelled
		proxy.Refuse(func(b []byte) bool { return len(b) >= 16 && binary.BigEndian.Uint32(b[4:]) == cancelRequest })
	}
	through := func(dsn string) string {
		return strings.Replace(dsn, server.Addr(), proxy.Addr(), 1) + "&default_query_exec_mode=exec"
	}
	kit.Must[[]string](t)(leasepg.Migrate(t.Context(), open(t, through(server.DB("migrated")))))
	f := factory(fresh(func(t testing.TB) string { return through(forSuiteOn(t, server)) }, 8))
	f.Polls = true
	variant(t, f)
}

// variant runs the whole suite in make proof, and in make more as much of it as shows that the variant works.
func variant(t *testing.T, f leasetest.Factory) {
	if pace.Long() {
		leasetest.Run(t, f)
		return
	}
	leasetest.RunVariant(t, f)
}

// TestPoolerModes: pgx's ways to run a query either work behind PgBouncer or are refused
// at the start, with the fix.
func TestPoolerModes(t *testing.T) {
	server := pgtest.Shared(t)
	type config struct {
		mode    string
		setting string // of the pooler
		works   bool
	}
	configs := []config{
		{"cache_statement", "", false}, // pgx's default
		{"describe_exec", "", false},
		{"cache_describe", "", true},
		{"exec", "", true},
		{"simple_protocol", "", true},
	}
	if pgtest.PoolerPrepares(t) {
		for i := range configs {
			configs[i].setting = "max_prepared_statements = 0"
		}
		configs = append(configs, config{"cache_statement", "max_prepared_statements = 200", true})
	} else {
		t.Log("this PgBouncer is older than 1.21 and cannot keep prepared statements: not tested with them")
	}
	for _, c := range configs {
		t.Run(strings.ReplaceAll(c.mode+" "+c.setting, " ", ""), func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.DB(t)
			direct := open(t, dsn)
			kit.Must[[]string](t)(leasepg.Migrate(t.Context(), direct))
			exec(t, direct, "CREATE TABLE effect (id text PRIMARY KEY)")
			// Fewer connections than clients, so that clients meet on them.
			p := pgtest.StartPooler(t, server, "default_pool_size = 2", c.setting)
			dsn = p.Through(server, dsn) + "&default_query_exec_mode=" + c.mode
			be := leasepg.New(open(t, dsn))
			if !c.works {
				for range 3 { // whatever those before left behind in the pooler
					err := be.Check(t.Context(), nil)
					if err == nil || strings.Contains(err.Error(), "\n") ||
						!strings.Contains(err.Error(), "add default_query_exec_mode=exec to the DSN") {
						t.Fatalf("Check says: %v", err)
					}
				}
				return
			}
			kit.OK(t, be.Publish(t.Context(), kit.Events("x", 50)))
			kit.OK(t, be.Publish(t.Context(), kit.Events("y", 50)))
			insert := func(ctx context.Context, tx pgx.Tx, m lease.Message[[]byte]) error {
				_, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1)", m.ID)
				return err
			}
			c := kit.Must[*lease.Consumer](t)(lease.NewConsumer(leasepg.New(open(t, dsn)), lease.Spec{
				Name: "pooled", Per: backend.PerTopic, Topics: []string{"*"}, Batch: 10, Handlers: []lease.Handler{lease.OneTx("kind", insert)}}))
			leasetest.Drain(t, be, c)
			kit.Equal(t, "effects", query[int](t, direct, "SELECT count(*) FROM effect"), 100)
		})
	}
}

// TestPoolerRefusesAdvisoryLocks: such a consumer does not start behind PgBouncer, and one line
// says why and what to do.
func TestPoolerRefusesAdvisoryLocks(t *testing.T) {
	server := pgtest.Shared(t)
	dsn := pgtest.DB(t)
	direct := open(t, dsn)
	kit.Must[[]string](t)(leasepg.Migrate(t.Context(), direct))
	dsn = pgtest.StartPooler(t, server).Through(server, dsn) + "&default_query_exec_mode=exec"
	for _, spec := range []lease.Spec{
		{Name: "leader", Per: backend.PerCluster, Handlers: []lease.Handler{lease.Run(func(context.Context, lease.Lease) error {
			t.Error("it leads")
			return nil
		})}},
		{Name: "drainer", Per: backend.PerGroup, Topics: []string{"*"}, Handlers: []lease.Handler{lease.One("kind", func(context.Context, lease.Message[[]byte]) error {
			t.Error("it drains")
			return nil
		})}},
	} {
		be := leasepg.New(open(t, dsn))
		kit.OK(t, be.Check(t.Context(), []backend.ConsumerInfo{kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, spec)).Info()}))
		spec.Lock = backend.LockAdvisory
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		err := kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, spec)).Run(ctx)
		cancel()
		if err == nil || strings.Contains(err.Error(), "\n") ||
			!strings.Contains(err.Error(), "consumer "+spec.Name) || !strings.Contains(err.Error(), "transaction pooler") ||
			!strings.Contains(err.Error(), "lock=session") {
			t.Errorf("%s: Run says: %v", spec.Name, err)
		}
		// A process that does not ask first is refused too, and leaves no row behind.
		_, err = be.OpenSession(t.Context(), backend.SessionSpec{ID: spec.Name, TTL: time.Minute, Consumers: []string{spec.Name}, Advisory: true})
		if err == nil || !strings.Contains(err.Error(), "transaction pooler") {
			t.Errorf("%s: OpenSession says: %v", spec.Name, err)
		}
	}
	kit.Equal(t, "sessions", query[int](t, direct, "SELECT count(*) FROM leasegen.session"), 0)
}

// TestPoolerFailover: behind a pooler a crash is found when the TTL is over, and what the
// dead process left in the middle of a transaction has no effect.
func TestPoolerFailover(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	dsn := pgtest.DB(t)
	direct := open(t, dsn)
	kit.Must[[]string](t)(leasepg.Migrate(t.Context(), direct))
	exec(t, direct, "CREATE TABLE effect (id text PRIMARY KEY, by text NOT NULL)")
	pooler := pgtest.StartPooler(t, server)
	const ttl = 4 * time.Second
	begun := make(chan string, 100)
	start := func(name string, hang bool) *faultproxy.Proxy {
		at := faultproxy.Start(t, pooler.Addr())
		through := strings.Replace(pooler.Through(server, dsn), pooler.Addr(), at.Addr(), 1) + "&default_query_exec_mode=exec"
		c := kit.Must[*lease.Consumer](t)(lease.NewConsumer(leasepg.New(open(t, through)), lease.Spec{
			Name: "pooled", Per: backend.PerGroup, Topics: []string{"*"}, TTL: ttl,
			Handlers: []lease.Handler{lease.OneTx("kind", func(ctx context.Context, tx pgx.Tx, m lease.Message[[]byte]) error {
				_, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1, $2)", m.ID, name)
				begun <- name
				if hang {
					<-ctx.Done()
				}
				return err
			})}}))
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { _ = c.Run(ctx) }) // the one that is cut off ends with an error or without
		t.Cleanup(func() { cancel(); running.Wait() })
		return at
	}
	be := leasepg.New(direct)
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1)))
	bare := pace.Beside(t, direct.Ping)
	proxy := start("first", true)
	kit.Equal(t, "owner", <-begun, "first")
	start("second", false)
	proxy.Cut()
	cut := time.Now()
	by := <-begun
	for by == "first" { // it may have begun anew before it was cut off
		by = <-begun
	}
	kit.Equal(t, "owner", by, "second")
	took := time.Since(cut)
	if took < ttl/2 && !bare.Stalled() { // its last heartbeat was up to a third of it before
		t.Errorf("taken over after %v, the TTL is %v", took, ttl)
	}
	bare.Within(t, "takeover", took, 4*ttl)
	kit.Eventually(t, "the effect", func() bool { return query[int](t, direct, "SELECT count(*) FROM effect") == 1 })
	kit.Equal(t, "by", query[string](t, direct, "SELECT by FROM effect"), "second")
}
