package leaseweb

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	pace       = 2 * time.Second  // between two polls, for all viewers together
	restFactor = 10               // a poll that took long is followed by so many times as long without one
	patience   = 3 * time.Second  // from when it is asked: then pages show what is known, and say how old it is
	askWithin  = 15 * time.Second // for one answer of the operator
	quiet      = 10 * time.Second // viewers look again after this, though all is as it was
	mapped     = 400              // leases that a consumer's picture shows
)

// shared is what all viewers look at: it asks the operator once for all of them.
type shared struct {
	op       operate.Operator
	statuses *cell[[]operate.ConsumerStatus]

	mu      sync.Mutex
	details map[string]*cell[detail]
	history map[string]*history
	lists   map[string]list // by what was asked
	viewers map[*viewer]struct{}
	polling bool
}

// detail is what a consumer's own page has beside its status.
type detail struct {
	members []operate.MemberStatus
	leases  []operate.LeaseStatus
}

// viewer is a page that is open in a browser.
type viewer struct {
	consumer string // "" for all
	detail   bool
	hint     chan struct{} // holds one: look again
}

func newShared(op operate.Operator) *shared {
	s := &shared{op: op, details: map[string]*cell[detail]{}, history: map[string]*history{}, lists: map[string]list{},
		viewers: map[*viewer]struct{}{}}
	s.statuses = newCell(func(ctx context.Context) ([]operate.ConsumerStatus, error) {
		all, err := op.Status(ctx)
		if err == nil {
			s.remember(all)
		}
		return all, err
	})
	return s
}

// known is an answer of the operator.
type known[T any] struct {
	value T
	at    time.Time // when it came
	old   error     // why there is none that is newer; nil if it is new
}

// unanswered is how long ago a backend was asked that has not answered.
type unanswered time.Duration

func (u unanswered) Error() string {
	return fmt.Sprintf("it was asked %s ago, and is silent", age(time.Duration(u)))
}

// cell keeps the latest answer to a question. Requests that come while it is asked wait for that answer, though not for long.
type cell[T any] struct {
	ask func(context.Context) (T, error)

	mu     sync.Mutex
	value  T
	at     time.Time     // of the value, zero if there is none
	err    error         // of the latest attempt
	tried  time.Time     // when that ended, zero if its answer is not to be used
	took   time.Duration // to get it, 0 of a failure, which is not kept for longer
	asking chan struct{} // closed when the answer is there
	began  time.Time     // when it was asked for
	late   bool          // the answer that is asked for will be too old to be used
}

func newCell[T any](ask func(context.Context) (T, error)) *cell[T] { return &cell[T]{ask: ask} }

// get returns an answer that is at most as old as given, or older if the backend is slow to answer. When the backend does not
// answer at all, the last answer is returned, with the cause, or else the cause as an error.
func (c *cell[T]) get(ctx context.Context, age time.Duration) (known[T], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for waited := false; ; waited = true {
		if c.asking == nil && (c.tried.IsZero() || !waited && time.Since(c.tried) >= max(age, restFactor*c.took)) {
			c.asking, c.began, c.late = make(chan struct{}), time.Now(), false
			go c.refresh()
		}
		if c.asking == nil {
			return c.latest(c.err)
		}
		asking, began := c.asking, c.began
		c.mu.Unlock()
		silent := await(ctx, asking, patience-time.Since(began))
		c.mu.Lock()
		if silent && c.asking == asking {
			return c.latest(unanswered(time.Since(began)))
		}
	}
}

// await reports whether all waiting was in vain.
func await(ctx context.Context, done <-chan struct{}, most time.Duration) (silent bool) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
		return false
	case <-timer.C:
	case <-ctx.Done():
	}
	return true
}

// latest returns the last answer, which is old if there is a cause. The lock is held.
func (c *cell[T]) latest(cause error) (known[T], error) {
	if c.at.IsZero() && cause != nil {
		return known[T]{}, cause
	}
	return known[T]{c.value, c.at, cause}, nil
}

// last is latest for one that does not ask.
func (c *cell[T]) last(cause error) (known[T], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.latest(cause)
}

func (c *cell[T]) refresh() {
	ctx, cancel := context.WithTimeout(context.Background(), askWithin) // one viewer may go, others wait
	defer cancel()
	value, err := c.ask(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err, c.tried, c.took = err, time.Now(), time.Since(c.began)
	switch {
	case err == nil:
		c.value, c.at = value, c.tried
	case answered(err):
		c.at = time.Time{}
		fallthrough
	default:
		c.took = 0
	}
	if c.late {
		c.tried = time.Time{}
	}
	close(c.asking)
	c.asking = nil
}

// answered reports whether an error is an answer, and not the lack of one.
func answered(err error) bool {
	_, invalid := errors.AsType[*operate.InvalidError](err)
	return invalid || isNoCursor(err)
}

// drop makes the next request ask, and those that wait ask again.
func (c *cell[T]) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tried, c.late = time.Time{}, true
}

// detail has who works on a consumer that is known.
func (s *shared) detail(consumer string) *cell[detail] {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.details[consumer]
	if c == nil {
		c = newCell(func(ctx context.Context) (d detail, err error) {
			if d.members, err = s.op.Members(ctx, consumer); err != nil {
				return d, err
			}
			if d.leases, err = s.op.Leases(ctx, consumer, mapped); err != nil {
				return d, err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.of(consumer).observe(time.Now(), d)
			return d, nil
		})
		s.details[consumer] = c
	}
	return c
}

// list is an answer that a page of rows was made of.
type list struct {
	cell  any // *cell[T]
	since time.Time
}

// mostLists bounds the answers that are kept, each of at most a hundred rows or groups.
const mostLists = 100

// listOf has an answer that viewers of the same page share. The key that tells it from others, and ask holds no request.
func listOf[T any](s *shared, what string, of any, ask func(context.Context) (T, error)) *cell[T] {
	key := fmt.Sprintf("%s %#v", what, of)
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, ok := s.lists[key].cell.(*cell[T])
	if !ok {
		kept = newCell(ask)
		if len(s.lists) >= mostLists {
			maps.DeleteFunc(s.lists, func(_ string, l list) bool { return time.Since(l.since) > quiet })
		}
		if len(s.lists) < mostLists {
			s.lists[key] = list{kept, time.Now()}
		}
	}
	return kept
}

// of is the history of a consumer. The lock is held.
func (s *shared) of(consumer string) *history {
	h := s.history[consumer]
	if h == nil {
		h = &history{}
		s.history[consumer] = h
	}
	return h
}

// remember adds to the history of all, and forgets consumers that are gone.
func (s *shared) remember(all []operate.ConsumerStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, c := range all {
		s.of(c.Consumer).add(now, c)
	}
	for name := range s.history {
		if !slices.ContainsFunc(all, func(c operate.ConsumerStatus) bool { return c.Consumer == name }) {
			delete(s.history, name)
			delete(s.details, name)
		}
	}
}

// past calls f with the history of a consumer, which it must not keep.
func (s *shared) past(consumer string, f func(*history)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.of(consumer))
}

// changed makes the next look at a consumer a fresh one: an action has changed it.
func (s *shared) changed(consumer string) {
	s.statuses.drop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.details[consumer]; c != nil {
		c.drop()
	}
	clear(s.lists)
	s.hint(func(v *viewer) bool { return true })
}

// hint tells viewers to look again. The lock is held.
func (s *shared) hint(concerned func(*viewer) bool) {
	for v := range s.viewers {
		if concerned(v) {
			select {
			case v.hint <- struct{}{}:
			default: // one that waits is enough
			}
		}
	}
}

// mostViewers bounds the streams of hints; pages beyond that ask again by themselves.
const mostViewers = 500

// follow adds a viewer, unless there are too many. The first one starts the polling.
func (s *shared) follow(consumer string, detail bool) (v *viewer, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.viewers) >= mostViewers {
		return nil, false
	}
	v = &viewer{consumer: consumer, detail: detail, hint: make(chan struct{}, 1)}
	s.viewers[v] = struct{}{}
	if !s.polling {
		s.polling = true
		go s.poll()
	}
	return v, true
}

// leave removes a viewer. With the last one polling ends, at its next step.
func (s *shared) leave(v *viewer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.viewers, v)
}

// poll asks while there are viewers.
func (s *shared) poll() {
	var (
		seen   = map[string]uint64{} // of a consumer's line, and with a / in front of its detail
		told   = map[*viewer]time.Time{}
		silent bool
		ticks  = time.NewTicker(pace)
	)
	defer ticks.Stop()
	for ; ; <-ticks.C {
		all, failed, watched := s.look()
		if !watched {
			return
		}
		now := time.Now()
		changed := map[string]bool{}
		for name, print := range all {
			if old, known := seen[name]; !known || old != print {
				changed[name], changed[""] = known, changed[""] || known && !strings.HasPrefix(name, "/")
			}
		}
		turned := failed != silent // from answers to silence, or back: that concerns all
		seen, silent = all, failed
		s.mu.Lock()
		s.hint(func(v *viewer) bool {
			if told[v].IsZero() {
				told[v] = now // its page is fresh
			}
			if !turned && !changed[v.consumer] && !(v.detail && changed["/"+v.consumer]) && now.Sub(told[v]) < quiet {
				return false
			}
			told[v] = now
			return true
		})
		for v := range told {
			if _, open := s.viewers[v]; !open {
				delete(told, v)
			}
		}
		s.mu.Unlock()
	}
}

// look asks for what is looked at, and returns a fingerprint of each part, whether there was no answer, and false when there are no
// viewers.
func (s *shared) look() (prints map[string]uint64, failed, watched bool) {
	s.mu.Lock()
	details := map[string]bool{}
	for v := range s.viewers {
		watched = true
		if v.detail {
			details[v.consumer] = true
		}
	}
	s.polling = watched
	s.mu.Unlock()
	if !watched {
		return nil, false, false
	}
	prints = map[string]uint64{}
	all, err := s.statuses.get(context.Background(), pace/2)
	failed = err != nil || all.old != nil
	prints["/"] = fingerprint(func(w io.Writer) { fmt.Fprint(w, len(all.value)) })
	for _, c := range all.value {
		prints[c.Consumer] = fingerprint(func(w io.Writer) {
			c.OldestUnread, c.PausedFor = c.OldestUnread.Truncate(time.Second), c.PausedFor.Truncate(time.Minute)
			fmt.Fprintf(w, "%+v", c)
		})
		if !details[c.Consumer] {
			continue
		}
		one := s.detail(c.Consumer)
		d, _ := one.last(nil)
		if !failed {
			d, err = one.get(context.Background(), pace/2)
			failed = err != nil || d.old != nil
		}
		prints["/"+c.Consumer] = fingerprint(func(w io.Writer) {
			for _, m := range d.value.members {
				fmt.Fprintln(w, m.Session, m.Owned, m.FairShare, m.SinceBeat.Truncate(5*time.Second))
			}
			for _, l := range d.value.leases {
				fmt.Fprintln(w, l.Resource, l.Session, l.Epoch, l.Lag, l.Parked, l.Suspicion)
			}
		})
	}
	return prints, failed, true
}

func fingerprint(of func(io.Writer)) uint64 {
	h := fnv.New64a()
	of(h)
	return h.Sum64()
}
