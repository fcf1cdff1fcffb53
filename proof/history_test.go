package proof

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// site is a server with the log, the effects table and what was published.
type site struct {
	server *pgtest.Server
	dsn    string
	pool   *pgxpool.Pool
	be     *leasepg.Backend
	mode   mode // of the replicas
	// faulty: the server fails, and with it handlers, whose messages are retried.
	faulty bool
	bare   *pace.Bare // beside the load

	mu        sync.Mutex
	published map[string]int64 // per topic
}

func newSite(t *testing.T, m mode, opts ...pgtest.Option) *site {
	t.Helper()
	// Commit timestamps tell the order in which effects became visible.
	opts = append([]pgtest.Option{pgtest.WALOnDisk(), pgtest.Config("track_commit_timestamp", "on"), pgtest.Config("max_connections", "200")}, opts...)
	s := &site{server: pgtest.Start(t, opts...), mode: m, published: map[string]int64{}}
	s.dsn = s.server.DB("proof")
	cfg, err := pgxpool.ParseConfig(s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	// The test's messages must survive the server, whatever its default.
	cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "on"
	if s.pool, err = pgxpool.NewWithConfig(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.pool.Close)
	var migrate []leasepg.Option
	if m == slots {
		migrate = append(migrate, leasepg.WithSlots(slotCount))
	}
	if _, err := leasepg.Migrate(t.Context(), s.pool, migrate...); err != nil {
		t.Fatal(err)
	}
	s.exec(t, `CREATE TABLE effect (
		id bigint GENERATED ALWAYS AS IDENTITY, message_id text NOT NULL, topic text NOT NULL,
		seq bigint NOT NULL, epoch bigint NOT NULL, replica text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	s.be = leasepg.New(s.pool)
	return s
}

// ping is a bare request of the server.
func (s *site) ping(ctx context.Context) error { return s.pool.Ping(ctx) }

func (s *site) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// through is the DSN by way of a proxy.
func (s *site) through(p *faultproxy.Proxy) string {
	return strings.Replace(s.dsn, s.server.Addr(), p.Addr(), 1)
}

// publish appends the next n messages of a topic.
func (s *site) publish(ctx context.Context, topic string, n int) error {
	s.mu.Lock()
	seq := s.published[topic]
	s.mu.Unlock()
	msgs := make([]numbered, n)
	for i := range msgs {
		msgs[i].Seq = seq + int64(i) + 1
	}
	if err := lease.Publish(ctx, s.be, topic, lease.EventType[numbered]{Kind: "numbered", Key: (*numbered).key}, msgs); err != nil {
		return err
	}
	s.mu.Lock()
	s.published[topic] += int64(n)
	s.mu.Unlock()
	return nil
}

// load publishes to topics until the returned function is called. Each topic has one
// publisher, so that the order of a topic is known.
func (s *site) load(t *testing.T, topics int) (stop func()) {
	t.Helper()
	const publishers = 5
	pause := 60 * time.Millisecond
	if !pace.Long() && (s.mode == whole || s.mode == failing) {
		pause *= 5 // other tests need the machine, too; what has to go wrong needs the load
	}
	s.bare = pace.Beside(t, s.ping)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for p := range publishers {
		wg.Go(func() {
			for ctx.Err() == nil {
				topic := fmt.Sprintf("t.%02d", p+publishers*rand.IntN(topics/publishers))
				// Not cancelled half-way: then no process would know what was published.
				if err := s.publish(context.WithoutCancel(ctx), topic, 1+rand.IntN(4)); err != nil {
					t.Errorf("publish: %v", err)
					return
				}
				time.Sleep(rand.N(pause))
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

// total is how many messages were published, and how many of them are poison.
func (s *site) total() (n, poison int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.published {
		n += c
		if s.mode == failing {
			poison += c / poisonAt
		}
	}
	return n, poison
}

// drained waits until every message has an effect or is a dead letter; that no change comes for too
// long fails the test.
func (s *site) drained(t *testing.T) {
	t.Helper()
	if done, ok := s.quiet(t, patience); !ok {
		all, _ := s.total()
		t.Errorf("nothing happened for %v at %d of %d messages", patience, done, all)
	}
}

// quiet waits until every message has an effect or is a dead letter, or none
// happens for a while.
func (s *site) quiet(t *testing.T, patience time.Duration) (done int64, ok bool) {
	t.Helper()
	last := int64(-1)
	for since := time.Now(); time.Since(since) < patience; time.Sleep(50 * time.Millisecond) {
		err := s.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM (SELECT DISTINCT topic, seq FROM effect) e) +
			(SELECT count(*) FROM leasegen.dead_letter)`).Scan(&done)
		if err != nil {
			t.Fatal(err)
		}
		if all, _ := s.total(); done >= all {
			return done, true
		}
		if done != last {
			last, since = done, time.Now()
		}
	}
	return done, false
}

// verdict is what the history shows.
type verdict struct {
	published, effects, dead, lost, twice, stale, disorder int64
}

func (v verdict) violations() int64 { return v.lost + v.twice + v.stale + v.disorder }

func (s *site) judge(t *testing.T) verdict {
	t.Helper()
	var v verdict
	var poison int64
	v.published, poison = s.total()
	var distinct, staleWritten, staleCommitted int64
	// Effects in the order in which they were written, and in which they were committed.
	// Where handlers fail, a key waits and the others do not: then each key has its order.
	lane := "0"
	if s.mode == failing || s.faulty {
		lane = fmt.Sprintf("seq %% %d", lanes)
	}
	err := s.pool.QueryRow(t.Context(), `
		WITH history AS (
			SELECT topic, seq, epoch,
				max(epoch) OVER (PARTITION BY topic ORDER BY id) AS written_before,
				max(epoch) OVER (PARTITION BY topic ORDER BY committed, id) AS committed_before,
				max(seq) OVER (PARTITION BY topic, `+lane+` ORDER BY committed, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS seq_before
			FROM (SELECT *, pg_xact_commit_timestamp(xmin) AS committed FROM effect) e)
		SELECT count(*), count(DISTINCT (topic, seq)),
			count(*) FILTER (WHERE epoch < written_before),
			count(*) FILTER (WHERE epoch < committed_before),
			count(*) FILTER (WHERE seq < seq_before)
		FROM history`).Scan(&v.effects, &distinct, &staleWritten, &staleCommitted, &v.disorder)
	if err != nil {
		t.Fatal(err)
	}
	// Only poison is given up on, with all its attempts, and has no effect; and, on a machine that stalls, messages that were
	// tried alone when one owner after the other lost its lease.
	stalled := s.bare != nil && s.bare.Stalled()
	var wrong, blamed int64
	var reasons string
	err = s.pool.QueryRow(t.Context(), `
		SELECT count(*), count(*) FILTER (WHERE wrong), coalesce(string_agg(DISTINCT reason, '; ') FILTER (WHERE wrong), ''), count(*) FILTER (WHERE blamed)
		FROM (SELECT reason, blamed, effects > 0 OR NOT blamed AND (NOT $1 OR seq % $2 <> 0 OR attempts <> $3) AS wrong
			FROM (SELECT reason, attempts, seq, $4 AND reason LIKE 'the process died %' AS blamed,
					(SELECT count(*) FROM effect e WHERE e.topic = d.topic AND e.seq = d.seq) AS effects
				FROM (SELECT *, (convert_from(payload, 'UTF8')::json->>'Seq')::bigint AS seq FROM leasegen.dead_letter) d) d) d`,
		s.mode == failing, poisonAt, attempts, stalled).Scan(&v.dead, &wrong, &reasons, &blamed)
	if err != nil {
		t.Fatal(err)
	}
	if wrong > 0 {
		t.Errorf("%d dead letters of messages that should not be, or not with so many attempts: %s", wrong, reasons)
	}
	v.lost, v.twice, v.stale = v.published-distinct-v.dead, v.effects-distinct, max(staleWritten, staleCommitted)
	if v.dead-blamed > poison {
		t.Errorf("%d dead letters, want %d", v.dead-blamed, poison)
	}
	return v
}

// nothingInvented checks that each effect belongs to a published message.
func (s *site) nothingInvented(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	topics, counts := []string{}, []int64{}
	for topic, n := range s.published {
		topics, counts = append(topics, topic), append(counts, n)
	}
	s.mu.Unlock()
	var unexpected int64
	err := s.pool.QueryRow(t.Context(), `
		SELECT count(*) FROM effect e LEFT JOIN unnest($1::text[], $2::bigint[]) AS p (topic, n) USING (topic)
		WHERE p.n IS NULL OR e.seq NOT BETWEEN 1 AND p.n`, topics, counts).Scan(&unexpected)
	if err != nil {
		t.Fatal(err)
	}
	if unexpected > 0 {
		t.Errorf("%d effects of messages that nobody published", unexpected)
	}
}

// row is one line of the closing table.
type row struct {
	fault            string
	rounds           int
	takeovers, fence int
	took             time.Duration
	verdict
}

// and is both rows in one.
func (r row) and(other row) row {
	r.fault, r.rounds, r.took = other.fault, r.rounds+other.rounds, max(r.took, other.took)
	r.takeovers, r.fence = r.takeovers+other.takeovers, r.fence+other.fence
	v, o := &r.verdict, other.verdict
	v.published, v.effects, v.dead, v.lost = v.published+o.published, v.effects+o.effects, v.dead+o.dead, v.lost+o.lost
	v.twice, v.stale, v.disorder = v.twice+o.twice, v.stale+o.stale, v.disorder+o.disorder
	return r
}

func printTable(t *testing.T, rows ...row) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-24s %6s %6s %9s %9s %5s %5s %6s %6s %13s %10s %8s\n", "fault", "rounds", "took", "published", "effects", "dead",
		"lost", "twice", "stale", "out of order", "takeovers", "refused")
	for _, r := range rows {
		fmt.Fprintf(&b, "%-24s %6d %6s %9d %9d %5d %5d %6d %6d %13d %10d %8d\n", r.fault, r.rounds, r.took.Round(time.Second), r.published, r.effects, r.dead,
			r.lost, r.twice, r.stale, r.disorder, r.takeovers, r.fence)
	}
	t.Log(b.String())
}
