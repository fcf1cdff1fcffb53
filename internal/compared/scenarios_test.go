package compared

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leasetest"
	"github.com/leasegen/leasegen/runtime/operate"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// fresh returns a backend on a migrated database of its own, and a function that makes
// others on it, as other processes would.
func fresh(t *testing.T) (be *leasepg.Backend, pool *pgxpool.Pool, again func() *leasepg.Backend) {
	t.Helper()
	dsn := pgtest.DB(t)
	connect := func() *pgxpool.Pool {
		pool, err := pgxpool.New(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return pool
	}
	pool = connect()
	if _, err := leasepg.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	silent := leasepg.WithLogger(slog.New(slog.DiscardHandler)) // what happens here is wanted
	return leasepg.New(pool, silent), pool, func() *leasepg.Backend { return leasepg.New(connect(), silent) }
}

type item struct {
	N int `json:"n"`
}

func publish(t *testing.T, to lease.Publisher, from, count int) {
	t.Helper()
	items := make([]item, count)
	for i := range items {
		items[i].N = from + i
	}
	if err := lease.Publish(context.WithoutCancel(t.Context()), to, "x", lease.EventType[item]{Kind: "item"}, items); err != nil {
		t.Error(err)
	}
}

// record is a consumer that notes what it handles, in order. It calls each after that.
type record struct {
	mu  sync.Mutex
	ns  []int
	got chan int
}

func consumer(t *testing.T, be lease.Backend, name string, per lease.Per, each func(n int)) (*lease.Consumer, *record) {
	t.Helper()
	r := &record{got: make(chan int, 10_000)}
	c, err := lease.NewConsumer(be, lease.Spec{Name: name, Per: per, Topics: []string{"*"}, Batch: 10, Handlers: []lease.Handler{
		lease.One("item", func(_ context.Context, m lease.Message[item]) error {
			r.mu.Lock()
			r.ns = append(r.ns, m.Payload.N)
			r.mu.Unlock()
			r.got <- m.Payload.N
			if each != nil {
				each(m.Payload.N)
			}
			return nil
		}),
	}}, lease.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	return c, r
}

// run runs c until the test ends.
func run(t *testing.T, c *lease.Consumer) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", c.Name(), err)
		}
	})
}

func (r *record) wait(t *testing.T, n int) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case got := <-r.got:
			if got == n {
				return
			}
		case <-timeout:
			t.Errorf("message %d was not handled", n)
			return
		}
	}
}

// An event wakes every instance that waits for it, whatever process published it.
func TestEveryInstanceIsWoken(t *testing.T) {
	be, _, again := fresh(t)
	var records []*record
	for i := range 4 {
		c, r := consumer(t, again(), fmt.Sprintf("c%d", i), lease.PerGroup, nil)
		run(t, c)
		records = append(records, r)
	}
	publish(t, be, 0, 1)
	for _, r := range records {
		r.wait(t, 0)
	}
	bare := pace.Beside(t, func(ctx context.Context) error {
		_, err := be.Survey(ctx, []string{"c0"})
		return err
	})
	const rounds = 5
	took := make([][]time.Duration, len(records))
	for n := 1; n <= rounds; n++ {
		time.Sleep(time.Second + rand.N(time.Second)) // a feed that is not notified looks after ever longer pauses
		began := time.Now()
		publish(t, be, n, 1)
		var wg sync.WaitGroup
		for i, r := range records {
			wg.Go(func() {
				r.wait(t, n)
				took[i] = append(took[i], time.Since(began))
			})
		}
		wg.Wait()
	}
	bare.Stop()
	for i, d := range took {
		slices.Sort(d)
		bare.Within(t, fmt.Sprintf("waking instance %d, in the median", i), d[rounds/2], 200*time.Millisecond)
	}
}

// Deletes, VACUUM and inserts do not change the order in which messages come.
func TestOrderOverDeleteAndVacuum(t *testing.T) {
	for _, per := range []lease.Per{lease.PerTopic, lease.PerGroup} {
		t.Run(per.String(), func(t *testing.T) {
			be, pool, _ := fresh(t)
			publish(t, be, 0, 1000)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c, first := consumer(t, be, "c", per, func(n int) {
				if n == 499 {
					cancel()
				}
			})
			if err := c.Run(ctx); err != nil { // half-way, then stopped
				t.Fatal(err)
			}
			if len(first.ns) >= 1000 {
				t.Fatal("all was handled before the vacuum")
			}
			// Dead rows are deleted, and its room is free for what comes.
			if _, err := be.Maintain(t.Context(), []backend.ConsumerInfo{c.Info()}); err != nil {
				t.Fatal(err)
			}
			for _, table := range []string{"message", "lease", "session", "parked"} {
				if _, err := pool.Exec(t.Context(), "VACUUM leasegen."+table); err != nil {
					t.Fatal(err)
				}
			}
			publish(t, be, 1000, 200)
			c, rest := consumer(t, be, "c", per, nil)
			leasetest.Drain(t, be, c)
			all := slices.Concat(first.ns, rest.ns)
			if !slices.IsSorted(all) || len(all) != 1200 {
				t.Errorf("%d messages, %d of them after the vacuum, sorted: %t; want 1,200 in order", len(all), len(rest.ns), slices.IsSorted(all))
			}
		})
	}
}

// The connection that listens is cut while messages are published, again and again;
// each is handled, without waiting for one that comes later.
func TestListenIsCutDuringPublish(t *testing.T) {
	be, pool, again := fresh(t)
	c, r := consumer(t, again(), "c", lease.PerGroup, nil)
	run(t, c)
	publish(t, be, 0, 1)
	r.wait(t, 0)
	cut := 0
	for n := 1; n <= 8; n++ {
		var wg sync.WaitGroup
		wg.Go(func() { publish(t, be, n, 1) })
		var killed int
		err := pool.QueryRow(t.Context(), `
			SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'leasegen'
			AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory') -- the heartbeat's`).Scan(&killed)
		if err != nil {
			t.Fatal(err)
		}
		cut += killed
		wg.Wait()
		r.wait(t, n)
	}
	if cut == 0 {
		t.Error("no connection was cut")
	}
}

// The cause of a backend's error is still there for errors.Is
// and errors.As.
func TestErrorsKeepTheirCause(t *testing.T) {
	be, pool, _ := fresh(t)
	c, _ := consumer(t, be, "c", lease.PerTopic, nil)
	calls := func(be *leasepg.Backend) map[string]error {
		_, acquire := be.Acquire(t.Context(), backend.AcquireRequest{Session: "s", Consumer: c.Info(), Max: 1, Attempt: "a"})
		_, commit := be.Commit(t.Context(), "s", "c", []backend.Progress{{Ref: backend.Ref{Resource: "x", Epoch: 1}}})
		_, survey := be.Survey(t.Context(), []string{"c"})
		_, status := be.Status(t.Context())
		return map[string]error{
			"Check":    be.Check(t.Context(), nil),
			"Publish":  be.Publish(t.Context(), []lease.Event{{Topic: "x"}}),
			"Register": be.Register(t.Context(), c.Info(), []string{"x"}),
			"Acquire":  acquire,
			"Commit":   commit,
			"Survey":   survey,
			"Status":   status,
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := be.Publish(ctx, []lease.Event{{Topic: "x"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled publish: %v", err)
	}
	if _, err := pool.Exec(t.Context(), `ALTER TABLE leasegen.message RENAME TO gone; ALTER TABLE leasegen.lease RENAME TO gone2`); err != nil {
		t.Fatal(err)
	}
	for call, err := range calls(be) {
		pg, is := errors.AsType[*pgconn.PgError](err)
		if call == "Check" { // finds out by itself
			if err == nil {
				t.Error("Check takes a schema without its tables")
			}
			continue
		}
		if !is || pg.Code != "42P01" {
			t.Errorf("%s without its table: %v", call, err)
		}
	}

	away, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/x?connect_timeout=2")
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	for call, err := range calls(leasepg.New(away)) {
		if _, is := errors.AsType[*net.OpError](err); !is {
			t.Errorf("%s without a server: %v", call, err)
		}
	}
}

// Heartbeats come at a third of the TTL, but not in step: each wait is a little different.
func TestHeartbeatsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 30 * time.Second
		var mu sync.Mutex
		var beats []time.Time
		c, err := lease.NewConsumer(leasemem.New(), lease.Spec{Name: "c", Per: lease.PerTopic, Topics: []string{"*"}, TTL: ttl, Handlers: []lease.Handler{
			lease.One("item", func(context.Context, lease.Message[item]) error { return nil }),
		}}, lease.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
			if _, is := o.(operate.ObservedHeartbeat); is {
				mu.Lock()
				defer mu.Unlock()
				beats = append(beats, time.Now())
			}
		})))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*ttl)
		defer cancel()
		if err := c.Run(ctx); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		waits := map[time.Duration]bool{}
		for i := 1; i < len(beats); i++ {
			d := beats[i].Sub(beats[i-1])
			if d < ttl/3*9/10 || d > ttl/3*11/10 {
				t.Errorf("a heartbeat came %v after the one before, want about %v", d, ttl/3)
			}
			waits[d] = true
		}
		if len(beats) < 50 || len(waits) < len(beats)/2 {
			t.Errorf("%d heartbeats, with %d different waits", len(beats), len(waits))
		}
	})
}
