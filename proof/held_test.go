package proof

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// A write transaction that stays open elsewhere, with an old snapshot, holds no lease up:
// messages that come in between are handled as fast as they come, and the log has no dead
// tuples. PROOF_HELD says for how long it is open.
func TestHeldTransaction(t *testing.T) {
	t.Parallel()
	const (
		perSecond = 2000
		topics    = 10
		tick      = 10 * time.Millisecond
	)
	held := 10 * time.Second
	if v := os.Getenv("PROOF_HELD"); v != "" {
		var err error
		if held, err = time.ParseDuration(v); err != nil || held < time.Second {
			t.Fatalf("PROOF_HELD=%q is not a time of at least 1s", v)
		}
	}
	s := newSite(t, whole, pgtest.Config("autovacuum_naptime", "1s"))
	c, err := lease.NewConsumer(leasepg.New(s.pool), lease.Spec{Name: consumerName, Per: lease.PerTopic, Topics: []string{"t.*"}, Handlers: []lease.Handler{
		lease.BatchTx("numbered", func(ctx context.Context, tx pgx.Tx, ms []lease.Message[numbered]) error {
			var ids, names []string
			var seqs, epochs []int64
			for _, m := range ms {
				ids, names, seqs, epochs = append(ids, m.ID), append(names, m.Topic), append(seqs, m.Payload.Seq), append(epochs, m.Epoch)
			}
			_, err := tx.Exec(ctx, `INSERT INTO effect (message_id, topic, seq, epoch, replica)
				SELECT *, 'one' FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])`, ids, names, seqs, epochs)
			return err
		})}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	publish, stop := context.WithCancel(t.Context())
	defer stop()
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for next := time.Now(); publish.Err() == nil; next = next.Add(tick) {
			time.Sleep(time.Until(next)) // those that are late are caught up with
			if err := s.publish(context.WithoutCancel(publish), fmt.Sprint("t.", time.Now().UnixNano()%topics), perSecond*int(tick)/int(time.Second)); err != nil {
				t.Errorf("publish: %v", err)
				return
			}
		}
	})
	// handled is what was published and handled in d, and how long it had waited.
	handled := func(d time.Duration) (n int, waits []time.Duration) {
		begun := time.Now()
		time.Sleep(d)
		waits = s.waits(t, begun, d)
		return len(waits), waits
	}
	effects := func() (n int64) {
		if err := s.pool.QueryRow(t.Context(), `SELECT count(*) FROM effect`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	eventually(t, "messages are handled", func() bool { return effects() > perSecond })
	before, waitsBefore := handled(5 * time.Second)

	other, err := s.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback(context.Background())
	if _, err := other.Exec(t.Context(), `CREATE TABLE elsewhere AS SELECT 1 AS one`); err != nil {
		t.Fatal(err)
	}
	if held > 5*time.Second {
		time.Sleep(held - 5*time.Second)
	}
	// The last seconds are the worst: what the transaction keeps from being cleaned up has piled up.
	bare := pace.Beside(t, s.ping)
	during, waitsDuring := handled(min(held, 5*time.Second))
	bare.Within(t, "half of the messages' wait while a transaction is open elsewhere", quantile(waitsDuring, 0.5), 50*time.Millisecond)
	bare.Stop()
	published, _ := s.total()
	eventually(t, "all that was published is handled while a transaction is open elsewhere", func() bool { return effects() >= published })
	log, leases := s.deadTuples(t)
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%12s %9s %10s %10s %17s %13s", "", "handled/s", "waits p50", "waits p99", "dead in the log", "dead leases")
	t.Logf("%12s %9d %10v %10v", "before", before/5, quantile(waitsBefore, 0.5), quantile(waitsBefore, 0.99))
	t.Logf("%12s %9d %10v %10v %17d %13d", fmt.Sprint("held ", held), during/5, quantile(waitsDuring, 0.5), quantile(waitsDuring, 0.99), log, leases)
	if log != 0 {
		t.Errorf("%d dead tuples in the log, want 0", log)
	}
	if leases == 0 {
		t.Error("no dead tuples in the lease table, which is updated all the time: they are not counted, and the test shows nothing")
	}
	stop()
	publishing.Wait()
	s.drained(t)
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if v := s.judge(t); v.violations() > 0 {
		t.Errorf("the history is wrong: %+v", v)
	}
}

// deadTuples counts them in the log and in the lease table.
func (s *site) deadTuples(t *testing.T) (log, leases int64) {
	t.Helper()
	// The counts are up to a second behind.
	eventually(t, "the server has counted dead leases", func() bool {
		err := s.pool.QueryRow(t.Context(), `SELECT
			(SELECT coalesce(sum(pg_stat_get_dead_tuples(relid)), 0)::bigint FROM pg_partition_tree('leasegen.message')),
			(SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'leasegen.lease'::regclass)`).Scan(&log, &leases)
		if err != nil {
			t.Fatal(err)
		}
		return leases > 0
	})
	return log, leases
}
