package filebackend

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

const (
	slots      = 64                 // of PerPartition; another number would change the order of keys
	keepsOut   = 7 * 24 * time.Hour // how long an event's ID keeps out a second one
	pollPeriod = 5 * time.Second    // a feed answers at least so often
)

// position is a backend.Cursor: how many messages of the whole log have been passed. The message at position n is the
// nth, and n is its id.
type position int64

type message struct {
	backend.Event
	position  position
	published time.Time
}

func (m *message) id() string { return strconv.FormatInt(int64(m.position), 10) }

// slot spreads messages without a key over all slots.
func (m *message) slot() int {
	if m.Key == "" {
		return int(m.position % slots)
	}
	h := fnv.New32a()
	h.Write([]byte(m.Key))
	return int(h.Sum32() % slots)
}

// raw copies the message for a caller, which may change what it gets.
func (m *message) raw(maxPayload int) backend.Raw {
	r := backend.Raw{ID: m.id(), Topic: m.Topic, Key: m.Key, Kind: m.Kind, Headers: maps.Clone(m.Headers),
		PublishedAt: m.published, Size: len(m.Payload)}
	if r.Size <= maxPayload {
		r.Payload = slices.Clone(m.Payload)
	}
	return r
}

// Publish appends all events of a call in one step.
func (b *Backend) Publish(ctx context.Context, events []backend.Event) error {
	if err := backend.CheckEvents(events); err != nil {
		return err
	}
	_, err := change[any](ctx, b, "publish", publish{events})
	return err
}

type publish struct{ Events []backend.Event }

func (c publish) apply(s *state) (any, error) {
	for _, e := range c.Events {
		if e.ID != "" {
			id := eventID{e.Topic, e.ID}
			if until, there := s.ids[id]; there && s.now.Before(until) {
				continue
			}
			until := s.now.Add(keepsOut)
			s.ids[id] = until
			s.idQueue = append(s.idQueue, id)
		}
		due := s.now.Add(e.After)
		if e.At.After(due) {
			due = e.At
		}
		s.changed = true
		if !due.After(s.now) {
			s.append(e, s.now)
			continue
		}
		i, _ := slices.BinarySearchFunc(s.delayed, due, func(d delayed, due time.Time) int {
			if d.due.After(due) {
				return 1
			}
			return -1 // also when they are due together: the one published first comes first
		})
		s.delayed = slices.Insert(s.delayed, i, delayed{e, due})
	}
	return nil, nil
}

// append adds a message to the log and its indexes.
func (s *state) append(e backend.Event, at time.Time) {
	m := &message{Event: e, position: position(len(s.log) + 1), published: at}
	s.log = append(s.log, m)
	s.topics[m.Topic] = append(s.topics[m.Topic], m)
	s.slots[m.slot()] = append(s.slots[m.slot()], m)
}

// message returns the message with this id, or nil.
func (s *state) message(id string) *message {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil || n < 1 || n > int64(len(s.log)) || s.log[n-1].id() != id {
		return nil
	}
	return s.log[n-1]
}

// unread returns the messages of a resource after a position, matching or not.
func (s *state) unread(per backend.Per, resource string, from position) []*message {
	var all []*message
	switch per {
	case backend.PerTopic:
		all = s.topics[resource]
	case backend.PerPartition:
		if n, err := strconv.Atoi(resource); err == nil && n >= 0 && n < slots {
			all = s.slots[n]
		}
	case backend.PerGroup:
		all = s.log
	}
	i, _ := slices.BinarySearchFunc(all, from+1, func(m *message, p position) int { return int(m.position - p) })
	return all[i:]
}

// wants tells which messages a consumer reads: those that match a pattern of the call, or of any member. Members of
// another version may read other topics, and what one of them wants no other may pass over, also while that one
// restarts: its session counts until it is forgotten. The lease of a topic is for all messages of that topic.
func (s *state) wants(info backend.ConsumerInfo) func(*message) bool {
	if info.Per == backend.PerTopic {
		return func(*message) bool { return true }
	}
	patterns := s.patterns(info)
	return func(m *message) bool { return backend.MatchTopic(patterns, m.Topic) }
}

func (s *state) patterns(info backend.ConsumerInfo) []string {
	patterns := slices.Clone(info.Topics)
	for _, m := range s.sessions {
		patterns = append(patterns, m.spec.Topics[info.Name]...)
	}
	slices.Sort(patterns)
	return slices.Compact(patterns)
}

// Fetch reads the log.
func (b *Backend) Fetch(ctx context.Context, req backend.FetchRequest) (answer []backend.Fetched, err error) {
	err = b.read(ctx, "fetch", func(s *state) error {
		wants := s.wants(req.Consumer)
		for _, item := range req.Items {
			from, ok := item.From.(position) // nil is the beginning
			if !ok && item.From != nil {
				return fmt.Errorf("fetch %s %s: the cursor is a %T of another backend; use the grant's", req.Consumer.Name, item.Resource, item.From)
			}
			f := backend.Fetched{Resource: item.Resource, Next: item.From}
			cuts := []backend.Cursor{item.From}
			if s.consumers[req.Consumer.Name] != nil {
				for _, m := range s.unread(req.Consumer.Per, item.Resource, from) {
					if f.More = len(f.Messages) >= item.Limit; f.More {
						break
					}
					f.Next = m.position
					if wants(m) {
						f.Messages = append(f.Messages, m.raw(req.MaxPayload))
						cuts = append(cuts, m.position)
					}
				}
			}
			f.Cut = func(n int) backend.Cursor { return cuts[n] }
			answer = append(answer, f)
		}
		return nil
	})
	return answer, err
}

// OpenFeed starts watching.
func (b *Backend) OpenFeed(ctx context.Context, consumers []backend.ConsumerInfo) (backend.Feed, error) {
	f := &feed{b: b, consumers: consumers}
	err := b.read(ctx, "open feed", func(s *state) error {
		f.seen, f.ownership, f.replays, f.at = len(s.log), s.ownership, s.replays, s.now
		return nil
	})
	return f, err
}

// feed remembers how much of the state it has told of.
type feed struct {
	b                        *Backend
	consumers                []backend.ConsumerInfo
	seen, ownership, replays int
	at                       time.Time
}

func (f *feed) Close() {}

func (f *feed) Next(ctx context.Context) (news backend.News, err error) {
	for {
		var found bool
		var wait time.Duration
		var changed <-chan struct{}
		err := f.b.read(ctx, "feed", func(s *state) error {
			news, found, wait = f.look(s)
			changed = f.b.changed
			return nil
		})
		if err != nil || found {
			return news, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return news, ctx.Err()
		case <-changed:
			timer.Stop()
		case <-timer.C: // time alone makes news too: delayed events, and sessions that expire
			err = f.b.read(ctx, "feed", func(s *state) error {
				news, _, _ = f.look(s)
				return nil
			})
			return news, err
		}
	}
}

// look returns what is new, whether there is anything, and how long there will be nothing unless a command is carried out.
func (f *feed) look(s *state) (news backend.News, found bool, wait time.Duration) {
	news.Ownership, news.Parked = s.ownership > f.ownership, s.replays > f.replays
	for _, c := range f.consumers {
		patterns := s.patterns(c)
		for _, m := range s.log[f.seen:] {
			if !backend.MatchTopic(patterns, m.Topic) {
				continue
			}
			if c.Per != backend.PerPartition {
				news.Topics = append(news.Topics, m.Topic)
				continue
			}
			if news.Resources == nil {
				news.Resources = map[string][]string{}
			}
			if slot := strconv.Itoa(m.slot()); !slices.Contains(news.Resources[c.Name], slot) {
				news.Resources[c.Name] = append(news.Resources[c.Name], slot)
			}
		}
	}
	slices.Sort(news.Topics)
	news.Topics = slices.Compact(news.Topics)
	next := s.now.Add(pollPeriod)
	if len(s.delayed) > 0 && s.delayed[0].due.Before(next) {
		next = s.delayed[0].due
	}
	graces := []time.Duration{0}
	for _, c := range f.consumers {
		graces = append(graces, c.Grace)
	}
	for _, m := range s.sessions {
		for _, grace := range graces {
			free := m.expires.Add(grace)
			switch {
			case m.closed:
			case free.After(s.now) && free.Before(next):
				next = free
			case free.After(f.at) && !free.After(s.now):
				news.Ownership = true
			}
		}
	}
	f.seen, f.ownership, f.replays, f.at = len(s.log), s.ownership, s.replays, s.now
	found = news.Ownership || news.Parked || len(news.Topics) > 0 || len(news.Resources) > 0
	return news, found, next.Sub(s.now)
}
