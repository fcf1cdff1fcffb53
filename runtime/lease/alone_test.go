package lease_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// logged is a logger whose lines can be read at any time.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) option() lease.Option {
	return lease.WithLogger(slog.New(slog.NewTextHandler(l, nil)))
}

// has reports that one line has all of the words.
func (l *logged) has(words ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			return true
		}
	}
	return false
}

// picky is a backend that misbehaves towards one consumer: what is asked of it for that one, alone
// or with others, goes to fault first. It is asked with the names of the methods of lease.Backend.
type picky struct {
	*leasemem.Backend
	victim string
	fault  func(ctx context.Context, op string) error
}

func (b *picky) ask(ctx context.Context, op string, names ...string) error {
	if !slices.Contains(names, b.victim) {
		return nil
	}
	return b.fault(ctx, op)
}

func namesOf(infos []backend.ConsumerInfo) (names []string) {
	for _, i := range infos {
		names = append(names, i.Name)
	}
	return names
}

func plain(info backend.ConsumerInfo) backend.ConsumerInfo {
	if info.Source != nil {
		info.Source, info.Topics = nil, []string{"*"}
	}
	return info
}

func (b *picky) Check(ctx context.Context, infos []backend.ConsumerInfo) error {
	return b.ask(ctx, "Check", namesOf(infos)...)
}

func (b *picky) Register(ctx context.Context, info backend.ConsumerInfo, resources []string) error {
	if err := b.ask(ctx, "Register", info.Name); err != nil {
		return err
	}
	return b.Backend.Register(ctx, plain(info), resources)
}

func (b *picky) Survey(ctx context.Context, names []string) ([]backend.Survey, error) {
	if err := b.ask(ctx, "Survey", names...); err != nil {
		return nil, err
	}
	return b.Backend.Survey(ctx, names)
}

func (b *picky) Acquire(ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
	if err := b.ask(ctx, "Acquire", req.Consumer.Name); err != nil {
		return nil, err
	}
	req.Consumer = plain(req.Consumer)
	return b.Backend.Acquire(ctx, req)
}

func (b *picky) OpenFeed(ctx context.Context, infos []backend.ConsumerInfo) (backend.Feed, error) {
	if err := b.ask(ctx, "OpenFeed", namesOf(infos)...); err != nil {
		return nil, err
	}
	infos = slices.Clone(infos)
	for i := range infos {
		infos[i] = plain(infos[i])
	}
	f, err := b.Backend.OpenFeed(ctx, infos)
	return &pickyFeed{f, b, namesOf(infos)}, err
}

type pickyFeed struct {
	backend.Feed
	b     *picky
	names []string
}

func (f *pickyFeed) Next(ctx context.Context) (backend.News, error) {
	if err := f.b.ask(ctx, "FeedNext", f.names...); err != nil {
		return backend.News{}, err
	}
	return f.Feed.Next(ctx)
}

func (b *picky) Maintain(ctx context.Context, infos []backend.ConsumerInfo) (operate.MaintainReport, error) {
	if err := b.ask(ctx, "Maintain", namesOf(infos)...); err != nil {
		return operate.MaintainReport{}, err
	}
	for i := range infos {
		infos[i] = plain(infos[i])
	}
	return b.Backend.Maintain(ctx, infos)
}

// One consumer's calls fail, are never answered, or do not return for ever: the others of its
// group take no notice, and the log names it.
func TestOneConsumersTroubleIsItsOwn(t *testing.T) {
	for _, op := range []string{"Register", "Survey", "Acquire", "OpenFeed", "FeedNext", "Maintain"} {
		for _, how := range []string{"fails", "is silent", "hangs"} {
			t.Run(op+" "+how, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					released := make(chan struct{})
					be := &picky{Backend: leasemem.New(), victim: "bad", fault: func(ctx context.Context, asked string) error {
						switch {
						case asked != op:
							return nil
						case how == "is silent":
							<-ctx.Done()
							return ctx.Err()
						case how == "hangs":
							<-released
						}
						return errLink
					}}
					var log logged
					var good, bad seen
					g := lease.NewGroup()
					badSpec := lease.Spec{Name: "bad", Handlers: handleAll(&bad)}
					if strings.Contains(op, "Feed") { // it reads a table of its own
						badSpec.Topics, badSpec.Source = []string{}, "a table"
					}
					for _, c := range []*lease.Consumer{
						newConsumer(t, be, badSpec, log.option()),
						newConsumer(t, be, lease.Spec{Handlers: handleAll(&good)}, log.option()),
					} {
						if err := g.Add(c); err != nil {
							t.Fatal(err)
						}
					}
					publish(t, be, "x", 0, 1, nil)
					stop := start(t, g)
					pass(time.Minute)
					publish(t, be, "x", 1, 2, nil)
					publish(t, be, "y", 0, 1, nil)
					pass(5 * time.Minute)
					if n := good.count(); n != 3 {
						t.Errorf("the other consumer handled %d, want 3", n)
					}
					if !log.has("consumer=bad", "trying again") {
						t.Error("the log does not name the consumer")
					}
					took := stopping(stop)
					pass(20 * time.Second)
					close(released)
					if d := took(); d > 20*time.Second {
						t.Errorf("stopping took %v", d)
					}
				})
			})
		}
	}
}

func TestCheckNamesTheConsumerAtFault(t *testing.T) {
	be := &picky{Backend: leasemem.New(), victim: "third", fault: func(context.Context, string) error { return errLink }}
	g := lease.NewGroup()
	for _, name := range []string{"first", "second", "third", "fourth"} {
		if err := g.Add(newConsumer(t, be, lease.Spec{Name: name, Handlers: handleAll(&seen{})})); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Run(t.Context()); !errors.Is(err, errLink) || !strings.Contains(err.Error(), `"third"`) {
		t.Errorf("error %v", err)
	}
}

// A call that does not return though its context has ended keeps no process from going on: not the
// others, not the end of the session, not the stop.
func TestCallsThatIgnoreTheirContext(t *testing.T) {
	for _, op := range []string{"Check", "OpenSession", "SessionHeartbeat", "SessionClose", "Register", "Survey", "Acquire", "OpenFeed", "FeedNext", "Fetch", "FetchParked", "Commit", "Release", "Maintain"} {
		t.Run(op, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				var link faults
				var got seen
				var hung atomic.Bool
				released := make(chan struct{})
				link.on(op, before(func(context.Context) error {
					if hung.CompareAndSwap(false, true) {
						<-released
					}
					return nil
				}))
				publish(t, be, "x", 0, 3, nil)
				publish(t, be, "y", 0, 3, nil)
				spec := lease.Spec{Retry: lease.Retry{Min: time.Second}, Handlers: one(func(_ context.Context, m lease.Message[note]) error {
					if m.Payload.N == 1 && m.Attempt == 1 {
						return errLink
					}
					got.add(m.Topic, m.Payload.N)
					return nil
				})}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- newConsumer(t, link.share(be), spec).Run(ctx) }()
				pass(5 * time.Second)
				if op == "Release" {
					start(t, newConsumer(t, be, spec))
				}
				pass(3 * time.Minute)
				if op == "SessionClose" {
					cancel()
					pass(30 * time.Second)
				}
				if !hung.Load() {
					t.Fatal("the operation was not used")
				}
				if n := got.count(); n < 6 && op != "Check" { // then it does not start
					t.Errorf("%d of 6 messages were handled", n)
				}
				cancel()
				pass(30 * time.Second)
				select {
				case err := <-ended:
					if (err != nil) != (op == "Check") {
						t.Errorf("Run: %v", err)
					}
				default:
					t.Error("Run has not returned")
				}
				close(released)
				synctest.Wait()
			})
		})
	}
}

// Calls of one kind that never return stop only what needs calls of that kind.
func TestCallsOfOneKindThatNeverReturn(t *testing.T) {
	for _, op := range []string{"Register", "Survey", "Acquire", "FeedNext", "FetchParked", "Maintain"} {
		t.Run(op, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				var link faults
				var got seen
				var rec recorder
				var hang atomic.Bool
				var hung atomic.Int64
				released := make(chan struct{})
				t.Cleanup(func() { close(released) })
				link.on(op, before(func(context.Context) error {
					if hang.Load() {
						hung.Add(1)
						<-released
					}
					return nil
				}))
				publish(t, be, "x", 0, 1, nil)
				start(t, newConsumer(t, link.share(be), lease.Spec{Handlers: one(func(_ context.Context, m lease.Message[note]) error {
					got.add(m.Topic, m.Payload.N)
					return nil
				})}, lease.WithObserver(&rec)))
				pass(5 * time.Second)
				hang.Store(true)
				for i := 1; i < 30; i++ {
					publish(t, be, "x", i, i+1, nil)
					publish(t, be, fmt.Sprint("new", i), 0, 1, nil)
					pass(time.Minute)
				}
				got.ordered(t, "x", 30)
				if n := len(observed[operate.ObservedLoss](&rec)); n > 0 {
					t.Errorf("%d leases were lost", n)
				}
				if n := hung.Load(); n < 1 || n > 20 {
					t.Errorf("%d calls hang, want some and not ever more", n)
				}
			})
		})
	}
}

// That the session is lost is learnt from whatever call says so.
func TestEveryCallMayTellThatTheSessionIsLost(t *testing.T) {
	for _, op := range []string{"SessionHeartbeat", "Register", "Survey", "Acquire", "OpenFeed", "FeedNext", "Fetch", "FetchParked", "Commit", "Maintain"} {
		t.Run(op, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var link faults
				be := &opened{Backend: link.share(leasemem.New())}
				var told atomic.Bool
				link.on(op, before(func(context.Context) error {
					if told.CompareAndSwap(false, true) {
						return backend.ErrSessionLost
					}
					return nil
				}))
				publish(t, be, "x", 0, 3, nil)
				var got seen
				start(t, newConsumer(t, be, lease.Spec{Handlers: handleAll(&got)}))
				pass(time.Minute)
				be.mu.Lock()
				defer be.mu.Unlock()
				if n := len(be.specs); n != 2 || got.count() < 3 {
					t.Errorf("%d sessions were opened, want 2; %d messages were handled", n, got.count())
				}
			})
		})
	}
}

// quickFeed answers at once, whatever there is.
type quickFeed struct {
	backend.Feed
	news backend.News
	n    *atomic.Int64
	over func()
}

func (f *quickFeed) Next(ctx context.Context) (backend.News, error) {
	if f.n.Add(1) > 100_000 {
		f.over()
	}
	return f.news, ctx.Err()
}

type quickFeeds struct {
	*leasemem.Backend
	feed quickFeed
}

func (b *quickFeeds) OpenFeed(ctx context.Context, infos []backend.ConsumerInfo) (backend.Feed, error) {
	f := b.feed
	var err error
	f.Feed, err = b.Backend.OpenFeed(ctx, infos)
	return &f, err
}

// A feed that answers at once, empty or with the same again, is not asked without a pause.
func TestFeedThatAnswersAtOnceIsPaced(t *testing.T) {
	for name, news := range map[string]backend.News{"nothing": {}, "the same": {Topics: []string{"x"}, Ownership: true, Parked: true}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				var n atomic.Int64
				be := &quickFeeds{leasemem.New(), quickFeed{news: news, n: &n, over: cancel}}
				ended := make(chan error, 1)
				go func() { ended <- newConsumer(t, be, lease.Spec{Handlers: handleAll(&seen{})}).Run(ctx) }()
				pass(10 * time.Second)
				if n := n.Load(); n > 2500 {
					t.Errorf("the feed was asked %d times in 10s", n)
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// alarmed is a session whose alarm never ends.
type alarmed struct {
	backend.Session
	n    *atomic.Int64
	over func()
}

func (s *alarmed) Alarm() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func (s *alarmed) Heartbeat(ctx context.Context) error {
	if s.n.Add(1) > 10_000 {
		s.over()
	}
	return s.Session.Heartbeat(ctx)
}

type alarming struct {
	*leasemem.Backend
	n    atomic.Int64
	over func()
}

func (b *alarming) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	s, err := b.Backend.OpenSession(ctx, spec)
	return &alarmed{s, &b.n, b.over}, err
}

func TestAlarmThatDoesNotEndIsPaced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		be := &alarming{Backend: leasemem.New(), over: cancel}
		ended := make(chan error, 1)
		go func() { ended <- newConsumer(t, be, lease.Spec{Handlers: handleAll(&seen{})}).Run(ctx) }()
		pass(10 * time.Second)
		if n := be.n.Load(); n > 250 {
			t.Errorf("%d heartbeats in 10s", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A session that may have been opened though the reply was lost is replaced by the next one.
func TestSessionReplacesOneOfUnknownOutcome(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var link faults
		be := &opened{Backend: link.share(leasemem.New())}
		n := 0
		link.on("OpenSession", func(ctx context.Context, phase leasemem.Phase) error {
			if phase == leasemem.Before {
				n++
			}
			switch {
			case n == 1 && phase == leasemem.After: // it is opened, and the reply is lost
				<-ctx.Done()
				return ctx.Err()
			case n == 2 && phase == leasemem.Before: // refused at once
				return errLink
			}
			return nil
		})
		start(t, newConsumer(t, be, lease.Spec{Handlers: handleAll(&seen{})}))
		pass(time.Minute)
		be.mu.Lock()
		defer be.mu.Unlock()
		if len(be.specs) != 3 || be.specs[0].Replaces != "" || be.specs[1].Replaces != be.specs[0].ID || be.specs[2].Replaces != be.specs[0].ID {
			t.Errorf("sessions %+v", be.specs)
		}
	})
}

func TestConsumerRunsOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		c := newConsumer(t, be, lease.Spec{Handlers: handleAll(&seen{})})
		stop := start(t, c)
		pass(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Run(ctx); err == nil || !strings.Contains(err.Error(), `"a" runs already`) {
			t.Errorf("a second Run: %v", err)
		}
		g := lease.NewGroup()
		if err := errors.Join(g.Add(newConsumer(t, be, lease.Spec{Name: "b", Handlers: handleAll(&seen{})})), g.Add(c)); err != nil {
			t.Fatal(err)
		}
		if err := g.Run(ctx); err == nil || !strings.Contains(err.Error(), `"a" runs already`) {
			t.Errorf("a Run in a group: %v", err)
		}
		stop()
		start(t, g)() // one after the other is fine
	})
}

func TestNilIsRefused(t *testing.T) {
	spec := lease.Spec{Name: "a", Per: lease.PerTopic, Topics: []string{"*"}, Handlers: handleAll(&seen{})}
	if _, err := lease.NewConsumer(leasemem.New(), spec, quiet, nil); err == nil || !strings.Contains(err.Error(), `consumer "a": option 2 of 2 is nil`) {
		t.Errorf("a nil option: %v", err)
	}
	if err := lease.NewGroup().Add(nil); err == nil || !strings.Contains(err.Error(), "the consumer is nil") {
		t.Errorf("a nil consumer: %v", err)
	}
}

// The longest durations mean what they say.
func TestLongestDurations(t *testing.T) {
	t.Run("drain", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			be := leasemem.New()
			publish(t, be, "x", 0, 1, nil)
			var cut error
			stop := start(t, newConsumer(t, be, lease.Spec{Handlers: one(func(ctx context.Context, _ lease.Message[note]) error {
				time.Sleep(30 * time.Second)
				cut = context.Cause(ctx)
				return nil
			})}, lease.WithDrain(math.MaxInt64)))
			pass(time.Second)
			stop()
			if cut != nil || status(t, be).LagTotal != 0 {
				t.Errorf("the handler was cut off: %v", cut)
			}
		})
	})
	t.Run("poll", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			asked := 0
			s := lease.Spec{Name: "a", Per: lease.PerStream, Poll: math.MaxInt64, Grace: math.MaxInt64, Idle: math.MaxInt64,
				Streams: func(context.Context) ([]string, error) {
					if asked++; asked > 1000 {
						cancel()
					}
					return nil, nil
				},
				Handlers: []lease.Handler{lease.Run(func(context.Context, lease.Lease) error { return nil })}}
			c, err := lease.NewConsumer(leasemem.New(), s, quiet)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- c.Run(ctx) }()
			pass(time.Hour)
			if asked != 1 {
				t.Errorf("asked %d times in an hour, want once", asked)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	})
}

// Streams, the application's function, has a deadline, is asked once at a time also when the
// session was lost in between, and does not keep other work from going on.
func TestStreamsThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var link faults
		be := &opened{Backend: link.share(leasemem.New())}
		var asked, most atomic.Int64
		released := make(chan struct{})
		s := lease.Spec{Name: "a", Per: lease.PerStream, Streams: func(ctx context.Context) ([]string, error) {
			most.Store(max(most.Load(), asked.Add(1)))
			defer asked.Add(-1)
			if _, ok := ctx.Deadline(); !ok {
				t.Error("no deadline")
			}
			<-released
			return nil, nil
		}, Handlers: []lease.Handler{lease.Run(func(context.Context, lease.Lease) error { return nil })}}
		c, err := lease.NewConsumer(be, s, quiet)
		if err != nil {
			t.Fatal(err)
		}
		stop := start(t, c)
		for range 3 {
			link.on("SessionHeartbeat", before(func(context.Context) error { return backend.ErrSessionLost }))
			pass(10 * time.Second)
			link.on("SessionHeartbeat", nil)
			pass(10 * time.Second)
		}
		be.mu.Lock()
		if n := len(be.specs); n < 4 || most.Load() != 1 {
			t.Errorf("%d sessions, %d questions at once", n, most.Load())
		}
		be.mu.Unlock()
		took := stopping(stop)
		pass(time.Minute)
		close(released)
		if d := took(); d > 30*time.Second {
			t.Errorf("stopping took %v", d)
		}
	})
}
