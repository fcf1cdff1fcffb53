package leasepg_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// slack is kit.Slack for a small statement.
func slack(t testing.TB, pool *pgxpool.Pool) time.Duration {
	t.Helper()
	return kit.Slack(func() { exec(t, pool, "SELECT 1") })
}

var (
	topical = backend.ConsumerInfo{Name: "topical", Per: backend.PerTopic, Topics: []string{"*"}}
	grouped = backend.ConsumerInfo{Name: "grouped", Per: backend.PerGroup, Topics: []string{"*"}}
)

// expire makes sessions look silent for longer than their TTL.
func expire(t testing.TB, pool *pgxpool.Pool, session string) {
	t.Helper()
	exec(t, pool, "UPDATE leasegen.session SET expires_at = clock_timestamp() - interval '1 s' WHERE id = $1", session)
}

// connecting is a bare request that does what a session does after it has lost its connection.
func connecting(pool *pgxpool.Pool) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
		if err != nil {
			return err
		}
		defer c.Close(ctx)
		return c.Ping(ctx)
	}
}

// lives fails the test if a session that had to come back in time was taken for dead, and reports whether it lives. A busy machine proves no defect.
func lives(t testing.TB, pool *pgxpool.Pool, id string, bare *pace.Bare, began time.Time) bool {
	t.Helper()
	switch {
	case state(t, pool, id) == "live":
		return true
	case bare.BusySince(began):
		notJudged(t, id)
	default:
		t.Errorf("session %s lives, and was taken for dead", id)
	}
	return false
}

// notJudged logs that a session was taken for dead while the machine was busy.
func notJudged(t testing.TB, session string) {
	t.Helper()
	t.Logf("session %s was taken for dead on a busy machine, where its time to come back may have passed: not judged", session)
}
