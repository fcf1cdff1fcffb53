package leaseweb

import (
	"context"
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
	askWithin  = 15 * time.Second // for one answer of the operator
	quiet      = 10 * time.Second // viewers look again after this, though all is as it was
	mapped     = 400              // leases that a consumer's picture shows
)

// shared is what all viewers look at: it asks the operator once for all of them.
type shared struct {
	op       operate.Operator
	statuses cell[[]operate.ConsumerStatus]

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
	return &shared{op: op, details: map[string]*cell[detail]{}, history: map[string]*history{}, lists: map[string]list{},
		viewers: map[*viewer]struct{}{}}
}

// cell keeps the latest answer to a question. Requests that come while it is asked wait for that answer.
type cell[T any] struct {
	mu     sync.Mutex
	value  T
	err    error
	at     time.Time     // of the answer, zero if it is not to be used
	took   time.Duration // to get it, 0 of a failure, which is not kept for longer
	asking chan struct{} // closed when the answer is there
	late   bool          // the answer that is asked for will be too old to be used
}

// get returns an answer that is at most as old as given, or older if the backend is slow to answer.
func (c *cell[T]) get(ctx context.Context, age time.Duration, ask func(context.Context) (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for waited := false; ; waited = true {
		if c.asking == nil && (c.at.IsZero() || !waited && time.Since(c.at) >= max(age, restFactor*c.took)) {
			c.asking, c.late = make(chan struct{}), false
			go c.refresh(ask)
		}
		if c.asking == nil {
			return c.value, c.err
		}
		asking := c.asking
		c.mu.Unlock()
		select {
		case <-asking:
			c.mu.Lock()
		case <-ctx.Done():
			c.mu.Lock()
			var zero T
			return zero, ctx.Err()
		}
	}
}

func (c *cell[T]) refresh(ask func(context.Context) (T, error)) {
	ctx, cancel := context.WithTimeout(context.Background(), askWithin) // one viewer may go, others wait
	defer cancel()
	began := time.Now()
	value, err := ask(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value, c.err, c.at, c.took = value, err, time.Now(), time.Since(began)
	if c.late {
		c.at = time.Time{}
	}
	if err != nil {
		c.took = 0
	}
	close(c.asking)
	c.asking = nil
}

// drop makes the next request ask, and those that wait ask again.
func (c *cell[T]) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.late = time.Time{}, true
}

// status returns every consumer.
func (s *shared) status(ctx context.Context, age time.Duration) ([]operate.ConsumerStatus, error) {
	return s.statuses.get(ctx, age, func(ctx context.Context) ([]operate.ConsumerStatus, error) {
		all, err := s.op.Status(ctx)
		if err == nil {
			s.remember(all)
		}
		return all, err
	})
}

// detail returns who works on a consumer that is known.
func (s *shared) detail(ctx context.Context, consumer string, age time.Duration) (detail, error) {
	s.mu.Lock()
	c := s.details[consumer]
	if c == nil {
		c = &cell[detail]{}
		s.details[consumer] = c
	}
	s.mu.Unlock()
	return c.get(ctx, age, func(ctx context.Context) (d detail, err error) {
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
}

// list is an answer that a page of rows was made of.
type list struct {
	cell  any // *cell[T]
	since time.Time
}

// mostLists bounds the answers that are kept, each of at most a hundred rows or groups.
const mostLists = 100

// ask returns an answer that viewers of the same page share. What tells it from others.
func ask[T any](ctx context.Context, s *shared, what string, of any, question func(context.Context) (T, error)) (T, error) {
	key := fmt.Sprintf("%s %#v", what, of)
	s.mu.Lock()
	kept, ok := s.lists[key].cell.(*cell[T])
	if !ok {
		kept = &cell[T]{}
		if len(s.lists) >= mostLists {
			maps.DeleteFunc(s.lists, func(_ string, l list) bool { return time.Since(l.since) > quiet })
		}
		if len(s.lists) < mostLists {
			s.lists[key] = list{kept, time.Now()}
		}
	}
	s.mu.Unlock()
	return kept.get(ctx, pace, question)
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
		seen  = map[string]uint64{} // of a consumer's line, and with a / in front of its detail
		told  = map[*viewer]time.Time{}
		ticks = time.NewTicker(pace)
	)
	defer ticks.Stop()
	for ; ; <-ticks.C {
		all, watched := s.look()
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
		seen = all
		s.mu.Lock()
		s.hint(func(v *viewer) bool {
			if told[v].IsZero() {
				told[v] = now // its page is fresh
			}
			if !changed[v.consumer] && !(v.detail && changed["/"+v.consumer]) && now.Sub(told[v]) < quiet {
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

// look asks for what is looked at, and returns a fingerprint of each part; false when there are no viewers.
func (s *shared) look() (prints map[string]uint64, watched bool) {
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
		return nil, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), askWithin)
	defer cancel()
	prints = map[string]uint64{}
	all, err := s.status(ctx, pace/2)
	prints["/"] = fingerprint(func(w io.Writer) { fmt.Fprint(w, err, len(all)) })
	for _, c := range all {
		prints[c.Consumer] = fingerprint(func(w io.Writer) {
			c.OldestUnread, c.PausedFor = c.OldestUnread.Truncate(time.Second), c.PausedFor.Truncate(time.Minute)
			fmt.Fprintf(w, "%+v", c)
		})
		if !details[c.Consumer] {
			continue
		}
		d, err := s.detail(ctx, c.Consumer, pace/2)
		prints["/"+c.Consumer] = fingerprint(func(w io.Writer) {
			fmt.Fprint(w, err)
			for _, m := range d.members {
				fmt.Fprintln(w, m.Session, m.Owned, m.FairShare, m.SinceBeat.Truncate(5*time.Second))
			}
			for _, l := range d.leases {
				fmt.Fprintln(w, l.Resource, l.Session, l.Epoch, l.Lag, l.Parked, l.Suspicion)
			}
		})
	}
	return prints, true
}

func fingerprint(of func(io.Writer)) uint64 {
	h := fnv.New64a()
	of(h)
	return h.Sum64()
}
