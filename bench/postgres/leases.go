package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// leases acquires many leases at once, and takes them over from a dead owner, beside
// one bare UPDATE of as many rows.
func leases(ctx context.Context, b *bench, pool *pgxpool.Pool) error {
	be := leasepg.New(pool)
	info, err := register(ctx, b, be)
	if err != nil {
		return err
	}
	const ttl = time.Second
	grab := func(ses string) (time.Duration, error) {
		begin := time.Now()
		grants, err := be.Acquire(ctx, backend.AcquireRequest{Session: ses, Consumer: info, Max: b.leases, Attempt: id()})
		if err == nil && len(grants) != b.leases {
			err = fmt.Errorf("%d leases granted, want %d", len(grants), b.leases)
		}
		return time.Since(begin), err
	}
	open := func(ttl time.Duration) (string, error) {
		spec := backend.SessionSpec{ID: id(), TTL: ttl, Consumers: []string{info.Name}, Host: "bench", PID: 1}
		_, err := be.OpenSession(ctx, spec)
		return spec.ID, err
	}
	first, err := open(ttl)
	if err != nil {
		return err
	}
	acquired, err := grab(first)
	if err != nil {
		return err
	}
	time.Sleep(ttl + 100*time.Millisecond) // the first session is silent, and dies of it
	second, err := open(time.Minute)
	if err != nil {
		return err
	}
	taken, err := grab(second)
	if err != nil {
		return err
	}
	bare, err := bareUpdate(ctx, b, pool)
	if err != nil {
		return err
	}
	n := thousands(int64(b.leases))
	b.report(result{what: "acquire " + n + " leases", got: acquired.Seconds(), unit: "s", bare: bare.Seconds(), want: "1 s", holds: acquired <= time.Second})
	b.report(result{what: "take over " + n + " leases after detection", got: taken.Seconds(), unit: "s", bare: bare.Seconds(), want: "1 s", holds: taken <= time.Second})
	return nil
}

// bareUpdate changes as many rows in one statement as there are leases.
func bareUpdate(ctx context.Context, b *bench, pool *pgxpool.Pool) (time.Duration, error) {
	_, err := pool.Exec(ctx, `CREATE TABLE bare_lease WITH (fillfactor = 60) AS SELECT consumer, resource, epoch, session, acquired_at FROM leasegen.lease`)
	if err != nil {
		return 0, err
	}
	if _, err := pool.Exec(ctx, `ALTER TABLE bare_lease ADD PRIMARY KEY (consumer, resource)`); err != nil {
		return 0, err
	}
	begin := time.Now()
	_, err = pool.Exec(ctx, `UPDATE bare_lease SET epoch = epoch + 1, session = $1, acquired_at = clock_timestamp()`, id())
	return time.Since(begin), err
}

// register makes the resources known.
func register(ctx context.Context, b *bench, be *leasepg.Backend) (backend.ConsumerInfo, error) {
	info := backend.ConsumerInfo{Name: "leases", Per: lease.PerTopic, Topics: []string{"t.*"}}
	names := make([]string, b.leases)
	for i := range names {
		names[i] = fmt.Sprintf("t.%06d", i)
	}
	begin := time.Now()
	err := be.Register(ctx, info, names)
	fmt.Fprintf(b.out, "   registered %s topics in %v\n", thousands(int64(b.leases)), time.Since(begin).Round(time.Millisecond))
	return info, err
}

func id() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// replica is a process's consumers with a pool of its own.
type replica struct {
	pool   *pgxpool.Pool
	cancel context.CancelFunc
	ended  chan error
}

func (b *bench) replica(ctx context.Context, dsn string, specs ...lease.Spec) (*replica, error) {
	pool, err := b.pool(ctx, dsn)
	if err != nil {
		return nil, err
	}
	be, g := leasepg.New(pool), lease.NewGroup()
	for _, s := range specs {
		c, err := lease.NewConsumer(be, s)
		if err != nil {
			return nil, err
		}
		if err := g.Add(c); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &replica{pool, cancel, make(chan error, 1)}
	go func() { r.ended <- g.Run(ctx) }()
	return r, nil
}

func (r *replica) stop() error {
	r.cancel()
	err := <-r.ended
	r.pool.Close()
	return err
}

// writes counts what replicas write while there is nothing to do.
func writes(ctx context.Context, b *bench, pool *pgxpool.Pool) error {
	// The server's own housekeeping would be counted, too.
	if _, err := pool.Exec(ctx, `ALTER SYSTEM SET autovacuum = off`); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, `SELECT pg_reload_conf()`); err != nil {
		return err
	}
	be := leasepg.New(pool)
	if _, err := register(ctx, b, be); err != nil {
		return err
	}
	const ttl = 15 * time.Second // the default: a heartbeat every 5 s
	const beats = 6
	noop := func(context.Context, lease.Message[[]byte]) error { return nil }
	topic := lease.Spec{Name: "leases", Per: lease.PerTopic, Topics: []string{"t.*"}, Handlers: []lease.Handler{lease.One("", noop)}}
	group := lease.Spec{Name: "one", Per: lease.PerGroup, Topics: []string{"t.*"}, Handlers: []lease.Handler{lease.One("", noop)}}
	dsn := pool.Config().ConnString()

	phase := func(what string, replicas int) error {
		d, err := idle(ctx, pool, beats*ttl/3)
		if err != nil {
			return err
		}
		n := float64(replicas)
		limit := n * (beats*1.15 + 1) // heartbeats have jitter
		perInterval := fmt.Sprintf("%d (one a process)", replicas)
		b.report(result{what: what + ": session rows written per heartbeat interval", got: round(d.sessions / beats), unit: "rows",
			want: perInterval, holds: d.sessions <= limit})
		b.report(result{what: what + ": transaction ids used per heartbeat interval", got: round(d.xids / beats), unit: "xids",
			want: perInterval, holds: d.xids <= limit})
		b.report(result{what: what + ": other rows written", got: d.others, unit: "rows", want: "0", holds: d.others == 0})
		reads := (d.commits - d.sessions) / (beats * ttl / 3).Seconds() / n
		b.report(result{what: what + ": reads of each process", got: round(reads), unit: "/s", want: "2 /s", holds: reads <= 2.2})
		return nil
	}
	n := thousands(int64(b.leases))

	one, err := b.replica(ctx, dsn, topic)
	if err != nil {
		return err
	}
	if err := owned(ctx, be, "leases", []int{b.leases}); err != nil {
		return err
	}
	if err := phase("holding "+n, 1); err != nil {
		return err
	}
	two, err := b.replica(ctx, dsn, topic)
	if err != nil {
		return err
	}
	if err := owned(ctx, be, "leases", []int{b.leases / 2, b.leases - b.leases/2}); err != nil {
		return err
	}
	if err := phase("two replicas share "+n, 2); err != nil {
		return err
	}
	if err := one.stop(); err != nil {
		return err
	}
	if err := two.stop(); err != nil {
		return err
	}
	holder, err := b.replica(ctx, dsn, group)
	if err != nil {
		return err
	}
	if err := owned(ctx, be, "one", []int{1}); err != nil {
		return err
	}
	standby, err := b.replica(ctx, dsn, group)
	if err != nil {
		return err
	}
	if err := owned(ctx, be, "one", []int{0, 1}); err != nil {
		return err
	}
	if err := phase("owner and standby of a group", 2); err != nil {
		return err
	}
	if err := holder.stop(); err != nil {
		return err
	}
	return standby.stop()
}

func round(v float64) float64 { return float64(int64(v*100+0.5)) / 100 }

// owned waits until the members of a consumer own as many leases as said, in any order.
func owned(ctx context.Context, be *leasepg.Backend, consumer string, want []int) error {
	var have []int
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		surveys, err := be.Survey(ctx, []string{consumer})
		if err != nil {
			return err
		}
		have = nil
		for _, s := range surveys {
			for _, m := range s.Members {
				have = append(have, m.Owned)
			}
		}
		slices.Sort(have)
		if slices.Equal(have, want) {
			return nil
		}
	}
	return fmt.Errorf("the members of %s own %v leases, want %v", consumer, have, want)
}

// delta is what a database did in a while.
type delta struct{ sessions, others, xids, commits, wal float64 }

// idle lets d pass, while nothing is published, and returns what was written. An idle
// server process brings its counters up to date within 10 s, hence the wait before.
func idle(ctx context.Context, pool *pgxpool.Pool, d time.Duration) (delta, error) {
	read := func() (x delta, err error) {
		err = pool.QueryRow(ctx, `
			SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del) FILTER (WHERE relname = 'session'), 0)::float8,
				coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del) FILTER (WHERE relname <> 'session'), 0)::float8,
				pg_snapshot_xmax(pg_current_snapshot())::text::float8,
				(SELECT xact_commit::float8 FROM pg_stat_database WHERE datname = current_database()),
				(pg_current_wal_insert_lsn() - '0/0')::float8
			FROM pg_stat_user_tables WHERE schemaname = 'leasegen'`).Scan(&x.sessions, &x.others, &x.xids, &x.commits, &x.wal)
		return x, err
	}
	time.Sleep(12 * time.Second)
	before, err := read()
	if err != nil {
		return delta{}, err
	}
	time.Sleep(d)
	after, err := read()
	return delta{after.sessions - before.sessions, after.others - before.others, after.xids - before.xids,
		after.commits - before.commits, after.wal - before.wal}, err
}
