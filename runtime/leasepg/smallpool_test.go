package leasepg_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leasetest"
)

// No process waits for a connection while holding one: what the suite asks for is so on pools that
// are smaller than the handlers at work, too. Left out are scenarios that only wait for a TTL, and
// tests that hold a transaction themselves while they ask for more.
func TestConformanceOnSmallPools(t *testing.T) {
	t.Parallel()
	for _, conns := range []int32{1, 2, 4} {
		t.Run(fmt.Sprint(conns), func(t *testing.T) {
			tests := []string{"Pool_", "Once_Effects"}
			if conns == 1 || pace.Long() {
				tests = append(tests, "Effects_", "A_zombie", "Retry_then_succeed", "Backoff_and_attempts", "A_stream_survives", "A_failing_batch", "Partition_keys", "Publish/", "Parked/", "Cursor/")
			}
			leasetest.RunSome(t, factory(reused(t, forSuite, conns)), tests...)
		})
	}
}

// Handlers in transactions leave a connection for the application and for leasegen's own calls.
func TestTransactionsLeaveAConnection(t *testing.T) {
	t.Parallel()
	_, app := migrated(t)
	be := leasepg.New(openMax(t, app.Config().ConnString(), 4))
	kit.OK(t, be.Check(t.Context(), nil))
	var open []backend.Tx
	for range 3 {
		open = append(open, kit.Must[backend.Tx](t)(be.Begin(t.Context(), "")))
	}
	fourth := make(chan error, 1)
	waiting, stop := context.WithCancel(t.Context())
	go func() {
		tx, err := be.Begin(waiting, "")
		if err == nil {
			err = tx.Rollback(t.Context())
		}
		fourth <- err
	}()
	kit.OK(t, be.Register(t.Context(), topical, []string{"x"}))
	_, err := be.Survey(t.Context(), []string{"topical"})
	kit.OK(t, err)
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 3)))
	select {
	case err := <-fourth:
		t.Fatalf("a fourth transaction did not wait for a turn: %v", err)
	default:
	}
	stop()
	if err := <-fourth; err == nil || !strings.Contains(err.Error(), "raise MaxConns") {
		t.Fatalf("who gives up waiting is told: %v", err)
	}
	// However a transaction ends, its turn goes to the next.
	kit.OK(t, open[0].Rollback(t.Context()))
	kit.OK(t, open[0].Rollback(t.Context()))
	tx := kit.Must[backend.Tx](t)(be.Begin(t.Context(), ""))
	if err := tx.Commit(t.Context(), kit.ID(), "topical", backend.Progress{Ref: backend.Ref{Resource: "x", Epoch: 1}}); err == nil {
		t.Fatal("a commit without a lease went through")
	}
	tx = kit.Must[backend.Tx](t)(be.Begin(t.Context(), ""))
	tx.Handle().(pgx.Tx).Conn().Close(t.Context())
	if err := tx.Commit(t.Context(), kit.ID(), "topical", backend.Progress{Ref: backend.Ref{Resource: "x", Epoch: 1}}); err == nil {
		t.Fatal("a commit without a connection went through")
	}
	for _, tx := range append(open[1:], kit.Must[backend.Tx](t)(be.Begin(t.Context(), ""))) {
		kit.OK(t, tx.Rollback(t.Context()))
	}
}

// Handlers that stay in their transactions, more of them than the pool has connections, keep
// neither the application from its pool nor a process that joins from its share.
func TestHandlersInTransactionsStarveNobody(t *testing.T) {
	t.Parallel()
	_, app := migrated(t)
	const topics = 24
	for _, topic := range kit.Topics(topics) {
		kit.OK(t, leasepg.New(app).Publish(t.Context(), kit.Events(topic, 1)))
	}
	pool := openMax(t, app.Config().ConnString(), 4)
	ended := make(chan struct{})
	end := sync.OnceFunc(func() { close(ended) })
	entered := make(chan struct{}, topics)
	spec := lease.Spec{Name: "c", Per: backend.PerTopic, Topics: []string{"*"}, TTL: time.Minute, Handlers: []lease.Handler{
		lease.OneTx("kind", func(ctx context.Context, tx pgx.Tx, m lease.Message[map[string]int]) error {
			entered <- struct{}{}
			for { // in use all the time, so that the server has no reason to end it
				select {
				case <-ended:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Second):
					if _, err := tx.Exec(ctx, "SELECT 1"); err != nil {
						return err
					}
				}
			}
		}),
	}}
	first := kit.Must[*lease.Consumer](t)(lease.NewConsumer(leasepg.New(pool), spec, quiet(), lease.WithConcurrency(16)))
	running(t, first)
	t.Cleanup(end) // first of all
	for range 3 {
		<-entered
	}
	soon, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := pool.Exec(soon, "SELECT 1"); err != nil {
		t.Fatalf("the application's query: %v", err)
	}
	running(t, kit.Must[*lease.Consumer](t)(lease.NewConsumer(leasepg.New(openMax(t, app.Config().ConnString(), 4)), spec, quiet(), lease.WithConcurrency(16))))
	t.Cleanup(end)
	kit.Eventually(t, "who joins gets leases", func() bool {
		return query[int](t, app, "SELECT count(DISTINCT session) FROM leasegen.lease") == 2
	})
}

// A pool that is smaller than is sensible is reported once, when the program starts.
func TestSmallPoolIsToldOf(t *testing.T) {
	t.Parallel()
	_, app := migrated(t)
	for conns, want := range map[int32]int{1: 1, 2: 1, 4: 0} {
		var log bytes.Buffer
		be := leasepg.New(openMax(t, app.Config().ConnString(), conns), leasepg.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		kit.OK(t, be.Check(t.Context(), nil))
		kit.OK(t, be.Check(t.Context(), nil))
		kit.Equal(t, fmt.Sprintf("warnings about a pool of %d in %q", conns, log.String()), strings.Count(log.String(), "the pool is small"), want)
	}
}
