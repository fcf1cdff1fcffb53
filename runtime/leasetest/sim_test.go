package leasetest

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

var (
	seeds   = flag.Int("seeds", 100, "how many simulations to run")
	oneSeed = flag.Uint64("seed", 0, "run only the simulation of this seed")
)

// TestSimulation runs several simulated processes on one storage under faults that a
// seed chooses: crashes, partitions, lost requests and replies, delays, restarts,
// steps of the server's clock, pauses. Time is simulated, so minutes pass in milliseconds. A
// seed fixes the faults; how goroutines interleave within an instant is up to Go.
func TestSimulation(t *testing.T) {
	first, n := uint64(1), *seeds
	if *oneSeed != 0 {
		first, n = *oneSeed, 1
	}
	if testing.Short() {
		n = min(n, 20)
	}
	for seed := first; seed < first+uint64(n); seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			kit.Bubble(t, func(t *testing.T) { simulate(t, seed, mutation{}) })
		})
	}
}

// TestSimulationCatchesMutants shows that the simulation is able to fail.
func TestSimulationCatchesMutants(t *testing.T) {
	for name, mu := range map[string]mutation{
		"no fence": {
			begin: func(m *mutant, ctx context.Context, session string) (backend.Tx, error) {
				tx, err := m.Backend.Begin(ctx, session)
				if err != nil {
					return nil, err
				}
				return &unfenced{tx, m}, nil
			},
		},
		"no margin: the server's TTL is shorter than the holder's belief": shortTTL,
		"the cursor moves on without what was parked":                     forgetParked,
		"streams are retired without looking for unread messages":         sleepless(retireBlindly),
		"the feed names other slots than those that hold the messages":    shiftSlots,
		"registering a known stream does nothing":                         registerOnce,
		"leases are granted while the consumer is paused":                 grantPaused,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const most = 1000
			for seed := uint64(1); seed <= most; seed++ {
				var said []string
				kit.Bubble(t, func(t *testing.T) {
					said = try(t, func(t testing.TB) { simulate(t, seed, mu) })
				})
				if len(said) > 0 {
					t.Logf("seed %d: %s", seed, said[0])
					return
				}
			}
			t.Fatalf("%d simulations did not notice", most)
		})
	}
}

// sleepless has no sweep that finds what was forgotten.
func sleepless(mu mutation) mutation {
	mu.register = func(m *mutant, ctx context.Context, c backend.ConsumerInfo, resources []string) error {
		if resources == nil {
			resources = []string{}
		}
		return m.Backend.Register(ctx, c, resources)
	}
	return mu
}

// unfenced is a transaction that commits for the present owner of the lease.
type unfenced struct {
	backend.Tx
	m *mutant
}

func (u *unfenced) Commit(ctx context.Context, _, consumer string, p backend.Progress) error {
	ref, by := u.m.shared.current(p.Resource)
	p.Ref = ref
	return u.Tx.Commit(ctx, by, consumer, p)
}

// dice is a source of chance for many goroutines.
type dice struct {
	mu  sync.Mutex
	rng *rand.Rand
}

// roll is true once in n rolls on average.
func (d *dice) roll(n int) bool { return d.below(n) == 0 }

func (d *dice) below(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

func (d *dice) upTo(most time.Duration) time.Duration { return time.Duration(d.below(int(most))) }

// plan is what a seed chooses for a whole simulation.
type plan struct {
	per     backend.Per
	lock    backend.Lock
	room    int // streams that a process may own
	order   lease.Order
	tx      bool // transaction form
	calm    bool // no faults
	steps   bool // of the server's clock
	workers int
}

type simulation struct {
	*world
	plan
	dice    *dice
	clock   atomic.Int64 // how far the server's clock is off
	faulty  atomic.Bool
	running []*process
	all     []*process
	paused  map[string]int64 // the epochs by resource when the pause began; nil when there is none
	granted []backend.Ref    // while the consumer was paused

	mu      sync.Mutex
	effects []effectOf // in the order of their commits
}

type effectOf struct {
	resource   string
	topic, key string
	n          int
	epoch      int64
	proc       string
	at         time.Time
}

const deafFor = 3 * time.Second // a handler that ignores its context, at most

const simTopics, simKeys, simMessages = 4, 3, 25 // messages of each topic

func simulate(t testing.TB, seed uint64, mu mutation) {
	d := &dice{rng: rand.New(rand.NewPCG(seed, 1))}
	s := &simulation{dice: d, plan: plan{
		per:   []backend.Per{backend.PerTopic, backend.PerGroup, backend.PerPartition, backend.PerStream}[d.below(4)],
		order: []lease.Order{lease.OrderKey, lease.OrderBlock}[d.below(2)],
		tx:    d.roll(2), calm: d.roll(8), workers: 1 + 2*d.below(2),
	}}
	if s.per == backend.PerStream {
		s.lock, s.room = []backend.Lock{backend.LockSession, backend.LockRow}[d.below(2)], 1+d.below(3)
	}
	if s.tx {
		s.workers, s.steps = 1, !s.calm && d.roll(2)
	}
	defer func() {
		if t.Failed() {
			t.Logf("run it again with -seed=%d: %+v", seed, s.plan)
		}
	}()
	s.world = newWorld(t, Factory{
		New: func(testing.TB) backend.Backend {
			return newMutant(mu, leasemem.WithSlots(6), leasemem.WithClock(func() time.Time { return time.Now().Add(time.Duration(s.clock.Load())) }))
		},
		Again: func(_ testing.TB, be backend.Backend) backend.Backend {
			return be.(*mutant).share(leasemem.WithFaults(s.fault))
		},
	})
	s.faulty.Store(!s.calm)
	t.Cleanup(func() { time.Sleep(deafFor) }) // after the ends of all processes
	for range 3 {
		s.launch()
	}
	var publishing sync.WaitGroup
	publishing.Go(s.publishAll)
	for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(d.upTo(1500 * time.Millisecond)) {
		if !s.calm {
			s.strike()
		}
		s.grantsNothingPaused()
	}
	publishing.Wait()
	if s.paused != nil {
		s.resume()
	}
	s.faulty.Store(false)
	for _, p := range s.running {
		p.link.mend()
	}
	s.launch()
	s.settle()
	for _, p := range s.all {
		p.end()
	}
	time.Sleep(deafFor) // a process does not wait for ever for handlers that are deaf
	s.judge()
}

// fault makes requests late, and loses requests and replies.
func (s *simulation) fault(ctx context.Context, op string, phase leasemem.Phase) error {
	if !s.faulty.Load() || op == "Check" { // a process that cannot start says so, which is no news here
		return nil
	}
	slowRead := op == "FetchParked" && phase == leasemem.After // answers that are overtaken
	if s.dice.roll(10) || slowRead && s.dice.roll(3) {
		late := 40 * time.Millisecond
		if slowRead || s.dice.roll(10) {
			late = 1500 * time.Millisecond
		}
		select {
		case <-time.After(s.dice.upTo(late)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if s.dice.roll(40) {
		return errLink
	}
	return nil
}

// launch starts a process.
func (s *simulation) launch() {
	sp := spec()
	sp.Per, sp.Workers, sp.Batch = s.per, s.workers, 1+s.dice.below(8)
	sp.Lock, sp.Capacity, sp.Idle = s.lock, s.room, 10*time.Millisecond+s.dice.upTo(2*time.Second)
	sp.Retry.Order = s.order
	sp.Drain = s.dice.upTo(500 * time.Millisecond)
	var p *process
	if s.tx {
		p = s.startWith(sp, func(p *process) []lease.Handler {
			return []lease.Handler{lease.OneTx("order", func(ctx context.Context, tx *leasemem.Tx, m lease.Message[payload]) error {
				l, _ := lease.FromContext(ctx)
				tx.Do(func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					s.effects = append(s.effects, effectOf{l.Resource, m.Topic, m.Key, m.Payload.N, m.Epoch, p.name, time.Now()})
				})
				return p.wrap(s.handle)(ctx, m)
			})}
		})
	} else {
		p = s.start(sp, s.handle)
	}
	s.running, s.all = append(s.running, p), append(s.all, p)
}

// handle takes a while, is deaf to its context now and then, and fails now and then;
// messages 7 always fail.
func (s *simulation) handle(ctx context.Context, p *process, m lease.Message[payload]) error {
	if !s.calm && s.dice.roll(60) {
		time.Sleep(s.dice.upTo(deafFor))
	}
	select {
	case <-time.After(s.dice.upTo(30 * time.Millisecond)):
	case <-p.life.Done():
		return p.hang(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
	if m.Payload.N == 7 || m.Attempt < 3 && s.dice.roll(20) {
		return errHandler
	}
	return nil
}

func (s *simulation) publishAll() {
	for n := 1; n <= simMessages; n++ {
		for i := range simTopics {
			s.be.Publish(context.Background(), []backend.Event{event(fmt.Sprint("t", i), fmt.Sprint("k", n%simKeys), n)})
			time.Sleep(s.dice.upTo(300 * time.Millisecond))
		}
	}
}

// strike does one thing to one process, or to the server's clock.
func (s *simulation) strike() {
	if len(s.running) == 0 {
		s.launch()
		return
	}
	i := s.dice.below(len(s.running))
	p := s.running[i]
	remove := func() { s.running = append(s.running[:i], s.running[i+1:]...) }
	switch s.dice.below(9) {
	case 0, 1:
		p.link.cut()
		time.AfterFunc(s.dice.upTo(4*time.Second), p.link.mend)
	case 2:
		p.crash()
		remove()
	case 3:
		p.stopIt() // it ends while others go on
		remove()
	case 4:
		if s.steps {
			s.clock.Add(int64(s.dice.upTo(2*time.Minute) - time.Minute))
		}
	case 5: // in vain: they fail again
		kit.Must[int](s.t)(s.operator().Replay(s.t.Context(), operate.DeadLetterFilter{Consumer: "c", Reason: "*" + errHandler.Error() + "*"}))
	case 6:
		switch {
		case s.paused != nil:
			s.grantsNothingPaused()
			s.resume()
			s.paused = nil
		case s.operator().Pause(s.t.Context(), "c") == nil: // else no process has come to register it
			s.paused = map[string]int64{}
			for _, l := range s.leases() {
				s.paused[l.Resource] = l.Epoch
			}
		}
	default:
		if len(s.running) < 5 {
			s.launch()
		}
	}
}

func (s *simulation) leases() []operate.LeaseStatus {
	return kit.Must[[]operate.LeaseStatus](s.t)(s.operator().Leases(s.t.Context(), "c", 0))
}

// grantsNothingPaused notes epochs that have risen since the pause began. A lease may have an owner that it had not: the
// server's clock was set back to before the end of that session.
func (s *simulation) grantsNothingPaused() {
	if s.paused == nil {
		return
	}
	for _, l := range s.leases() {
		if l.Session != "" && l.Epoch > s.paused[l.Resource] {
			s.granted = append(s.granted, backend.Ref{Resource: l.Resource, Epoch: l.Epoch}) // judged at the end, when no work runs
		}
	}
}

// settle waits until everything is dealt with, which must not take long now that
// there are no more faults.
func (s *simulation) settle() {
	const limit = 10 * time.Minute // a clock that was set back keeps dead sessions alive
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		st := s.status()
		if st.LagTotal == 0 && st.ParkedKeys == 0 && (st.Resources > 0 || s.per == backend.PerStream) {
			return
		}
		if time.Since(began) > limit {
			s.t.Fatalf("I9: after %v without faults: %+v", limit, st)
		}
	}
}

func (s *simulation) judge() {
	if len(s.granted) > 0 {
		s.t.Fatalf("I11: granted while the consumer was paused: %v", s.granted)
	}
	total := simTopics * simMessages
	dead := s.dead()
	handled := map[string]int{}
	for _, c := range s.successes() {
		handled[c.id]++
		if c.n == 7 {
			s.t.Fatalf("I5: #7 of %s was handled, but always fails", c.topic)
		}
	}
	if s.tx { // only what was committed counts
		s.judgeEffects(total - len(dead))
	} else {
		gone := map[string]bool{}
		for _, d := range dead {
			gone[d.MessageID] = true
		}
		for id := range handled {
			gone[id] = true
		}
		kit.Equal(s.t, "I4, I6: handled or dead", len(gone), total)
		inOrder(s.t, s.successes(), byKey)
		if s.calm {
			kit.Equal(s.t, "I7: handled twice without a fault", twice(s.world), 0)
		}
	}
	if !s.steps { // a clock that jumps takes leases from believers; the fence stands
		poison := map[string]bool{}
		for _, c := range s.of(7) {
			poison[c.id] = true
		}
		buried := 0
		for _, d := range dead {
			switch {
			case poison[d.MessageID]:
				buried++
			case !strings.Contains(d.Reason, "the process died"):
				// Owners that fall out in a row over one message make it look like their killer.
				s.t.Fatalf("message %s of %s is a dead letter after %d attempts: %s", d.MessageID, d.Topic, d.Attempts, d.Reason)
			}
		}
		kit.Equal(s.t, "dead letters: #7 of each topic", buried, simTopics)
		s.apart()
	}
	owner := map[string]string{}
	lost := map[string]bool{}
	for _, p := range s.all {
		for _, a := range observations[operate.ObservedAcquire](p) {
			k := fmt.Sprint(a.Resource, "@", a.Epoch)
			if by, ok := owner[k]; ok && by != a.Session {
				s.t.Fatalf("I1: %s was granted to %s and to %s", k, by, a.Session)
			}
			owner[k] = a.Session
		}
		for _, l := range observations[operate.ObservedLoss](p) {
			k := fmt.Sprint(l.Resource, "@", l.Epoch)
			if lost[k] {
				s.t.Fatalf("I10: the loss of %s was told twice", k)
			}
			lost[k] = true
			if s.calm {
				s.t.Fatalf("I10: %s was lost without a fault: %s", k, l.Reason)
			}
		}
	}
}

// judgeEffects checks what transactions wrote: exactly once, never under an
// epoch older than one already used, in the order of the keys.
func (s *simulation) judgeEffects(want int) {
	epoch, last := map[string]int64{}, map[string]int{}
	for _, e := range s.effects {
		resource, key := e.resource, e.topic+"/"+e.key
		if e.epoch < epoch[resource] {
			s.t.Fatalf("I2: an effect on %s under epoch %d after one under %d", resource, e.epoch, epoch[resource])
		}
		epoch[resource] = e.epoch
		if e.n <= last[key] {
			s.t.Fatalf("I7, I8: the effect of #%d of %s after that of #%d%s", e.n, key, last[key], s.historyOf(e.topic, e.key))
		}
		last[key] = e.n
	}
	kit.Equal(s.t, "I4, I6: effects", len(s.effects), want)
}

// historyOf tells the calls and the effects of a key in the order of time.
func (s *simulation) historyOf(topic, key string) string {
	type line struct {
		at   time.Time
		told string
	}
	var lines []line
	for _, c := range s.history(func(c call) bool { return c.topic == topic && c.key == key }) {
		lines = append(lines, line{c.ended, fmt.Sprintf("%s under %d: call of #%d, attempt %d, from %s: %v",
			c.proc, c.epoch, c.n, c.attempt, c.began.Format(time.StampMicro), c.err)})
	}
	for _, e := range s.effects {
		if e.topic == topic && e.key == key {
			lines = append(lines, line{e.at, fmt.Sprintf("%s under %d: effect of #%d", e.proc, e.epoch, e.n)})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "\n\t%s %s", l.at.Format(time.StampMicro), l.told)
	}
	return b.String()
}
