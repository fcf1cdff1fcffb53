package leasepg_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// A handler cannot commit its transaction: its effects would be there without the
// fence. Savepoints within it are its own affair.
func TestHandlersDoNotCommit(t *testing.T) {
	be, pool := migrated(t)
	exec(t, pool, "CREATE TABLE effect (n int)")
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1)))
	refused := make(chan error, 1)
	c := kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, lease.Spec{
		Name: "impatient", Per: backend.PerTopic, Topics: []string{"*"}, Retry: lease.Retry{Max: 1},
		Handlers: []lease.Handler{lease.OneTx("kind", func(ctx context.Context, tx pgx.Tx, m lease.Message[struct{ N int }]) error {
			err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO effect VALUES (1)")
				return err
			})
			if err != nil {
				return err
			}
			err = tx.Commit(ctx)
			refused <- err
			return err
		})},
	}, lease.WithLogger(slog.New(slog.DiscardHandler))))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- kit.Run(ctx, c) }()
	if err := <-refused; err == nil || !strings.Contains(err.Error(), "do not commit it") {
		t.Errorf("Commit in a handler: %v", err)
	}
	kit.Eventually(t, "a dead letter", func() bool {
		return len(kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(ctx, operate.DeadLetterFilter{}))) == 1
	})
	cancel()
	kit.OK(t, <-done)
	kit.Equal(t, "effects", query[int](t, pool, "SELECT count(*) FROM effect"), 0)
}

// The work of a handler in its transaction can be refused as late as at the commit. It
// then counts as a failure of its message: the others are handled, and the lease stays.
func TestRefusedCommits(t *testing.T) {
	for name, wrong := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"deferred constraint": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO effect VALUES (1)")
			return err
		},
		"error passed over": func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, "SELECT 1/0")
			return nil
		},
		"transaction ended": func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			be, pool := migrated(t)
			exec(t, pool, "CREATE TABLE effect (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
			es := kit.Events("x", 20)
			for i := range es {
				es[i].Key = ""
			}
			kit.OK(t, be.Publish(t.Context(), es))
			var acquired atomic.Int64
			c := kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, lease.Spec{
				Name: "refused", Per: backend.PerTopic, Topics: []string{"*"}, Retry: lease.Retry{Max: 2, Min: time.Millisecond},
				Handlers: []lease.Handler{lease.OneTx("kind", func(ctx context.Context, tx pgx.Tx, m lease.Message[struct{ N int }]) error {
					if m.Payload.N == 7 {
						return wrong(ctx, tx)
					}
					_, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1)", m.Payload.N)
					return err
				})},
			}, lease.WithLogger(slog.New(slog.DiscardHandler)), lease.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
				if _, ok := o.(operate.ObservedAcquire); ok {
					acquired.Add(1)
				}
			}))))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- kit.Run(ctx, c) }()
			kit.Eventually(t, "19 effects", func() bool { return query[int](t, pool, "SELECT count(*) FROM effect") == 19 })
			kit.Eventually(t, "a dead letter", func() bool {
				return len(kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(ctx, operate.DeadLetterFilter{}))) == 1
			})
			cancel()
			kit.OK(t, <-done)
			d := kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(t.Context(), operate.DeadLetterFilter{}))[0]
			if d.Attempts != 2 || !strings.Contains(d.Reason, "refused and rolled back") {
				t.Errorf("dead letter after %d attempts: %s", d.Attempts, d.Reason)
			}
			kit.Equal(t, "leases acquired", acquired.Load(), 1)
		})
	}
}

// A connection that the server ends under a handler costs the message no attempt.
func TestTerminatedConnections(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	exec(t, pool, "CREATE TABLE effect (n int, attempt int)")
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 20)))
	left := 3 // connections to end
	c := kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, lease.Spec{
		Name: "cut", Per: backend.PerTopic, Topics: []string{"*"}, Retry: lease.Retry{Max: 1},
		Handlers: []lease.Handler{lease.OneTx("kind", func(ctx context.Context, tx pgx.Tx, m lease.Message[struct{ N int }]) error {
			if m.Payload.N == 7 && left > 0 {
				left--
				exec(t, pool, "SELECT pg_terminate_backend($1, 5000)", tx.Conn().PgConn().PID())
			}
			_, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1, $2)", m.Payload.N, m.Attempt)
			return err
		})},
	}, lease.WithLogger(slog.New(slog.DiscardHandler))))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- kit.Run(ctx, c) }()
	kit.Eventually(t, "20 effects", func() bool { return query[int](t, pool, "SELECT count(*) FROM effect WHERE attempt = 1") == 20 })
	cancel()
	kit.OK(t, <-done)
	kit.Equal(t, "connections left to end", left, 0)
	kit.Equal(t, "effects", query[int](t, pool, "SELECT count(*) FROM effect"), 20)
}
