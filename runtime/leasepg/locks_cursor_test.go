package leasepg_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Moving the cursor of a drainer takes its lease away while its process lives. Its advisory
// lock must go with it, or it would block the next leader until a TTL has passed.
func TestMovedCursorFreesTheAdvisoryLock(t *testing.T) {
	t.Parallel()
	be, _ := migrated(t)
	var mu sync.Mutex
	handled := map[string]int{}
	drainer := backend.ConsumerInfo{Name: "drainer", Per: backend.PerGroup, Lock: backend.LockAdvisory, Topics: []string{"*"}}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer func() { stop(); wg.Wait() }()
	join := func() {
		c := kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, lease.Spec{
			Name: "drainer", Per: backend.PerGroup, Lock: backend.LockAdvisory, Topics: []string{"*"}, TTL: time.Minute,
			Handlers: []lease.Handler{lease.One("fact", func(_ context.Context, m lease.Message[struct{}]) error {
				mu.Lock()
				defer mu.Unlock()
				handled[m.ID]++
				return nil
			})},
		}, lease.WithLogger(slog.New(slog.DiscardHandler))))
		wg.Go(func() { _ = c.Run(ctx) })
	}
	kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "fact", Payload: []byte(`{}`)}}))
	times := func(n int) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, got := range handled {
				if got == n {
					return true
				}
			}
			return false
		}
	}
	join()
	kit.Eventually(t, "the message is handled", times(1))
	for round := range 6 { // who is next is a matter of session ids: most probably another one, some time
		join()
		kit.Eventually(t, "it has joined", func() bool { return len(surveyed(t, be, drainer).Members) == round+2 })
		kit.Must[int](t)(be.SetCursor(t.Context(), "drainer", "", operate.CursorTarget{Beginning: true}))
		kit.Eventually(t, "the message is handled again", times(round+2))
	}
}
