package leasemem

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// pollInterval is how long a feed without news waits.
const pollInterval = 500 * time.Millisecond

// feed collects news until its owner asks. All but wake is guarded by store.mu.
type feed struct {
	backend   *Backend
	consumers []backend.ConsumerInfo
	topics    map[string]bool
	resources map[string]map[string]bool // by consumer
	ownership bool
	wanted    map[string]bool // consumers of which streams became wanted
	parked    bool
	setBack   bool          // the storage was, see Backend.Restore
	looked    time.Time     // sessions that expired later are news
	wake      chan struct{} // holds a token when there is news
}

// OpenFeed starts collecting news.
func (b *Backend) OpenFeed(ctx context.Context, consumers []backend.ConsumerInfo) (backend.Feed, error) {
	return call(ctx, b, "OpenFeed", func(s *store, now time.Time) (backend.Feed, error) {
		f := &feed{
			backend: b, consumers: slices.Clone(consumers), topics: map[string]bool{}, resources: map[string]map[string]bool{}, wanted: map[string]bool{},
			looked: now, wake: make(chan struct{}, 1),
		}
		s.feeds[f] = struct{}{}
		return f, nil
	})
}

// ownershipChanged tells all feeds.
func (s *store) ownershipChanged() {
	for f := range s.feeds {
		f.ownership = true
		f.signal()
	}
}

// feedsOf are the feeds of a consumer.
func (s *store) feedsOf(consumer string) iter.Seq[*feed] {
	return func(yield func(*feed) bool) {
		for f := range s.feeds {
			of := slices.ContainsFunc(f.consumers, func(c backend.ConsumerInfo) bool { return c.Name == consumer })
			if of && !yield(f) {
				return
			}
		}
	}
}

// replayed tells the feeds of a consumer.
func (s *store) replayed(consumer string) {
	for f := range s.feedsOf(consumer) {
		f.parked = true
		f.signal()
	}
}

// streamsWanted tells the feeds of a consumer.
func (s *store) streamsWanted(consumer string) {
	for f := range s.feedsOf(consumer) {
		f.wanted[consumer] = true
		f.signal()
	}
}

func (f *feed) published(m *message) {
	for _, c := range f.consumers {
		if !backend.MatchTopic(c.Topics, m.event.Topic) {
			continue
		}
		f.topics[m.event.Topic] = true
		if c.Per == backend.PerPartition || c.Per == backend.PerStream {
			if f.resources[c.Name] == nil {
				f.resources[c.Name] = map[string]bool{}
			}
			f.resources[c.Name][f.backend.store.log.resourceOf(c, m)] = true
		}
		f.signal()
	}
}

func (f *feed) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *feed) Next(ctx context.Context) (backend.News, error) {
	if err := f.backend.fault(ctx, "FeedNext", Before); err != nil {
		return backend.News{}, err
	}
	if wait := f.wait(); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return backend.News{}, ctx.Err()
		case <-f.wake:
		case <-timer.C:
		}
	}
	if err := f.backend.fault(ctx, "FeedNext", After); err != nil {
		return backend.News{}, err // the news stays
	}
	return f.drain()
}

// wait says for how long there will be no news: until the next session
// or grace expires, at most a poll interval. It is 0 when there is news.
func (f *feed) wait() time.Duration {
	s := f.backend.store
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	wait := min(pollInterval, s.releaseDelayed(now))
	if len(f.topics) > 0 || len(f.wanted) > 0 || f.ownership || f.parked || f.setBack {
		return 0
	}
	for at := range f.expiries(s) {
		if at.After(f.looked) {
			wait = min(wait, at.Sub(now))
		}
	}
	return wait
}

func (f *feed) drain() (backend.News, error) {
	s := f.backend.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.setBack {
		return backend.News{}, errSetBack
	}
	now := s.now()
	s.releaseDelayed(now)
	for at := range f.expiries(s) {
		f.ownership = f.ownership || at.After(f.looked) && !at.After(now)
	}
	n := backend.News{Topics: slices.Sorted(maps.Keys(f.topics)), Ownership: f.ownership, Wanted: slices.Sorted(maps.Keys(f.wanted)), Parked: f.parked}
	for name, rs := range f.resources {
		if n.Resources == nil {
			n.Resources = map[string][]string{}
		}
		n.Resources[name] = slices.Sorted(maps.Keys(rs))
	}
	clear(f.topics)
	clear(f.resources)
	clear(f.wanted)
	f.ownership, f.parked, f.looked = false, false, now
	select {
	case <-f.wake:
	default:
	}
	return n, nil
}

// errSetBack ends a feed: what it has told is of a storage that is gone. Another one has to be opened.
var errSetBack = errors.New("leasemem: the storage was set back; everything is looked at again")

// expiries yields when sessions expire, when the leases of such become free, and when
// leases expire by themselves.
func (f *feed) expiries(s *store) func(yield func(time.Time) bool) {
	return func(yield func(time.Time) bool) {
		if !f.rowExpiries(s, yield) {
			return
		}
		for _, se := range s.Sessions {
			if !yield(se.Expires) {
				return
			}
			for _, c := range f.consumers {
				if c.Grace > 0 && !yield(se.Expires.Add(c.Grace)) {
					return
				}
			}
		}
	}
}

// rowExpiries yields when leases that expire by themselves become free.
func (f *feed) rowExpiries(s *store, yield func(time.Time) bool) bool {
	for _, info := range f.consumers {
		c := s.Consumers[info.Name]
		if info.Lock != backend.LockRow || c == nil {
			continue
		}
		for _, l := range s.Leases[c.Name] {
			if l.Session != "" && !yield(l.Expires.Add(info.Grace)) {
				return false
			}
		}
	}
	return true
}

func (f *feed) Close() {
	s := f.backend.store
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.feeds, f)
}
