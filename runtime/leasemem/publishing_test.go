package leasemem_test

import (
	"context"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

func TestPublishMiddleware(t *testing.T) {
	kit.PublishMiddleware(t, func(m ...backend.PublishMiddleware) backend.Backend {
		return leasemem.New(leasemem.WithPublishMiddleware(m...))
	}, func(be backend.Backend, f func(backend.Publisher) error) error {
		c := backend.ConsumerInfo{Name: "writer", Per: backend.PerCluster}
		a := kit.Join(t, be, c, time.Minute).Registers()
		g := a.Takes()
		tx := kit.Must[backend.Tx](t)(be.Capabilities().Tx.Begin(t.Context(), "s"))
		if err := f(tx.Handle().(*leasemem.Tx)); err != nil {
			return err
		}
		return tx.Commit(context.Background(), a.ID, c.Name, backend.Progress{Ref: g.Ref})
	})
}
