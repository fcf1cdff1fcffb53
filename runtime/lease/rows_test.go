package lease_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// rowStreams is a consumer of announced streams with leases that expire one by one.
func rowStreams(run func(ctx context.Context, l lease.Lease) error, names ...string) lease.Spec {
	s := (&announcer{names: names}).spec(run)
	s.Lock, s.TTL = lease.LockRow, 9*time.Second // margin 900 ms, renewed every 3 s
	return s
}

// untilLost runs until its context ends and tells when and why.
type untilLost struct {
	mu     sync.Mutex
	causes map[string]error
	at     map[string]time.Time
	runs   atomic.Int32
}

func (u *untilLost) run(ctx context.Context, l lease.Lease) error {
	u.runs.Add(1)
	<-ctx.Done()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.causes == nil {
		u.causes, u.at = map[string]error{}, map[string]time.Time{}
	}
	u.causes[l.Resource], u.at[l.Resource] = context.Cause(ctx), time.Now()
	return ctx.Err()
}

func (u *untilLost) lost(name string) (time.Time, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.at[name], u.causes[name]
}

// One Renew keeps all leases, for as long as the process lives.
func TestRowLeasesAreRenewedTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var f faults
		var renewals atomic.Int32
		f.on("Renew", before(func(context.Context) error { renewals.Add(1); return nil }))
		var u untilLost
		start(t, newConsumer(t, f.share(be), rowStreams(u.run, "a", "b", "c")))
		pass(time.Second) // the first to come has all three
		var other atomic.Int32
		start(t, newConsumer(t, be, rowStreams(func(context.Context, lease.Lease) error { other.Add(1); return nil }, "a", "b", "c")))
		pass(5 * time.Minute)
		if n := renewals.Load(); n < 90 || n > 112 {
			t.Errorf("%d renewals in 5 minutes, want about 100 for all leases", n)
		}
		if u.runs.Load()+other.Load() != 3 || len(u.causes) != 0 {
			t.Errorf("%d runs here, %d there, lost %v", u.runs.Load(), other.Load(), u.causes)
		}
	})
}

// A lease that the backend did not extend is reported as lost, and the others go on.
func TestOneRowLeaseIsLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var u untilLost
		var rec recorder
		s := rowStreams(u.run, "a", "b")
		s.Poll = time.Hour
		start(t, newConsumer(t, be, s, lease.WithObserver(&rec)))
		pass(4 * time.Second)
		leases, err := be.Leases(t.Context(), "a", 9)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range leases {
			if l.Resource == "a" { // it is given back in the owner's name
				if err := be.Release(t.Context(), l.Session, "a", []backend.Ref{{Resource: "a", Epoch: l.Epoch}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		pass(4 * time.Second)
		if _, err := u.lost("a"); !errors.Is(err, lease.ErrLost) {
			t.Errorf("a ended with %v", err)
		}
		if _, err := u.lost("b"); err != nil {
			t.Errorf("b ended with %v", err)
		}
		if n := len(observed[operate.ObservedLoss](&rec)); n != 1 {
			t.Errorf("%d losses told, want 1", n)
		}
	})
}

// Belief ends in time when renewals stay unanswered, though the session lives, and before
// anybody else is granted the lease.
func TestRowBeliefEndsBeforeTheLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var f faults
		var u untilLost
		var rec recorder
		start(t, newConsumer(t, f.share(be), rowStreams(u.run, "a"), lease.WithObserver(&rec)))
		pass(4 * time.Second)
		cut := time.Now()
		f.on("Renew", before(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }))
		f.on("Acquire", before(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }))
		taken := make(chan time.Time, 1)
		start(t, newConsumer(t, be, rowStreams(func(context.Context, lease.Lease) error {
			select {
			case taken <- time.Now():
			default:
			}
			return nil
		}, "a")))
		got := <-taken
		at, err := u.lost("a")
		if !errors.Is(err, lease.ErrLost) || !at.Before(got) {
			t.Errorf("lost with %v at %v, taken at %v", err, at, got)
		}
		if took := at.Sub(cut); took < 4*time.Second || took > 8200*time.Millisecond {
			t.Errorf("belief ended after %v", took)
		}
		if n := len(observed[operate.ObservedSession](&rec)); n != 1 {
			t.Errorf("the session was told of %d times: it should live", n)
		}
		tries := 0
		for _, r := range observed[operate.ObservedRenew](&rec) {
			if r.Err != nil {
				tries++
			}
		}
		if tries < 2 {
			t.Errorf("%d failed renewals before belief ended", tries)
		}
	})
}

// Belief in a fresh grant runs from before the request: a reply that takes as long as the
// lease lives brings no reason to believe in it.
func TestSlowGrantOfARowLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var f faults
		slow := true
		f.on("Acquire", func(_ context.Context, p leasemem.Phase) error {
			if p == leasemem.After && slow {
				slow = false
				time.Sleep(8500 * time.Millisecond)
			}
			return nil
		})
		var began []time.Time
		at := time.Now()
		start(t, newConsumer(t, f.share(be), rowStreams(func(ctx context.Context, l lease.Lease) error {
			began = append(began, time.Now())
			<-ctx.Done()
			return ctx.Err()
		}, "a")))
		pass(20 * time.Second)
		if len(began) != 1 || began[0].Sub(at) < 8500*time.Millisecond {
			t.Errorf("it ran at %v after %v", began, at)
		}
	})
}

// A lease that an operator takes away by moving a cursor is noticed at once, though no work is
// being worked on.
func TestMovedCursorIsNoticed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var got seen
		var rec recorder
		publish(t, be, "x", 0, 3, nil)
		publish(t, be, "y", 0, 3, nil)
		start(t, newConsumer(t, be, lease.Spec{Handlers: handleAll(&got)}, lease.WithObserver(&rec)))
		pass(10 * time.Second)
		if n, err := be.SetCursor(t.Context(), "a", "x", operate.CursorTarget{Beginning: true}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		pass(200 * time.Millisecond)
		if xs, ys := len(got.of("x")), len(got.of("y")); xs != 6 || ys != 3 {
			t.Errorf("%d messages of x and %d of y were handled, want 6 and 3", xs, ys)
		}
		if n := len(observed[operate.ObservedAcquire](&rec)); n != 3 {
			t.Errorf("%d leases were acquired, want 3", n)
		}
		pass(time.Minute)
		if s := status(t, be); s.Unowned != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A lost session costs a moment, not a TTL.
func TestNextIncarnationComesAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var f faults
		ran := make(chan time.Time, 10)
		s := singleton(func(ctx context.Context, l lease.Lease) error { ran <- time.Now(); <-ctx.Done(); return nil })
		s.Lock = lease.LockAdvisory
		var rec recorder
		start(t, newConsumer(t, f.share(be), s, lease.WithObserver(&rec)))
		<-ran
		for range 5 {
			pass(3 * time.Second)
			f.on("SessionHeartbeat", before(func(context.Context) error { return backend.ErrSessionLost }))
			for before := len(observed[operate.ObservedLoss](&rec)); len(observed[operate.ObservedLoss](&rec)) == before; {
				time.Sleep(time.Millisecond)
			}
			lost := time.Now()
			f.on("SessionHeartbeat", nil)
			// The lease of the lost session is free when its TTL is over; the new session is there at once.
			for opened := 0; ; time.Sleep(time.Millisecond) {
				opened = 0
				for _, o := range observed[operate.ObservedSession](&rec) {
					if o.Open {
						opened++
					}
				}
				if opened == len(observed[operate.ObservedLoss](&rec))+1 {
					break
				}
				if time.Since(lost) > time.Second {
					t.Fatal("no new session within 1 s")
				}
			}
			if took := time.Since(lost); took > 60*time.Millisecond {
				t.Errorf("the next session was opened after %v", took)
			}
			<-ran
		}
	})
}

// sequences records the numbers of all progress.
type sequences struct {
	*leasemem.Backend
	mu  sync.Mutex
	all map[backend.Ref][]int64
}

func (s *sequences) note(ps []backend.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range ps {
		s.all[p.Ref] = append(s.all[p.Ref], p.Seq)
	}
}

func (s *sequences) Commit(ctx context.Context, session, consumer string, ps []backend.Progress) ([]string, error) {
	s.note(ps)
	return s.Backend.Commit(ctx, session, consumer, ps)
}

func (s *sequences) Capabilities() backend.Capabilities {
	caps := s.Backend.Capabilities()
	caps.Tx = s
	return caps
}

func (s *sequences) Begin(ctx context.Context, session string) (backend.Tx, error) {
	tx, err := s.Backend.Begin(ctx, session)
	return &sequencedTx{tx, s}, err
}

type sequencedTx struct {
	backend.Tx
	s *sequences
}

func (x *sequencedTx) Commit(ctx context.Context, session, consumer string, p backend.Progress) error {
	x.s.note([]backend.Progress{p})
	return x.Tx.Commit(ctx, session, consumer, p)
}

// The progress of a lease is numbered upwards, and what is repeated keeps its number.
func TestProgressIsNumbered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var f faults
		lose := 3
		f.on("Commit", func(_ context.Context, p leasemem.Phase) error {
			if p == leasemem.After && lose > 0 {
				lose--
				return errLink
			}
			return nil
		})
		be := &sequences{Backend: f.share(leasemem.New()), all: map[backend.Ref][]int64{}}
		var failures int
		hs := oneTx(func(_ context.Context, _ *leasemem.Tx, m lease.Message[note]) error {
			if m.Payload.N%10 == 3 && failures < 5 {
				failures++
				return errLink
			}
			return nil
		})
		hs = append(hs, lease.One("", func(context.Context, lease.Message[note]) error { return nil }))
		for i := range 40 {
			e := lease.Event{Topic: "x", Kind: []string{"note", "plain"}[i/5%2], Payload: []byte(`{"N":3}`)}
			if err := be.Publish(t.Context(), []lease.Event{e}); err != nil {
				t.Fatal(err)
			}
		}
		start(t, newConsumer(t, be, lease.Spec{Handlers: hs, Batch: 7}))
		drained(t, be.Backend)
		pass(time.Second)
		for ref, seqs := range be.all {
			repeated := 0
			for i, n := range seqs {
				if i > 0 && n == seqs[i-1] {
					repeated++
				} else if i > 0 && n < seqs[i-1] || n < 1 {
					t.Fatalf("%v: progress was numbered %v", ref, seqs)
				}
			}
			if repeated != 3 || len(seqs) < 8 {
				t.Errorf("%v: %d of %d were repeated: %v", ref, repeated, len(seqs), seqs)
			}
		}
		if len(be.all) != 1 {
			t.Errorf("%d leases", len(be.all))
		}
	})
}

// With a grace, what a process lost is not given back by it: an effect that cannot be fenced may be
// under way, and others wait for as long as if the process had died.
func TestGraceAfterARowLeaseWasLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		var f faults
		var u untilLost
		s := rowStreams(u.run, "a")
		s.Grace = 30 * time.Second
		start(t, newConsumer(t, f.share(be), s))
		pass(4 * time.Second)
		cut := time.Now() // the last renewal was 3.3 s before that at most
		f.on("Renew", before(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }))
		f.on("Acquire", before(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }))
		taken := make(chan time.Time, 1)
		s = rowStreams(func(context.Context, lease.Lease) error {
			select {
			case taken <- time.Now():
			default:
			}
			return nil
		}, "a")
		s.Grace = 30 * time.Second
		start(t, newConsumer(t, be, s))
		if took := (<-taken).Sub(cut); took < 35500*time.Millisecond || took > 42*time.Second {
			t.Errorf("taken after %v, want the TTL of 9 s and the grace of 30 s after the last renewal", took)
		}
	})
}
