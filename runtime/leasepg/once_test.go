package leasepg_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// A start that was held up in the server while another owner took the lease, and began the
// item itself, does not take the item away from it.
func TestStartOnceAfterTakeover(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	kit.OK(t, be.Register(t.Context(), topical, []string{"x"}))
	old := kit.Join(t, be, topical, time.Hour)
	stale := old.Acquires(1)[0]
	next := kit.Join(t, be, topical, time.Hour)

	// The note of the next owner, kept open until it has the lease.
	tx := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err := tx.Exec(t.Context(), "INSERT INTO leasegen.once (consumer, key, done, session, resource, epoch) VALUES ($1, 'i', false, $2, 'x', 0)", topical.Name, next.ID)
	kit.OK(t, err)
	type result struct {
		state backend.OnceState
		err   error
	}
	late := make(chan result, 1)
	go func() {
		state, err := be.StartOnce(t.Context(), old.ID, topical.Name, stale.Ref, "i", "1")
		late <- result{state, err}
	}()
	kit.Eventually(t, "the start waits", func() bool {
		return query[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%StartOnce%'") == 1
	})
	expire(t, pool, old.ID)
	g := next.Acquires(1)
	kit.Equal(t, "taken over", len(g), 1)
	_, err = tx.Exec(t.Context(), "UPDATE leasegen.once SET epoch = $1 WHERE key = 'i'", g[0].Epoch)
	kit.OK(t, err)
	kit.OK(t, tx.Commit(t.Context()))
	if r := <-late; r.err == nil && r.state != backend.OnceBusy {
		t.Errorf("the stale start: state %d", r.state)
	}
	kit.Equal(t, "the next owner's start, repeated", kit.Must[backend.OnceState](t)(be.StartOnce(t.Context(), next.ID, topical.Name, g[0].Ref, "i", "1")), backend.OnceNew)
	_, err = be.Commit(t.Context(), next.ID, topical.Name, []backend.Progress{{Ref: g[0].Ref, Seq: 1, Once: []backend.OnceResult{{Key: "i", Done: true}}}})
	kit.OK(t, err)
	kit.Equal(t, "afterwards", kit.Must[backend.OnceState](t)(be.StartOnce(t.Context(), next.ID, topical.Name, g[0].Ref, "i", "1")), backend.OnceDone)
}
