package leaseredis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// unreliable loses a part of all calls: half of them before they are carried out, half after.
type unreliable struct {
	part float64
	on   *atomic.Bool
}

func (u unreliable) DialHook(next redis.DialHook) redis.DialHook { return next }

func (u unreliable) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return u.lose([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (u unreliable) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return u.lose(cmds, func() error { return next(ctx, cmds) })
	}
}

func (u unreliable) lose(cmds []redis.Cmder, send func() error) error {
	if !u.on.Load() {
		return send()
	}
	luck := rand.Float64()
	var err error
	if luck > u.part/2 {
		err = send()
	}
	if luck > u.part {
		return err
	}
	for _, c := range cmds {
		c.SetErr(io.ErrUnexpectedEOF)
	}
	return io.ErrUnexpectedEOF
}

type numbered struct{ N int }

// Every message is handled in the order of its key, or a dead letter, when a tenth of all calls is
// lost on the way there or back.
func TestNothingIsLostOverAnUnreliableNetwork(t *testing.T) {
	t.Parallel()
	eachSpread(t, func(t *testing.T, a *actor) {
		const n, keys = 200, 7
		var mu sync.Mutex
		handled := map[int]int{}
		failures := map[int]int{}
		order := map[string][]int{}
		handle := func(_ context.Context, m lease.Message[numbered]) error {
			mu.Lock()
			defer mu.Unlock()
			p := m.Payload.N
			if p%20 == 3 && failures[p] < p%7 { // some fail more often than they are tried
				failures[p]++
				return errors.New("not yet")
			}
			if handled[p]++; handled[p] == 1 {
				order[m.Topic+m.Key] = append(order[m.Topic+m.Key], p)
			}
			return nil
		}
		typ := lease.EventType[numbered]{Kind: "k", Key: func(m *numbered) string { return strconv.Itoa(m.N % keys) }}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		var on atomic.Bool
		status := func() operate.ConsumerStatus {
			st, err := a.Status(t.Context())
			kit.OK(t, err)
			for _, s := range st {
				if s.Consumer == "orders" {
					return s
				}
			}
			return operate.ConsumerStatus{LagTotal: -1}
		}
		eventually := func(what string, done func(operate.ConsumerStatus) bool) {
			for deadline := time.Now().Add(60 * time.Second); !done(status()); time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Errorf("not %s: %+v", what, status())
					return
				}
			}
		}
		for range 2 {
			client := redis.UniversalClient(redistest.Shared(t).Client(t))
			if a.clustered() {
				client = redistest.SharedCluster(t).Client(t)
			}
			client.AddHook(unreliable{0.1, &on})
			be := New(client, WithNamespace(a.namespace), WithLogger(slog.New(slog.DiscardHandler)))
			c, err := lease.NewConsumer(be, lease.Spec{Name: "orders", Per: backend.PerTopic, Topics: []string{"*"}, Batch: 10, TTL: time.Minute,
				Handlers: []lease.Handler{lease.One("k", handle)}, Retry: lease.Retry{Max: 4, Min: time.Millisecond, Cap: 5 * time.Millisecond}},
				lease.WithLogger(slog.New(slog.DiscardHandler)))
			kit.OK(t, err)
			running.Go(func() {
				if err := kit.Run(ctx, c); err != nil {
					t.Error(err)
				}
			})
		}
		eventually("started", func(s operate.ConsumerStatus) bool { return s.Members == 2 })
		on.Store(true)
		for i := range n {
			kit.OK(t, lease.Publish(t.Context(), a, fmt.Sprint("topic", i%3), typ, []numbered{{i}}))
		}
		eventually("drained", func(s operate.ConsumerStatus) bool { return s.LagTotal == 0 && s.ParkedKeys == 0 })
		on.Store(false)
		cancel()
		running.Wait()
		dead := map[int]int{}
		ds, err := a.DeadLetters(t.Context(), operate.DeadLetterFilter{Consumer: "orders"})
		kit.OK(t, err)
		for _, d := range ds {
			one, err := a.DeadLetters(t.Context(), operate.DeadLetterFilter{Consumer: "orders", IDs: []string{d.ID}})
			kit.OK(t, err)
			var p numbered
			if _, err := fmt.Sscanf(string(one[0].Payload), `{"N":%d}`, &p.N); err != nil {
				t.Fatal(err)
			}
			dead[p.N]++
			kit.Equal(t, fmt.Sprint("attempts of ", p.N), d.Attempts, 4)
		}
		for i := range n {
			if handled[i] == 0 && dead[i] == 0 || dead[i] > 1 || dead[i] == 1 && i%20 != 3 {
				t.Errorf("message %d was handled %d times and is a dead letter %d times", i, handled[i], dead[i])
			}
		}
		for key, got := range order {
			if !slices.IsSorted(got) {
				t.Errorf("key %s was handled in the order %v", key, got)
			}
		}
	})
}
