package proof

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime/metrics"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// soaking is how long TestSoak takes, and its load.
type soaking struct {
	took      time.Duration
	topics    int
	perSecond int
	kills     time.Duration // between two of them
	busy      int           // loops that take the machine away
	judged    bool          // waiting and memory, too: when it has the time to settle
}

// TestSoak runs four consumers, one of each kind of ownership, that write an effect for each message of many
// topics, while replicas are killed and busy loops take the machine away. At the end none of them is behind,
// memory has not grown, nor any table but the log and the effects. PROOF_SOAK says for how long: make soak.
func TestSoak(t *testing.T) {
	w := soaking{took: 12 * time.Second, topics: 60, perSecond: 20, kills: 3 * time.Second}
	if v := os.Getenv("PROOF_SOAK"); v != "" {
		w = soaking{topics: 2000, perSecond: 200, kills: 30 * time.Second, busy: 2, judged: true}
		var err error
		if w.took, err = time.ParseDuration(v); err != nil || w.took < 2*time.Minute {
			t.Fatalf("PROOF_SOAK=%q is not a time of at least 2m", v)
		}
	} else {
		t.Parallel()
	}
	s := newSite(t, soak, pgtest.OnDisk(), pgtest.Config("autovacuum_naptime", "5s"))
	s.exec(t, `CREATE TABLE soaked (id bigint GENERATED ALWAYS AS IDENTITY, consumer text NOT NULL, topic text NOT NULL, seq bigint NOT NULL,
		message_id bigint NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	for range w.busy {
		busyLoop(t)
	}
	f := startFleet(t, soak, s.dsn, s.dsn, s.dsn)
	begin := time.Now()
	stop := s.sprinkle(t, w)
	var early, late weighed
	const last = 10 * time.Second
	var bare *pace.Bare
	for killed := time.Now(); time.Since(begin) < w.took; time.Sleep(100 * time.Millisecond) {
		// The first replica is never killed: its memory is what is looked at. The last kill is long over at the end.
		if time.Since(killed) >= w.kills && time.Since(begin) < w.took-w.kills {
			f.Kill(f.Replicas[1+rand.IntN(2)])
			killed = time.Now()
		}
		if bare == nil && time.Since(begin) > w.took-last {
			bare = pace.Beside(t, s.ping)
		}
		if early.memory == 0 && time.Since(begin) > w.took/4 {
			early = s.weigh(t, f)
		}
	}
	late = s.weigh(t, f)
	end := time.Now()
	bare.Stop()
	stop()
	s.soaked(t)
	f.Stop()

	t.Logf("%v, %d messages/s on %d topics, %d takeovers after kills", w.took, w.perSecond, w.topics, f.Count(fleet.TakenOver))
	t.Logf("%12s %9s %10s %10s %10s %6s %6s %9s", "consumer", "effects", "waits p50", "waits p99", "longest", "lost", "twice", "disorder")
	published, _ := s.total()
	for _, name := range soakers {
		v := s.judgeSoaked(t, name, published)
		waits := s.soakWaits(t, name, end.Add(-last), end)
		t.Logf("%12s %9d %10v %10v %10v %6d %6d %9d", name, v.effects, quantile(waits, 0.5), quantile(waits, 0.99), quantile(waits, 1), v.lost, v.twice, v.disorder)
		if v.violations() > 0 {
			t.Errorf("%s: the history is wrong: %+v", name, v)
		}
		if w.judged {
			bare.Within(t, fmt.Sprintf("%s: waiting of the last messages (p99)", name), quantile(waits, 0.99), time.Second)
		}
	}
	t.Logf("memory of a replica: %d MB after %v, %d MB after %v; tables but the log: %d MB, %d MB",
		early.memory>>20, early.at.Round(time.Second), late.memory>>20, late.at.Round(time.Second), early.tables>>20, late.tables>>20)
	if early.memory == 0 || late.memory == 0 || late.tables == 0 {
		t.Errorf("nothing was measured: %+v, %+v", early, late)
	}
	if grown := late.memory - early.memory; w.judged && grown > early.memory/4+16<<20 {
		t.Errorf("the memory of a replica has grown by %d MB", grown>>20)
	}
	if grown := late.tables - early.tables; w.judged && grown > early.tables/4+8<<20 {
		t.Errorf("tables other than the log have grown by %d MB", grown>>20)
	}
}

// soakers are the consumers of a soak, by kind of ownership.
var soakers = []string{"group", "partition", "stream", "topic"}

// soakGroup is what a replica of a soak runs.
func soakGroup(be lease.Backend, log *slog.Logger) (*lease.Group, error) {
	g := lease.NewGroup()
	pers := []lease.Per{lease.PerGroup, lease.PerPartition, lease.PerStream, lease.PerTopic}
	for i, name := range soakers {
		c, err := lease.NewConsumer(be, lease.Spec{
			Name: name, Per: pers[i], Topics: []string{"t.*"}, TTL: 5 * ttl, Drain: 2 * time.Second,
			Handlers: []lease.Handler{lease.BatchTx("numbered", func(ctx context.Context, tx pgx.Tx, ms []lease.Message[keyed]) error {
				var topics, ids []string
				var seqs []int64
				for _, m := range ms {
					topics, seqs, ids = append(topics, m.Topic), append(seqs, m.Payload.Seq), append(ids, m.ID)
				}
				_, err := tx.Exec(ctx, `INSERT INTO soaked (consumer, topic, seq, message_id)
					SELECT $1, u.topic, u.seq, u.id::bigint FROM unnest($2::text[], $3::bigint[], $4::text[]) u (topic, seq, id)`, name, topics, seqs, ids)
				return err
			})},
		}, lease.WithLogger(log), lease.WithObserver(operate.ObserverFunc(fleet.Tell)))
		if err != nil {
			return nil, err
		}
		if err := g.Add(c); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// tellMemory prints now and then how much memory the process has.
func tellMemory(ctx context.Context) {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	for every := time.Tick(500 * time.Millisecond); ; {
		select {
		case <-every:
			metrics.Read(samples)
			fmt.Printf("memory %d\n", samples[0].Value.Uint64()-samples[1].Value.Uint64())
		case <-ctx.Done():
			return
		}
	}
}

// busyLoop keeps one core busy until the test ends.
func busyLoop(t *testing.T) {
	t.Helper()
	p := fleet.NewProcess("busy loop", []string{envMode + "=" + string(busy)}, func(string) {}, os.Stderr)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.End)
}

// sprinkle publishes messages to topics chosen at random, each the key of its messages, until the returned function is
// called.
func (s *site) sprinkle(t *testing.T, w soaking) (stop func()) {
	t.Helper()
	const publishers = 5
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	event := lease.EventType[keyed]{Kind: "numbered", Key: func(k *keyed) string { return k.Key }}
	for p := range publishers {
		wg.Go(func() {
			pause := time.Second * publishers / time.Duration(w.perSecond)
			for next := time.Now(); ctx.Err() == nil; next = next.Add(pause) {
				time.Sleep(time.Until(next)) // those that are late are caught up with
				topic := fmt.Sprintf("t.%04d", p+publishers*rand.IntN(w.topics/publishers))
				s.mu.Lock()
				m := keyed{s.published[topic] + 1, topic}
				s.mu.Unlock()
				if err := lease.Publish(context.WithoutCancel(ctx), s.be, topic, event, []keyed{m}); err != nil {
					t.Errorf("publish: %v", err)
					return
				}
				s.mu.Lock()
				s.published[topic]++
				s.mu.Unlock()
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

// soaked waits until all consumers have handled all messages, or none of them does anything for a while.
func (s *site) soaked(t *testing.T) {
	t.Helper()
	published, _ := s.total()
	all, last := published*int64(len(soakers)), int64(-1)
	for since := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		var done int64
		if err := s.pool.QueryRow(t.Context(), `SELECT count(*) FROM soaked`).Scan(&done); err != nil {
			t.Fatal(err)
		}
		if done >= all {
			return
		}
		if done != last {
			last, since = done, time.Now()
		}
		if time.Since(since) > patience {
			t.Errorf("nothing happened for %v at %d of %d effects", patience, done, all)
			return
		}
	}
}

func (s *site) judgeSoaked(t *testing.T, consumer string, published int64) verdict {
	t.Helper()
	v := verdict{published: published}
	var distinct int64
	err := s.pool.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT (topic, seq)), count(*) FILTER (WHERE back)
		FROM (SELECT topic, seq, seq < lag(seq) OVER (PARTITION BY topic ORDER BY id) AS back FROM soaked WHERE consumer = $1) e`, consumer).
		Scan(&v.effects, &distinct, &v.disorder)
	if err != nil {
		t.Fatal(err)
	}
	v.twice, v.lost = v.effects-distinct, published-distinct
	return v
}

// soakWaits says how long messages that were published in a while waited for their effect.
func (s *site) soakWaits(t *testing.T, consumer string, from, to time.Time) []time.Duration {
	t.Helper()
	rows, err := s.pool.Query(t.Context(), `SELECT extract(epoch FROM e.at - m.published_at)::float8
		FROM leasegen.message m JOIN soaked e ON e.message_id = m.id AND e.consumer = $1 WHERE m.published_at BETWEEN $2 AND $3`, consumer, from, to)
	if err != nil {
		t.Fatal(err)
	}
	waits, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (time.Duration, error) {
		var seconds float64
		err := r.Scan(&seconds)
		return time.Duration(seconds * float64(time.Second)), err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(waits)
	return waits
}

// weighed is what a soak must not let grow, at a moment of it.
type weighed struct {
	at     time.Duration // since the server was started
	memory int64         // of the first replica
	tables int64         // of leasegen, but for the log
}

// weigh measures memory as the least of the last ten seconds, so that it does not depend on when garbage was collected.
func (s *site) weigh(t *testing.T, f *fleet.Fleet) (w weighed) {
	t.Helper()
	for _, e := range slices.Backward(f.Events(0)) {
		if time.Since(e.At) > 10*time.Second {
			break
		}
		if e.What != "memory" || e.Replica != f.Replicas[0].Name {
			continue
		}
		n, err := strconv.ParseInt(e.Resource, 10, 64)
		if err != nil {
			t.Errorf("a replica told %+v: %v", e, err)
		}
		if w.memory == 0 || n < w.memory {
			w.memory = n
		}
	}
	var seconds float64
	err := s.pool.QueryRow(t.Context(), `SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8,
		(SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c
		 WHERE c.relnamespace = 'leasegen'::regnamespace AND c.relkind = 'r' AND NOT c.relispartition)`).Scan(&seconds, &w.tables)
	if err != nil {
		t.Fatal(err)
	}
	w.at = time.Duration(seconds * float64(time.Second))
	return w
}
