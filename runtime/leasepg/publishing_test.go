package leasepg_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

func TestPublishMiddleware(t *testing.T) {
	var pool *pgxpool.Pool
	kit.PublishMiddleware(t, func(m ...backend.PublishMiddleware) (be backend.Backend) {
		be, pool = migrated(t, leasepg.WithPublishMiddleware(m...))
		return be
	}, func(be backend.Backend, f func(backend.Publisher) error) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return f(be.(*leasepg.Backend).In(tx)) })
	})
}
