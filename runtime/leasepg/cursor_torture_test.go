package leasepg_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

const (
	tortureWriters = 32
	tortureTopics  = 5
	tortureKeys    = 12
	tortureLeast   = 1000            // messages that are written, at least
	tortureLong    = 6 * time.Second // how long one transaction stays open, again and again
)

// fact is the payload of a message under torture.
type fact struct {
	N int64 // unique
	// Cause had been committed when the transaction of this message began; 0 if none had.
	Cause int64
}

// chronicle is what writers did.
type chronicle struct {
	next, last atomic.Int64
	mu         sync.Mutex
	committed  map[int64]time.Time
}

// write runs writers until ctx ends: transactions that sleep, draw their xid early, roll
// back, and one that stays open nearly all the time.
func (c *chronicle) write(ctx context.Context, t *testing.T, be *leasepg.Backend, pool *pgxpool.Pool) {
	c.committed = map[int64]time.Time{}
	var wg sync.WaitGroup
	defer wg.Wait()
	for w := range tortureWriters {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := c.transaction(ctx, be, pool, w); err != nil && ctx.Err() == nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
			}
		})
	}
}

// tortureKey is one of a few keys, or none.
func tortureKey() string {
	if n := rand.IntN(tortureKeys + 1); n > 0 {
		return fmt.Sprint("k", n)
	}
	return ""
}

var errRollback = errors.New("rolled back on purpose")

func (c *chronicle) transaction(ctx context.Context, be *leasepg.Backend, pool *pgxpool.Pool, writer int) error {
	pause := func(most time.Duration) { time.Sleep(rand.N(most)) }
	var facts []fact
	cause := c.last.Load()
	err := pgx.BeginFunc(context.WithoutCancel(ctx), pool, func(tx pgx.Tx) error {
		if rand.IntN(3) == 0 {
			if _, err := tx.Exec(ctx, "SELECT pg_current_xact_id()"); err != nil {
				return err
			}
			pause(10 * time.Millisecond)
		}
		for range 1 + rand.IntN(3) {
			var es []backend.Event
			for range 1 + rand.IntN(2) {
				f := fact{c.next.Add(1), cause}
				facts = append(facts, f)
				es = append(es, backend.Event{
					Topic: fmt.Sprint("t", rand.IntN(tortureTopics)), Key: tortureKey(), Kind: "fact", Payload: fmt.Appendf(nil, `{"N":%d,"Cause":%d}`, f.N, f.Cause),
				})
			}
			// By arrays and by COPY alike.
			if err := leasepg.PublishBy(context.WithoutCancel(ctx), be, tx, rand.IntN(2) == 0, es); err != nil {
				return err
			}
			if rand.IntN(2) == 0 {
				pause(10 * time.Millisecond)
			}
		}
		if writer == 0 { // the long one
			select {
			case <-time.After(tortureLong):
			case <-ctx.Done():
			}
		}
		if rand.IntN(10) == 0 {
			return errRollback
		}
		return nil
	})
	if errors.Is(err, errRollback) {
		return nil
	}
	if err == nil {
		now := time.Now()
		c.mu.Lock()
		for _, f := range facts {
			c.committed[f.N] = now
		}
		c.mu.Unlock()
		c.last.Store(facts[0].N)
	}
	return err
}

// reading is what one reader saw.
type reading struct {
	seen              map[int64]time.Time
	twice, inversions int
	outOfOrder        int // messages that came after one with a higher id: late ones
	highest           int64
}

func (r *reading) add(t *testing.T, m backend.Raw, causes bool) {
	var f fact
	if err := json.Unmarshal(m.Payload, &f); err != nil {
		t.Fatal(err)
	}
	if _, ok := r.seen[f.N]; ok {
		r.twice++
	}
	r.seen[f.N] = time.Now()
	if _, ok := r.seen[f.Cause]; causes && f.Cause != 0 && !ok {
		r.inversions++
	}
	var id int64
	fmt.Sscan(m.ID, &id)
	if id < r.highest {
		r.outOfOrder++
	}
	r.highest = max(r.highest, id)
}

// read reads until the writers have ended and everything they committed is there, or
// no message has come for a while.
func (r *reading) read(writing context.Context, more func() int) {
	idle, empty := time.Now(), 0
	for empty < 10 || time.Since(idle) < 500*time.Millisecond {
		done := writing.Err() != nil
		empty++
		if more() > 0 || !done {
			idle, empty = time.Now(), 0
		}
	}
}

type verdict struct {
	committed, lost, twice, inversions, late int
	stall                                    time.Duration // from commit to read, for one in two
}

func (c *chronicle) judge(r *reading) verdict {
	v := verdict{committed: len(c.committed), twice: r.twice, inversions: r.inversions, late: r.outOfOrder}
	var waits []time.Duration
	for n, at := range c.committed {
		seen, ok := r.seen[n]
		if !ok {
			v.lost++
			continue
		}
		waits = append(waits, seen.Sub(at))
	}
	if len(waits) > 0 {
		slices.Sort(waits)
		v.stall = waits[len(waits)/2]
	}
	return v
}

// reader returns a function that reads and commits one batch with the backend's cursor.
// Now and then it forgets what it knows and goes on from what was stored, as after a
// crash, or commits only a part of a batch.
func reader(t *testing.T, be *leasepg.Backend, c backend.ConsumerInfo, resources []string, r *reading) func() int {
	session := kit.Join(t, be, c, time.Hour)
	kit.OK(t, be.Register(t.Context(), c, resources))
	held := map[string]backend.Grant{}
	at := map[string]backend.Cursor{}
	take := func() {
		for _, g := range session.Acquires(len(resources)) {
			held[g.Resource], at[g.Resource] = g, g.Cursor
		}
		kit.Equal(t, "resources held", len(held), len(resources))
	}
	take()
	return func() (n int) {
		if rand.IntN(50) == 0 {
			var refs []backend.Ref
			for _, g := range held {
				refs = append(refs, g.Ref)
			}
			kit.OK(t, be.Release(t.Context(), session.ID, c.Name, refs))
			clear(held)
			take()
		}
		limit := 1 + rand.IntN(200)
		req := backend.FetchRequest{Consumer: c, MaxPayload: 1 << 20}
		for _, name := range resources {
			req.Items = append(req.Items, backend.FetchItem{Resource: name, From: at[name], Limit: limit})
		}
		var ps []backend.Progress
		for _, f := range kit.Must[[]backend.Fetched](t)(be.Fetch(t.Context(), req)) {
			keep, next := len(f.Messages), f.Next
			if keep > 0 && rand.IntN(4) == 0 {
				keep = rand.IntN(keep + 1)
				next = f.Cut(keep)
			}
			for _, m := range f.Messages[:keep] {
				r.add(t, m, c.Per == backend.PerGroup)
			}
			n += keep
			at[f.Resource] = next
			if keep > 0 {
				ps = append(ps, backend.Progress{Ref: held[f.Resource].Ref, Cursor: next})
			}
		}
		fenced, err := be.Commit(t.Context(), session.ID, c.Name, ps)
		kit.OK(t, err)
		kit.Equal(t, "fenced", len(fenced), 0)
		if n == 0 {
			time.Sleep(time.Millisecond)
		}
		return n
	}
}

// writingFor is the time of writers: so long, and until enough was written to say something on a slow machine, at most five minutes.
func writingFor(t *testing.T, long time.Duration, enough func() bool) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	began := time.Now()
	time.AfterFunc(long, func() {
		for ctx.Err() == nil && !enough() && time.Since(began) < 5*time.Minute {
			time.Sleep(10 * time.Millisecond)
		}
		stop()
	})
	return ctx, stop
}

// torture lets writers and readers loose on a database for some time, and until enough was written.
func torture(t *testing.T, be *leasepg.Backend, pool *pgxpool.Pool, took time.Duration, readers map[string]func(r *reading) func() int) map[string]verdict {
	t.Helper()
	var c chronicle
	writing, stop := writingFor(t, took, func() bool { return c.next.Load() >= tortureLeast })
	defer stop()
	all := map[string]*reading{}
	var reads sync.WaitGroup
	for name, start := range readers {
		r := &reading{seen: map[int64]time.Time{}}
		all[name] = r
		more := start(r)
		reads.Go(func() { r.read(writing, more) })
	}
	c.write(writing, t, be, pool)
	reads.Wait()
	out := map[string]verdict{}
	for name, r := range all {
		out[name] = c.judge(r)
		t.Logf("%s: %+v", name, out[name])
	}
	return out
}

// tortured opens a database on which many transactions may run.
func tortured(t *testing.T, script func(string) string) (*leasepg.Backend, *pgxpool.Pool) {
	t.Helper()
	cfg := kit.Must[*pgxpool.Config](t)(pgxpool.ParseConfig(pgtest.DB(t)))
	cfg.MaxConns = tortureWriters + 6
	pool := kit.Must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
	t.Cleanup(pool.Close)
	exec(t, pool, script(leasepg.Migrations()))
	return leasepg.New(pool), pool
}

func tortureTime() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("LEASEGEN_TORTURE")); err == nil {
		return d
	}
	return time.Duration(pace.Rounds(4, 8)) * time.Second
}

func asWritten(s string) string { return s }

// TestCursorTorture: no message is lost, none comes twice, none comes before its cause,
// and none waits for transactions that are still open.
// LEASEGEN_TORTURE=5m makes it run longer than its 4 s, or 8 s in make proof.
func TestCursorTorture(t *testing.T) {
	be, pool := tortured(t, asWritten)
	topics := make([]string, tortureTopics)
	for i := range topics {
		topics[i] = fmt.Sprint("t", i)
	}
	slots, keys := make([]string, 256), []string{""}
	for i := range slots {
		slots[i] = strconv.Itoa(i)
	}
	for i := range tortureKeys {
		keys = append(keys, fmt.Sprint("k", i+1))
	}
	late := 0
	for name, v := range torture(t, be, pool, tortureTime(), map[string]func(*reading) func() int{
		"group":  func(r *reading) func() int { return reader(t, be, grouped, []string{backend.Whole}, r) },
		"topic":  func(r *reading) func() int { return reader(t, be, topical, topics, r) },
		"slot":   func(r *reading) func() int { return reader(t, be, sliced, slots, r) },
		"stream": func(r *reading) func() int { return reader(t, be, keyedStreams, keys, r) },
	}) {
		if v.committed < 500 || v.lost+v.twice+v.inversions > 0 {
			t.Errorf("%s: %+v", name, v)
		}
		// A reader that waits for it would be late by half of it, mostly.
		if limit := tortureLong/3 + slack(t, pool); v.stall > limit {
			t.Errorf("%s: one message in two was read %v or more after its commit, want %v", name, v.stall, limit)
		}
		late += v.late
	}
	if late == 0 {
		t.Error("no message was late: the torture was too mild")
	}
}

// widen makes the time between an insert's two defaults long. With xid before id that is
// harmless.
const widen = `
CREATE FUNCTION leasegen.slow_xid() RETURNS xid8 LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep(random() * 0.01); RETURN pg_current_xact_id(); END $$;
ALTER TABLE leasegen.message ALTER COLUMN xid SET DEFAULT leasegen.slow_xid();
`

func TestCursorTortureWidened(t *testing.T) {
	be, pool := tortured(t, func(s string) string { return s + widen })
	v := torture(t, be, pool, 2*time.Second, map[string]func(*reading) func() int{
		"group": func(r *reading) func() int { return reader(t, be, grouped, []string{backend.Whole}, r) },
	})["group"]
	if v.lost+v.twice+v.inversions > 0 {
		t.Errorf("%+v", v)
	}
}

// TestCursorMutantIDBeforeXID: with the columns the other way round messages get lost, and
// the torture notices.
func TestCursorMutantIDBeforeXID(t *testing.T) {
	mutant := func(s string) string {
		lines := strings.Split(s, "\n")
		for i, l := range lines {
			if strings.HasPrefix(l, "    xid          xid8") {
				lines[i], lines[i+1] = lines[i+1], l
				return strings.Join(lines, "\n") + widen
			}
		}
		t.Fatal("the log's xid column is not where it was")
		return ""
	}
	loses(t, func(t *testing.T) int {
		be, pool := tortured(t, mutant)
		return torture(t, be, pool, 2*time.Second, map[string]func(*reading) func() int{
			"group": func(r *reading) func() int { return reader(t, be, grouped, []string{backend.Whole}, r) },
		})["group"].lost
	})
}

// TestCursorMutantIDOnly: "id > pos" alone loses messages, and the torture notices.
func TestCursorMutantIDOnly(t *testing.T) { loses(t, lostByIDOnly) }

// loses fails the test if a mutant never loses a message: most tortures show it, not all.
func loses(t *testing.T, mutant func(*testing.T) (lost int)) {
	t.Helper()
	lost := 0
	for try := 0; try < 30 && lost == 0 && !t.Failed(); try++ {
		t.Run(fmt.Sprint(try), func(t *testing.T) { lost = mutant(t) })
	}
	if lost == 0 {
		t.Error("the mutant lost nothing: the torture is too mild to prove anything")
	}
}

func lostByIDOnly(t *testing.T) int {
	be, pool := tortured(t, asWritten)
	return torture(t, be, pool, 2*time.Second, map[string]func(*reading) func() int{
		"naive": func(r *reading) func() int {
			var pos int64
			return func() (n int) {
				rows, err := pool.Query(t.Context(), "SELECT id, payload FROM leasegen.message WHERE id > $1 ORDER BY id LIMIT 100", pos)
				kit.OK(t, err)
				defer rows.Close()
				for rows.Next() {
					var m backend.Raw
					kit.OK(t, rows.Scan(&pos, &m.Payload))
					m.ID = fmt.Sprint(pos)
					r.add(t, m, true)
					n++
				}
				kit.OK(t, rows.Err())
				return n
			}
		},
	})["naive"].lost
}
