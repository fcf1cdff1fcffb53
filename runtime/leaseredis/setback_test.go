package leaseredis_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// copied returns what sets the keys of a namespace back to what they are now, in one step.
func copied(t testing.TB, c *redis.Client, namespace string) (restore func()) {
	t.Helper()
	pattern := "{" + namespace + "0}:*"
	args := []any{pattern}
	// In one step: living processes write in between.
	args = append(args, kit.Must[any](t)(c.Eval(t.Context(), `
		local copy = {}
		for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
			copy[#copy + 1] = key
			copy[#copy + 1] = tostring(math.max(redis.call('PTTL', key), 0))
			copy[#copy + 1] = redis.call('DUMP', key)
		end
		return copy`, nil, pattern).Result()).([]any)...)
	return func() {
		t.Helper()
		kit.OK(t, c.Eval(t.Context(), `
			for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end
			for i = 2, #ARGV, 3 do redis.call('RESTORE', ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
			return 1`, nil, args...).Err())
	}
}

// A replica is promoted that lacks writes, and whose clock is behind that of the server before it: ids that it
// gives lie behind what living processes have read, until one of them has told it.
func TestAServerWithAnOlderClockThatLacksWrites(t *testing.T) {
	t.Parallel()
	c, namespace := redistest.Shared(t).Client(t), redistest.Namespace(t)
	var (
		mu   sync.Mutex
		seen = map[string]map[string]bool{} // by consumer
	)
	handled := func(batch string, n int) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			all := len(seen) == 4
			for _, ids := range seen {
				got := 0
				for i := range n {
					if ids[fmt.Sprint(batch, i)] {
						got++
					}
				}
				all = all && got == n
			}
			return all
		}
	}
	for range 2 {
		be := on(c, namespace, leaseredis.WithTags(1), leaseredis.WithLogger(discard))
		for _, per := range []backend.Per{backend.PerTopic, backend.PerGroup, backend.PerPartition, backend.PerStream} {
			run(t, be, lease.Spec{Name: per.String(), Per: per, Topics: []string{"*"}, Handlers: []lease.Handler{
				lease.One("kind", func(_ context.Context, m lease.Message[string]) error {
					mu.Lock()
					defer mu.Unlock()
					if seen[per.String()] == nil {
						seen[per.String()] = map[string]bool{}
					}
					seen[per.String()][m.Payload] = true
					return nil
				})}})
		}
	}
	publish := func(batch string, n int) {
		t.Helper()
		es := make([]backend.Event, n)
		for i := range es {
			es[i] = backend.Event{Topic: fmt.Sprint("t", i%3), Key: fmt.Sprint("k", i%5), Kind: "kind", Payload: fmt.Appendf(nil, "%q", fmt.Sprint(batch, i))}
		}
		// Of a process that has published no event before.
		kit.OK(t, on(c, namespace, leaseredis.WithTags(1), leaseredis.WithLogger(discard)).Publish(t.Context(), es))
	}
	publish("kept", 30)
	kit.Eventually(t, "what is kept is handled", handled("kept", 30))
	restore := copied(t, c, namespace)
	kit.OK(t, c.HSet(t.Context(), "{"+namespace+"0}:meta", "last", time.Now().Add(time.Hour).UnixMicro()).Err())
	publish("lost", 60)
	kit.Eventually(t, "what is lost is handled", handled("lost", 60))
	restore()
	publish("later", 30)
	kit.Eventually(t, "what comes right after that is handled", handled("later", 30))
	publish("last", 60)
	kit.Eventually(t, "the rest is handled", handled("last", 60))
}
