package proof

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// A holder is frozen between its handler and its commit, for longer than its
// lease lasts, and goes on: none of its work has an effect.
func TestFrozenHolder(t *testing.T) {
	t.Parallel()
	s := newSite(t, fenceOnly)
	hold := filepath.Join(t.TempDir(), "hold")
	var replicas []fleet.Replica
	for i := range 2 {
		r := replicaOf(fenceOnly, i+1, s.dsn)
		r.Env = append(r.Env, envHold+"="+hold)
		replicas = append(replicas, r)
	}
	f := fleet.Start(t, replicas...)
	for seq := 1; seq <= 3; seq++ {
		from := f.Marker()
		if err := os.WriteFile(hold, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.publish(t.Context(), "t.one", 1); err != nil {
			t.Fatal(err)
		}
		var frozen *fleet.Process
		var epoch int64
		eventually(t, "a replica is about to commit", func() bool {
			_, e := f.Find(from, fleet.Is("committing"))
			for _, p := range f.Replicas {
				if p.Name == e.Replica {
					f.Freeze(p)
					frozen, epoch = p, e.Epoch
				}
			}
			return frozen != nil
		})
		eventually(t, "the other replica takes over", func() bool {
			// On a busy machine the holder may have given its lease back just before.
			i, _ := f.Find(from, func(e fleet.Event) bool { return e.What == "acquired" && e.Replica != frozen.Name && e.Epoch > epoch })
			return i >= 0
		})
		s.drained(t)
		if err := os.Remove(heldFile(hold)); err != nil {
			t.Fatal(err)
		}
		f.Thaw(frozen)
		eventually(t, "the frozen replica tries to commit, and notices that its lease is gone", func() bool {
			answered, _ := f.Find(from, fleet.Is("answered"))
			gone, _ := f.Find(from, func(e fleet.Event) bool {
				return e.Replica == frozen.Name && e.Epoch == epoch && (e.What == "fenced" || e.What == "lost")
			})
			return answered >= 0 && gone >= 0
		})
		var n int
		var by string
		if err := s.pool.QueryRow(t.Context(), `SELECT count(*), coalesce(min(replica), '') FROM effect WHERE seq = $1`, seq).Scan(&n, &by); err != nil {
			t.Fatal(err)
		}
		if n != 1 || by == frozen.Name {
			t.Fatalf("message %d has %d effects, one by %s; want one, not by %s, which was frozen", seq, n, by, frozen.Name)
		}
	}
	f.Stop()
	if v := s.judge(t); v.violations() > 0 {
		t.Errorf("the history is wrong: %+v", v)
	}
}

// A holder that is cut off from the server, without any connection breaking,
// hears of it before somebody else can be working.
func TestHolderIsCutOff(t *testing.T) {
	t.Parallel()
	s := newSite(t, whole)
	proxy := faultproxy.Start(t, s.server.Addr())
	if err := s.publish(t.Context(), "t.one", 1); err != nil {
		t.Fatal(err)
	}

	type call struct {
		began, ended time.Time
		epoch        int64
		cause        error
	}
	first, second := make(chan call, 1), make(chan call, 1)
	began := make(chan struct{})
	cutOff := inProcess(t, s.through(proxy), 4, ttl, func(ctx context.Context, m lease.Message[numbered]) error {
		c := call{began: time.Now(), epoch: m.Epoch}
		close(began)
		<-ctx.Done()
		c.ended, c.cause = time.Now(), context.Cause(ctx)
		first <- c
		return c.cause
	})
	waitFor(t, began, "the first replica begins to handle the message")
	inProcess(t, s.dsn, 4, ttl, func(ctx context.Context, m lease.Message[numbered]) error {
		select {
		case second <- call{began: time.Now(), epoch: m.Epoch}:
		default:
		}
		return nil
	})
	bare := pace.Beside(t, s.ping)
	proxy.BlackHole()
	cut := time.Now()

	a := waitFor(t, first, "the first replica's handler is cancelled")
	if !errors.Is(a.cause, lease.ErrLost) {
		t.Errorf("cause %v, want lease.ErrLost", a.cause)
	}
	bare.Within(t, "cancelling the handler that was cut off", a.ended.Sub(cut), ttl)
	b := waitFor(t, second, "the second replica takes over")
	if !b.began.After(a.ended) {
		t.Errorf("the second handler began %v before the first was cancelled", a.ended.Sub(b.began))
	}
	bare.Within(t, "takeover after the cut", b.began.Sub(cut), ttl+time.Second)
	if b.epoch <= a.epoch {
		t.Errorf("epoch %d after %d", b.epoch, a.epoch)
	}
	proxy.Heal()
	cutOff() // and it can still be stopped
}

// The server is killed with SIGKILL and started again, under load, with
// synchronous_commit off by default: no epoch is granted twice, and no effect is lost
// or repeated.
func TestServerKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t, whole, pgtest.Config("synchronous_commit", "off"), pgtest.Config("wal_writer_delay", "10s"))
	s.faulty = true
	f := startFleet(t, whole, s.dsn, s.dsn)
	publish := func(round int) {
		for i := range 10 {
			if err := s.publish(t.Context(), fmt.Sprintf("t.%02d", i), 20); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
	}
	for round := range 4 {
		publish(round)
		time.Sleep(30 * time.Millisecond) // somewhere in the middle of the work
		s.server.Kill()
		s.server.Start()
		s.pool.Reset()
	}
	s.drained(t)
	f.Stop()
	seen := map[string]int64{}
	grants := 0
	for _, e := range f.Events(0) {
		if e.What != "acquired" {
			continue
		}
		grants++
		k := fmt.Sprint(e.Resource, " ", e.Epoch)
		if seen[k]++; seen[k] > 1 {
			t.Errorf("epoch %d of %s was granted twice", e.Epoch, e.Resource)
		}
	}
	if grants < 10 {
		t.Errorf("only %d grants for 10 topics", grants)
	}
	if v := s.judge(t); v.violations() > 0 {
		t.Errorf("the history is wrong: %+v", v)
	}
}

// When only the heartbeat's connection is killed, again and again, no message is lost.
func TestHeartbeatConnectionKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t, whole)
	var losses, beats atomic.Int64
	handled := make(chan int64, 100)
	inProcess(t, s.dsn, 4, calm, func(_ context.Context, m lease.Message[numbered]) error {
		handled <- m.Epoch
		return nil
	}, lease.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
		switch o := o.(type) {
		case operate.ObservedLoss:
			losses.Add(1)
		case operate.ObservedHeartbeat:
			if o.Err == nil {
				beats.Add(1)
			}
		}
	})))
	var first, killed, before int64
	for i := range 6 {
		if err := s.publish(t.Context(), "t.one", 1); err != nil {
			t.Fatal(err)
		}
		epoch := waitFor(t, handled, "the message is handled")
		if i == 0 {
			first = epoch
		}
		if epoch != first {
			t.Fatalf("message %d was handled under epoch %d, before it was %d: the lease was lost", i, epoch, first)
		}
		// Only after another heartbeat is confirmed to the replica: on a slow machine each connection would end before its first one is.
		eventually(t, "another heartbeat is confirmed", func() bool { return beats.Load() > before })
		eventually(t, "a heartbeat's connection to kill", func() bool {
			var n int64
			err := s.pool.QueryRow(t.Context(), `
				SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'idle' AND query LIKE '-- name: Heartbeat %'`).Scan(&n)
			if err != nil {
				t.Fatal(err)
			}
			killed += n
			return n > 0
		})
		before = beats.Load()
	}
	if losses.Load() > 0 || killed < 6 {
		t.Errorf("%d leases lost, %d connections killed; want 0 and at least 6", losses.Load(), killed)
	}
}

// With a pool of one connection, and a handler that holds it in a transaction for
// longer than the ttl, the lease survives: heartbeats need no connection of the pool.
func TestPoolOfOne(t *testing.T) {
	t.Parallel()
	s := newSite(t, whole)
	if err := s.publish(t.Context(), "t.one", 2); err != nil {
		t.Fatal(err)
	}
	type call struct {
		epoch int64
		err   error
	}
	calls := make(chan call, 10)
	slow := func(ctx context.Context, tx pgx.Tx, m lease.Message[numbered]) error {
		// The transaction is in use all the time, so the server has no reason to end it.
		_, err := tx.Exec(ctx, `SELECT pg_sleep($1)`, (calm + ttl).Seconds())
		if err == nil {
			_, err = tx.Exec(ctx, `INSERT INTO effect (message_id, topic, seq, epoch, replica) VALUES ($1, $2, $3, $4, 'one')`,
				m.ID, m.Topic, m.Payload.Seq, m.Epoch)
		}
		calls <- call{m.Epoch, err}
		return err
	}
	start(t, s.dsn, 1, calm, lease.OneTx("numbered", slow))
	a := waitFor(t, calls, "the first message is handled")
	start(t, s.dsn, 4, calm, lease.OneTx("numbered", slow)) // somebody who would take the lease
	b := waitFor(t, calls, "the second message is handled")
	if a.err != nil || b.err != nil || a.epoch != b.epoch {
		t.Errorf("first call %+v, second %+v: want no error and one epoch", a, b)
	}
	s.drained(t)
	if v := s.judge(t); v.violations() > 0 {
		t.Errorf("the history is wrong: %+v", v)
	}
}

// calm is the TTL of replicas that are to lose no message, however busy the machine is.
const calm = 5 * ttl

// inProcess runs a replica of this process, whose handler has the one form, until the
// test ends or stop is called.
func inProcess(t *testing.T, dsn string, conns int32, ttl time.Duration, handle func(context.Context, lease.Message[numbered]) error, opts ...lease.Option) (stop func()) {
	t.Helper()
	return start(t, dsn, conns, ttl, lease.One("numbered", handle), opts...)
}

func start(t *testing.T, dsn string, conns int32, ttl time.Duration, h lease.Handler, opts ...lease.Option) (stop func()) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	c, err := lease.NewConsumer(leasepg.New(pool), lease.Spec{
		Name: consumerName, Per: lease.PerTopic, Topics: []string{"t.*"}, TTL: ttl, Batch: 1, Drain: time.Second,
		Handlers: []lease.Handler{h},
	}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	var stopped atomic.Bool
	stop = func() {
		if stopped.Swap(true) {
			return
		}
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the consumer ended with %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("the consumer did not end within a minute")
		}
		pool.Close()
	}
	t.Cleanup(stop)
	return stop
}

func waitFor[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
		panic("unreachable")
	}
}
