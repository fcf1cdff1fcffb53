package proof

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// TestPromotions fails over again and again, each time to a standby that lacks the last writes,
// under consumers that live through all of it: what is published after a promotion is handled.
func TestPromotions(t *testing.T) {
	t.Parallel()
	primary := pgtest.Start(t, pgtest.Config("fsync", "off"))
	var addr atomic.Value // of the primary
	addr.Store(primary.Addr())
	cfg, err := pgxpool.ParseConfig(primary.DB("promoted"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 8
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, addr.Load().(string))
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := leasepg.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}

	kinds := []lease.Per{lease.PerGroup, lease.PerTopic, lease.PerPartition, lease.PerStream}
	var (
		mu      sync.Mutex
		handled = map[string]map[lease.Per]map[int64]bool{} // by batch
	)
	type event struct {
		Batch string
		N     int64
	}
	be := leasepg.New(pool, leasepg.WithLogger(slog.New(slog.DiscardHandler)))
	quiet := lease.WithLogger(slog.New(slog.DiscardHandler))
	group := lease.NewGroup()
	for _, per := range kinds {
		c, err := lease.NewConsumer(be, lease.Spec{Name: per.String(), Per: per, Topics: []string{"*"}, TTL: 6 * time.Second,
			Handlers: []lease.Handler{lease.One("kind", func(_ context.Context, m lease.Message[event]) error {
				mu.Lock()
				defer mu.Unlock()
				if handled[m.Payload.Batch] == nil {
					handled[m.Payload.Batch] = map[lease.Per]map[int64]bool{}
				}
				if handled[m.Payload.Batch][per] == nil {
					handled[m.Payload.Batch][per] = map[int64]bool{}
				}
				handled[m.Payload.Batch][per][m.Payload.N] = true
				return nil
			})}}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		if err := group.Add(c); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := group.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })

	publish := func(batch string, n int) {
		t.Helper()
		es := make([]lease.Event, n)
		for i := range es {
			es[i] = lease.Event{Topic: fmt.Sprint("t", i%5), Key: fmt.Sprint("k", i%7), Kind: "kind", Payload: fmt.Appendf(nil, `{"Batch":%q,"N":%d}`, batch, i)}
		}
		// The pool still has connections to the server that is gone.
		for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			err := be.Publish(t.Context(), es)
			if err == nil {
				return
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
	await := func(batch string, n int) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
			mu.Lock()
			all, counts := true, map[lease.Per]int{}
			for _, per := range kinds {
				counts[per] = len(handled[batch][per])
				all = all && counts[per] == n
			}
			mu.Unlock()
			if all {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("of %d events of %q were handled: %v", n, batch, counts)
			}
		}
	}
	for round := range max(rounds(t)/10, 1) {
		kept, lost, later := fmt.Sprint("kept ", round), fmt.Sprint("lost ", round), fmt.Sprint("later ", round)
		standby := primary.Replica(t)
		publish(kept, 100)
		await(kept, 100)
		standby.Detach(primary)
		publish(lost, 300)
		await(lost, 300)
		primary.Kill()
		standby.Promote()
		addr.Store(standby.Addr())
		publish(later, 150)
		await(later, 150)
		primary = standby
	}
}
