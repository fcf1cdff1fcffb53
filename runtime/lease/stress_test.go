package lease_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

// ledger is what the handlers of a stress run did, over all its replicas.
type ledger struct {
	mu      sync.Mutex
	first   map[string][]int       // by consumer, resource and key: the messages in the order of their first success
	calls   map[string]map[int]int // by consumer: successful calls of each message
	effects map[string]map[int]int // by consumer: committed effects of each message
	running map[string]int         // calls under way, by consumer, resource and key
	broken  []string
}

func (l *ledger) fault(format string, args ...any) {
	if len(l.broken) < 10 {
		l.broken = append(l.broken, fmt.Sprintf(format, args...))
	}
}

func (l *ledger) enter(lane string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running[lane]++; l.running[lane] > 1 {
		l.fault("%s: two calls at once", lane)
	}
}

func (l *ledger) leave(lane string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running[lane]--
}

func count(by map[string]map[int]int, consumer string, n int) int {
	if by[consumer] == nil {
		by[consumer] = map[int]int{}
	}
	by[consumer][n]++
	return by[consumer][n]
}

func (l *ledger) success(consumer, lane string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if count(l.calls, consumer, n) == 1 {
		l.first[lane] = append(l.first[lane], n)
	}
}

func (l *ledger) effect(consumer string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	count(l.effects, consumer, n)
}

// misbehave returns an error, panics, ends its goroutine, dawdles, or does none of
// that. The same message misbehaves the same at each attempt of the same number.
func misbehave(seed uint64, m lease.Message[note]) error {
	r := rand.New(rand.NewPCG(seed, uint64(m.Payload.N)))
	failures, how := 0, r.IntN(4)
	if r.IntN(8) == 0 {
		failures = 1 + r.IntN(3)
	}
	hopeless := r.IntN(60) == 0
	if r.IntN(20) == 0 {
		time.Sleep(time.Duration(r.IntN(int(3 * time.Millisecond))))
	}
	if hopeless && m.Attempt > failures {
		return lease.DeadLetter("hopeless")
	}
	if m.Attempt > failures {
		return nil
	}
	switch how {
	case 0:
		panic("misbehaved")
	case 1:
		runtime.Goexit()
	case 2:
		return lease.RetryAfter(time.Millisecond, errLink)
	}
	return errLink
}

// TestStress lets many kinds of consumers work on one log, misbehave, and change
// replicas all the time, over links that fail now and then. In the end each message has
// been handled or given up on by each consumer, in order, and what it did in
// transactions happened once.
func TestStress(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("LEASE_STRESS_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(2) {
		t.Run(fmt.Sprintf("LEASE_STRESS_SEED=%d", seed+i), func(t *testing.T) {
			bubble(t, func(t *testing.T) { stress(t, seed+i) })
		})
	}
}

func stress(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	be := leasemem.New()
	l := &ledger{first: map[string][]int{}, calls: map[string]map[int]int{}, effects: map[string]map[int]int{}, running: map[string]int{}}

	type kind struct {
		spec lease.Spec
		tx   bool
	}
	var kinds []kind
	for i := range 8 {
		k := kind{tx: rnd.IntN(2) == 0}
		k.spec = lease.Spec{
			Name: fmt.Sprint("c", i), Per: []lease.Per{lease.PerTopic, lease.PerGroup}[rnd.IntN(2)], Topics: []string{"t*"},
			Batch: 1 + rnd.IntN(50), Workers: 1, Drain: 10 * time.Second,
			Retry: lease.Retry{Max: 5, Min: time.Millisecond, Cap: 4 * time.Millisecond, Order: []lease.Order{lease.OrderKey, lease.OrderBlock, lease.OrderNone}[i%3]},
		}
		if !k.tx && rnd.IntN(2) == 0 {
			k.spec.Workers = 4
		}
		name, order, batch := k.spec.Name, k.spec.Retry.Order, rnd.IntN(2) == 0
		handle := func(tx *leasemem.Tx, ms []lease.Message[note]) error {
			for _, m := range ms {
				lane := name + "/"
				if k.spec.Per == lease.PerTopic {
					lane += m.Topic
				}
				if order != lease.OrderBlock || k.spec.Workers > 1 {
					lane += "/" + m.Key
				}
				l.enter(lane)
				err := func() error {
					defer l.leave(lane)
					return misbehave(seed+uint64(i), m)
				}()
				if err != nil {
					return err
				}
				if tx != nil {
					tx.Do(func() { l.effect(name, m.Payload.N); l.success(name, lane, m.Payload.N) })
				} else {
					l.success(name, lane, m.Payload.N)
				}
			}
			return nil
		}
		var h lease.Handler
		switch {
		case k.tx && batch:
			h = lease.BatchTx("note", func(_ context.Context, tx *leasemem.Tx, ms []lease.Message[note]) error { return handle(tx, ms) })
		case k.tx:
			h = lease.OneTx("note", func(_ context.Context, tx *leasemem.Tx, m lease.Message[note]) error {
				return handle(tx, []lease.Message[note]{m})
			})
		case batch:
			h = lease.Batch("note", func(_ context.Context, ms []lease.Message[note]) error { return handle(nil, ms) })
		default:
			h = lease.One("note", func(_ context.Context, m lease.Message[note]) error { return handle(nil, []lease.Message[note]{m}) })
		}
		k.spec.Handlers = []lease.Handler{h}
		kinds = append(kinds, k)
	}

	// A replica runs all consumers in one group, over a link that fails one call in fifty.
	replica := func(seed uint64) (stop func()) {
		var mu sync.Mutex
		r := rand.New(rand.NewPCG(seed, 1))
		b := be.Share(leasemem.WithFaults(func(_ context.Context, op string, phase leasemem.Phase) error {
			mu.Lock()
			defer mu.Unlock()
			if op != "Check" && op != "FeedNext" && r.IntN(50) == 0 {
				return errLink
			}
			return nil
		}))
		g := lease.NewGroup()
		for _, k := range kinds {
			if err := g.Add(newConsumer(t, b, k.spec, lease.WithConcurrency(1+r.IntN(8)))); err != nil {
				t.Fatal(err)
			}
		}
		return start(t, g)
	}

	const topics, messages = 6, 600
	topicOf := func(n int) string { return fmt.Sprint("t", n*7%topics) }
	go func() {
		for n := range messages {
			publish(t, be, topicOf(n), n, n+1, func(*note) string { return fmt.Sprint(n % 5) })
			if n%40 == 0 {
				time.Sleep(200 * time.Millisecond)
			}
		}
	}()
	stops := []func(){replica(seed)}
	for i := range 12 {
		time.Sleep(time.Duration(rnd.IntN(int(600 * time.Millisecond))))
		if len(stops) > 1 && rnd.IntN(2) == 0 {
			n := rnd.IntN(len(stops))
			stops[n]()
			stops = slices.Delete(stops, n, n+1)
		} else {
			stops = append(stops, replica(seed+uint64(i)+1))
		}
	}
	done := func() bool {
		all, err := be.Status(t.Context())
		if err != nil || len(all) != len(kinds) {
			return false
		}
		for _, s := range all {
			l.mu.Lock()
			n := len(l.calls[s.Consumer])
			l.mu.Unlock()
			if s.LagTotal > 0 || s.ParkedKeys > 0 || n+s.DeadLetters < messages {
				return false
			}
		}
		return true
	}
	for deadline := time.Now().Add(5 * time.Minute); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			all, _ := be.Status(t.Context())
			for _, s := range all {
				t.Logf("%+v", s)
			}
			t.Fatal("not done in time")
		}
	}
	for _, stop := range stops {
		stop()
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.broken {
		t.Error(b)
	}
	dead := map[string]map[int]int{}
	for _, d := range deadLetters(t, be) {
		id, _ := strconv.Atoi(d.MessageID)
		count(dead, d.Consumer, id-1)
	}
	for _, k := range kinds {
		name := k.spec.Name
		for n := range messages {
			if k.tx && l.effects[name][n]+dead[name][n] != 1 {
				t.Fatalf("%s: #%d has %d effects and %d dead letters, want one in all", name, n, l.effects[name][n], dead[name][n])
			}
			if l.calls[name][n] == 0 && dead[name][n] == 0 {
				t.Fatalf("%s: #%d was neither handled nor given up on", name, n)
			}
		}
	}
	for lane, ns := range l.first {
		i, _ := strconv.Atoi(lane[1:2])
		if kinds[i].spec.Retry.Order != lease.OrderNone && !slices.IsSorted(ns) {
			t.Errorf("%s (%+v): not in order: %v", lane, kinds[i].spec.Retry.Order, ns)
		}
	}
}
