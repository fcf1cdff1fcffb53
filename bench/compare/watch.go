package compare

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// register makes the resources known.
func register(ctx context.Context, b *bench, be *leasepg.Backend) backend.ConsumerInfo {
	info := backend.ConsumerInfo{Name: "leases", Per: lease.PerTopic, Topics: []string{"t.*"}}
	names := make([]string, b.leases)
	for i := range names {
		names[i] = fmt.Sprintf("t.%06d", i)
	}
	begin := time.Now()
	must.Do(be.Register(ctx, info, names))
	fmt.Fprintf(b.out, "   registered %s topics in %v\n", thousands(int64(b.leases)), time.Since(begin).Round(time.Millisecond))
	return info
}

// replica is a process's consumers with a pool of its own.
type replica struct {
	pool   *pgxpool.Pool
	cancel context.CancelFunc
	ended  chan error
}

func (b *bench) replica(ctx context.Context, dsn string, specs ...lease.Spec) *replica {
	pool := b.pool(ctx, dsn)
	be, g := leasepg.New(pool), lease.NewGroup()
	for _, s := range specs {
		c := must.Get(lease.NewConsumer(be, s))
		must.Do(g.Add(c))
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &replica{pool, cancel, make(chan error, 1)}
	go func() { r.ended <- g.Run(ctx) }()
	return r
}

func (r *replica) stop() {
	r.cancel()
	must.Do(<-r.ended)
	r.pool.Close()
}

// writes counts what replicas write while there is no work.
func writes(ctx context.Context, b *bench, pool *pgxpool.Pool) {
	be := known(ctx, b, pool, b.leases)
	const ttl = 15 * time.Second // the default: a heartbeat every 5 s
	const beats = 6
	topic := perTopic("leases", lease.One("", noop))
	group := lease.Spec{Name: "one", Per: lease.PerGroup, Topics: []string{"t.*"}, Handlers: []lease.Handler{lease.One("", noop)}}
	dsn := pool.Config().ConnString()

	phase := func(what string, replicas int) {
		d := idle(ctx, pool, beats*ttl/3)
		n := float64(replicas)
		limit := n * (beats*1.15 + 1) // heartbeats have jitter
		perInterval := fmt.Sprintf("%d (one a process)", replicas)
		b.report(result{what: what + ": session rows written per heartbeat interval", got: round(d.sessions / beats), unit: "rows",
			want: perInterval, holds: d.sessions <= limit})
		b.report(result{what: what + ": transaction ids used per heartbeat interval", got: round(d.xids / beats), unit: "xids",
			want: perInterval, holds: d.xids <= limit})
		b.report(result{what: what + ": other rows written", got: d.others, unit: "rows", want: "0", holds: d.others == 0})
		reads := (d.commits - d.sessions) / (beats * ttl / 3).Seconds() / n
		b.report(result{what: what + ": reads of each process", got: round(reads), unit: "/s", want: "1 /s", holds: reads <= 1})
	}
	n := thousands(int64(b.leases))

	one := b.replica(ctx, dsn, topic)
	owned(ctx, be, "leases", []int{b.leases})
	phase("holding "+n, 1)
	two := b.replica(ctx, dsn, topic)
	owned(ctx, be, "leases", []int{b.leases / 2, b.leases - b.leases/2})
	phase("two replicas share "+n, 2)
	one.stop()
	two.stop()
	holder := b.replica(ctx, dsn, group)
	owned(ctx, be, "one", []int{1})
	standby := b.replica(ctx, dsn, group)
	owned(ctx, be, "one", []int{0, 1})
	phase("owner and standby of a group", 2)
	holder.stop()
	standby.stop()
}

func round(v float64) float64 { return float64(int64(v*100+0.5)) / 100 }

// owned waits until the members of a consumer own as many leases as said, in any order.
func owned(ctx context.Context, be *leasepg.Backend, consumer string, want []int) {
	var have []int
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		surveys := must.Get(be.Survey(ctx, []string{consumer}))
		have = nil
		for _, s := range surveys {
			for _, m := range s.Members {
				have = append(have, m.Owned)
			}
		}
		slices.Sort(have)
		if slices.Equal(have, want) {
			return
		}
	}
	must.Do(fmt.Errorf("the members of %s own %v leases, want %v", consumer, have, want))
}

// delta is what a database did in a while.
type delta struct{ sessions, others, xids, commits, wal float64 }

// idle lets d pass, while no message is published, and returns what was written. An idle
// server process brings its counters up to date within 10 s, hence the wait before.
func idle(ctx context.Context, pool *pgxpool.Pool, d time.Duration) delta {
	read := func() (x delta) {
		must.Do(pool.QueryRow(ctx, `
			SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del) FILTER (WHERE relname = 'session'), 0)::float8,
				coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del) FILTER (WHERE relname <> 'session'), 0)::float8,
				pg_snapshot_xmax(pg_current_snapshot())::text::float8,
				(SELECT xact_commit::float8 FROM pg_stat_database WHERE datname = current_database()),
				(pg_current_wal_insert_lsn() - '0/0')::float8
			FROM pg_stat_user_tables WHERE schemaname = 'leasegen'`).Scan(&x.sessions, &x.others, &x.xids, &x.commits, &x.wal))
		return x
	}
	time.Sleep(12 * time.Second)
	before := read()
	time.Sleep(d)
	after := read()
	return delta{after.sessions - before.sessions, after.others - before.others, after.xids - before.xids,
		after.commits - before.commits, after.wal - before.wal}
}
