package leasepg_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// An outage of the network that is shorter than the TTL costs no process its leases: who is back
// first does not take the others, who come back too, for dead.
func TestOutageKillsNobody(t *testing.T) {
	t.Parallel()
	be, pool := migrated(t)
	link := faultproxy.Start(t, pgtest.Shared(t).Addr())
	far := leasepg.New(open(t, strings.Replace(pool.Config().ConnString(), pgtest.Shared(t).Addr(), link.Addr(), 1)),
		leasepg.WithLogger(slog.New(slog.DiscardHandler)))
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(12)))
	const ttl = 5 * time.Minute
	sessions := map[string]backend.Session{}
	for range 12 {
		id := kit.Join(t, far, topical, ttl)
		sessions[id.ID] = id.Session
		kit.Equal(t, "acquired", len(id.Acquires(1)), 1)
	}
	for range 2 {
		link.Cut()
		time.Sleep(1500 * time.Millisecond) // much shorter than the TTL, much longer than a look takes
		link.Heal()
		for id, s := range sessions {
			kit.Eventually(t, "it is back", func() bool {
				err := s.Heartbeat(t.Context())
				if errors.Is(err, backend.ErrSessionLost) {
					t.Fatalf("session %s was taken for dead", id)
				}
				return err == nil
			})
		}
		time.Sleep(time.Second) // all have looked
	}
	for id, s := range sessions {
		if err := s.Heartbeat(t.Context()); err != nil {
			t.Errorf("session %s was taken for dead: %v", id, err)
		}
	}
	// A process that ends after that is found, and long before its TTL.
	for _, s := range sessions {
		kit.OK(t, s.Close(t.Context()))
		break
	}
	near := kit.Join(t, be, topical, time.Hour)
	kit.Join(t, be, topical, time.Hour)
	link.Cut()
	kit.Eventually(t, "their leases are taken over", func() bool {
		near.Acquires(12)
		return query[int](t, pool, "SELECT count(*) FROM leasegen.lease WHERE session = $1", near.ID) == 12
	})
}
