package compare

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// comparisons repeats measurements that were made of two other systems, on a machine of the
// same size: pgoutbox v0.4.0 (Go; leases of topics by sessions in PostgreSQL), and the SQL of
// pyfly's PostgreSQL event bus. Their figures are quoted; only the reader that loses events
// runs here, beside ours.
func comparisons() []measure {
	return []measure{
		{"standby", "2,000 topics held, and a second process for them", secondProcess},
		{"acquire", "a process starts and acquires 3,000 topics", acquireRate},
		{"idle", "1,000 idle topics", idleTopics},
		{"order", "order under one owner, over vacuum and a restart", orderKept},
		{"starved", "handlers use up the pool for longer than the ttl", starvedPool},
		{"publishers", "16 publishers at full speed, two readers", fullSpeed},
	}
}

// beside adds a line with another system's figure.
func (b *bench) beside(what string, got float64, unit, theirs string, holds bool) {
	b.report(result{what: what, got: round(got), unit: unit, theirs: theirs, holds: holds})
}

func (b *bench) compared(ctx context.Context, begin time.Time) error {
	b.conditions(ctx, begin)
	fmt.Fprintf(b.out, "| what | leasegen | the other | better |\n|---|---:|---:|---|\n")
	failed := false
	for _, r := range b.results {
		verdict := "yes"
		if !r.holds {
			verdict, failed = "NO", true
		}
		fmt.Fprintf(b.out, "| %s | %s | %s | %s |\n", r.what, strings.TrimSpace(amount(r.got, r.unit)), r.theirs, verdict)
	}
	if failed {
		return errors.New("not everything is better")
	}
	return nil
}

func noop(context.Context, lease.Message[[]byte]) error { return nil }

func perTopic(name string, h lease.Handler) lease.Spec {
	return lease.Spec{Name: name, Per: lease.PerTopic, Topics: []string{"t.*"}, Handlers: []lease.Handler{h}}
}

// process runs one consumer until stop is called. Its leases and losses are counted.
type process struct {
	acquired, lost atomic.Int64
	cancel         context.CancelFunc
	ended          chan error
}

func startProcess(ctx context.Context, pool *pgxpool.Pool, spec lease.Spec) *process {
	p := &process{ended: make(chan error, 1)}
	c := must.Get(lease.NewConsumer(leasepg.New(pool), spec, lease.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
		switch o.(type) {
		case operate.ObservedAcquire:
			p.acquired.Add(1)
		case operate.ObservedLoss:
			p.lost.Add(1)
		}
	}))))
	ctx, p.cancel = context.WithCancel(ctx)
	go func() { p.ended <- c.Run(ctx) }()
	return p
}

func (p *process) stop() {
	p.cancel()
	must.Do(<-p.ended)
}

// until polls for a minute.
func until(what string, cond func() bool) error {
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("not within a minute: %s", what)
		}
	}
	return nil
}

// known makes n topics known, on a server whose own housekeeping does not count.
func known(ctx context.Context, b *bench, pool *pgxpool.Pool, n int) *leasepg.Backend {
	for _, sql := range []string{`ALTER SYSTEM SET autovacuum = off`, `SELECT pg_reload_conf()`} {
		must.Get(pool.Exec(ctx, sql))
	}
	be := leasepg.New(pool)
	b.leases = n
	register(ctx, b, be)
	must.Get(pool.Exec(ctx, `CHECKPOINT`))
	return be
}

const watched = 20 * time.Second

func secondProcess(ctx context.Context, b *bench, pool *pgxpool.Pool) {
	const n = 2000
	be := known(ctx, b, pool, n)
	spec := perTopic("leases", lease.One("", noop))
	one := startProcess(ctx, pool, spec)
	owned(ctx, be, "leases", []int{n})
	alone := idle(ctx, pool, watched)
	two := startProcess(ctx, pool, spec)
	owned(ctx, be, "leases", []int{n / 2, n / 2})
	both := idle(ctx, pool, watched)
	s := watched.Seconds()
	xacts, xids, wal := (both.commits-alone.commits)/s, (both.xids-alone.xids)/s, (both.wal-alone.wal)/s/1000
	b.beside("holding 2,000 topics: transaction ids", alone.xids/s, "/s", "0.2 /s", alone.xids/s <= 0.5)
	b.beside("holding 2,000 topics: WAL", alone.wal/s/1000, "KB/s", "13 KB/s", alone.wal/s/1000 <= 13)
	b.beside("a second process for them adds transactions", xacts, "/s", "1,976 /s", xacts <= 19)
	b.beside("a second process for them adds transaction ids", xids, "/s", "1,976 /s", xids <= 1)
	b.beside("a second process for them adds WAL", wal, "KB/s", "499 KB/s", wal <= 5)
	one.stop()
	two.stop()
}

func acquireRate(ctx context.Context, b *bench, pool *pgxpool.Pool) {
	const n = 3000
	known(ctx, b, pool, n)
	begin := time.Now()
	p := startProcess(ctx, pool, perTopic("leases", lease.One("", noop)))
	must.Do(until("all topics are acquired", func() bool { return p.acquired.Load() == n }))
	rate := n / time.Since(begin).Seconds()
	b.beside("topics acquired, from the start of the process", rate, "/s", "555-777 /s", rate > 777)
	p.stop()
}

func idleTopics(ctx context.Context, b *bench, pool *pgxpool.Pool) {
	const n = 1000
	be := known(ctx, b, pool, n)
	p := startProcess(ctx, pool, perTopic("leases", lease.One("", noop)))
	owned(ctx, be, "leases", []int{n})
	d := idle(ctx, pool, watched)
	s := watched.Seconds()
	b.beside("1,000 idle topics: transactions", d.commits/s, "/s", "234 /s", d.commits/s <= 23)
	b.beside("1,000 idle topics: transaction ids", d.xids/s, "/s", "189 /s", d.xids/s <= 1)
	b.beside("1,000 idle topics: WAL", d.wal/s/1000, "KB/s", "23 KB/s", d.wal/s/1000 <= 2.3)
	p.stop()
}

func publishNumbers(ctx context.Context, be *leasepg.Backend, topic string, from, to int) {
	var es []lease.Event
	for i := from; i < to; i++ {
		es = append(es, lease.Event{Topic: topic, Kind: "n", Payload: []byte(strconv.Itoa(i))})
	}
	must.Do(be.Publish(ctx, es))
}

// orderKept does what inverts the order where messages are deleted when they are handled
// and their space is used again: 1,000 messages, half of them handled, vacuum, 200 more.
func orderKept(ctx context.Context, b *bench, pool *pgxpool.Pool) {
	be := leasepg.New(pool)
	publishNumbers(ctx, be, "t.one", 0, 1000)
	var mu sync.Mutex
	var seen []int
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(seen)
	}
	half := make(chan struct{}) // closed when the handler may go on after one half
	h := lease.One("", func(ctx context.Context, m lease.Message[[]byte]) error {
		n, err := strconv.Atoi(string(m.Payload))
		if count() == 500 {
			select {
			case <-half:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, n)
		return err
	})
	spec := perTopic("order", h)
	spec.Drain = time.Millisecond
	first := startProcess(ctx, pool, spec)
	must.Do(until("half of the messages are handled", func() bool { return count() == 500 }))
	first.stop()
	must.Get(pool.Exec(ctx, `VACUUM`))
	publishNumbers(ctx, be, "t.one", 1000, 1200)
	close(half)
	second := startProcess(ctx, pool, spec)
	must.Do(until("all messages are handled", func() bool { return count() >= 1200 }))
	mu.Lock()
	inverted := 0
	for i := range seen[1:] {
		if seen[i+1] <= seen[i] {
			inverted++
		}
	}
	mu.Unlock()
	b.beside("messages out of order, 500 of 1,000 handled, vacuum, 200 more", float64(inverted), "", "inverted", inverted == 0)
	second.stop()
}

// starvedPool lets handlers hold every connection of their process's pool for three ttls,
// while another process would take what is not held.
func starvedPool(ctx context.Context, b *bench, pool *pgxpool.Pool) {
	const ttl, topics = 2 * time.Second, 4
	cfg := pool.Config()
	cfg.MaxConns = topics
	small := must.Get(pgxpool.NewWithConfig(ctx, cfg))
	defer small.Close()
	be := leasepg.New(pool)
	for i := range topics {
		publishNumbers(ctx, be, fmt.Sprint("t.", i), 0, 1)
	}
	var busy atomic.Int64
	begun := make(chan struct{}) // all topics are owned, and handlers may use the pool
	spec := perTopic("starved", lease.One("", func(ctx context.Context, _ lease.Message[[]byte]) error {
		<-begun
		conn, err := small.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		busy.Add(1)
		_, err = conn.Exec(ctx, `SELECT pg_sleep($1)`, (3 * ttl).Seconds())
		return err
	}))
	spec.TTL = ttl
	spec.Drain = time.Second
	holder := startProcess(ctx, small, spec)
	owned(ctx, be, "starved", []int{topics})
	close(begun)
	must.Do(until("the pool is used up", func() bool { return busy.Load() == topics }))
	at := time.Now()
	spec.Handlers = []lease.Handler{lease.One("", noop)}
	other := startProcess(ctx, pool, spec)
	time.Sleep(time.Until(at.Add(5 * ttl / 2)))
	stolen := float64(holder.lost.Load() + other.acquired.Load())
	b.beside("leases lost in 2.5 ttls while the pool is used up", stolen, "", "1, after 0.8 ttl", stolen == 0)
	holder.stop()
	other.stop()
}

// fullSpeed lets publishers commit one event after the other as fast as they can, while a
// consumer and a reader that asks for id > position, as is often done, follow the log.
func fullSpeed(ctx context.Context, b *bench, pool *pgxpool.Pool) {
	const publishers, total = 16, 100_000
	var (
		mu             sync.Mutex
		handled, last  = map[string]int{}, map[string]int{}
		disorder, done int
	)
	spec := perTopic("all", lease.One("", func(_ context.Context, m lease.Message[[]byte]) error {
		n, err := strconv.Atoi(string(m.Payload))
		mu.Lock()
		defer mu.Unlock()
		handled[m.ID]++
		if done++; n < last[m.Key] {
			disorder++
		}
		last[m.Key] = n
		return err
	}))
	spec.Per, spec.Batch = lease.PerGroup, 500
	ours := startProcess(ctx, pool, spec)
	must.Do(until("the group has an owner", func() bool { return ours.acquired.Load() == 1 }))
	var published atomic.Bool
	var naive int
	var naiveErr error
	var reading, publishing sync.WaitGroup
	reading.Go(func() { naive, naiveErr = readNaively(ctx, pool, &published) })
	errs := make(chan error, publishers)
	begin := time.Now()
	for p := range publishers {
		publishing.Go(func() {
			be := leasepg.New(pool)
			for i := range total / publishers {
				e := lease.Event{Topic: "t.one", Key: fmt.Sprint("p", p), Kind: "n", Payload: []byte(strconv.Itoa(i))}
				if err := be.Publish(ctx, []lease.Event{e}); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	publishing.Wait()
	took := time.Since(begin)
	published.Store(true)
	reading.Wait()
	close(errs)
	must.Do(errors.Join(<-errs, naiveErr))
	if err := until("all events are handled", func() bool { mu.Lock(); defer mu.Unlock(); return len(handled) == total }); err != nil {
		fmt.Fprintf(b.out, "   %v; what is left counts as lost\n", err)
	}
	ours.stop()
	fmt.Fprintf(b.out, "   published in %v, %s events/s\n", took.Round(time.Millisecond), thousands(int64(total/took.Seconds())))
	lost := total - naive
	b.beside("events lost of 100,000 from 16 publishers", float64(total-len(handled)), "",
		fmt.Sprintf("%s (%.1f %%), by id > position in this run; 9.6-22 %% measured", thousands(int64(lost)), 100*float64(lost)/total),
		len(handled) == total && lost > 0)
	b.beside("events handled twice", float64(done-len(handled)), "", "-", done == len(handled))
	b.beside("events out of their publisher's order", float64(disorder), "", "-", disorder == 0)
}

// readNaively follows the log by id > position to its end, once all is published, and
// returns how many events it saw.
func readNaively(ctx context.Context, pool *pgxpool.Pool, published *atomic.Bool) (n int, err error) {
	defer must.Catch(&err)
	conn := must.Get(pool.Acquire(ctx))
	defer conn.Release()
	for at := int64(0); ; {
		last := published.Load() // asked before the read
		rows := must.Get(conn.Query(ctx, `SELECT id FROM leasegen.message WHERE id > $1 ORDER BY id LIMIT 100`, at))
		before := n
		for rows.Next() {
			must.Do(rows.Scan(&at))
			n++
		}
		switch {
		case rows.Err() != nil:
			return n, rows.Err()
		case n == before && last:
			return n, nil
		case n == before:
			time.Sleep(time.Millisecond)
		}
	}
}
