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
	slots      = 64                     // of PerPartition; another number would change the order of keys
	keepsOut   = 7 * 24 * time.Hour     // how long an event's ID keeps out a second one
	pollPeriod = 200 * time.Millisecond // in which feeds find the changes that time alone makes
)

// position is a backend.Cursor: how many messages of the whole log have been passed. The id of a message is its number
// in the log, so that a cursor holds the id of the last message passed.
type position int64

func (p position) id() string { return strconv.FormatInt(int64(p), 10) }

type message struct {
	backend.Event
	position
	published time.Time
}

type delayed struct {
	event backend.Event
	due   time.Time
}

type eventID struct{ topic, id string }

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
	_, err := change[any](ctx, b, "publish", events)
	return err
}

func (s *state) publish(events []backend.Event) (any, error) {
	for _, e := range events {
		id := eventID{e.Topic, e.ID}
		if e.ID != "" && s.now.Before(s.ids[id]) {
			continue
		} else if e.ID != "" {
			s.ids[id] = s.now.Add(keepsOut)
		}
		due := s.now.Add(max(e.After, 0))
		if e.At.After(due) {
			due = e.At
		}
		s.delayed = append(s.delayed, delayed{e, due})
		s.changed = true
	}
	slices.SortStableFunc(s.delayed, func(a, b delayed) int { return a.due.Compare(b.due) })
	s.advance(s.now) // events without delay join the log at once
	return nil, nil
}

// advance sets the present and lets events that are due join the log. It depends on the time alone, so that the log is
// the same whether a read or a later command finds them due.
func (s *state) advance(now time.Time) {
	if now.After(s.now) {
		s.now = now
	}
	for len(s.delayed) > 0 && !s.delayed[0].due.After(s.now) {
		m := &message{s.delayed[0].event, position(len(s.log) + 1), s.delayed[0].due}
		s.delayed = s.delayed[1:]
		s.log = append(s.log, m)
		s.topics[m.Topic] = append(s.topics[m.Topic], m)
		s.slots[m.slot()] = append(s.slots[m.slot()], m)
	}
}

// message returns the message with this id, or nil.
func (s *state) message(id string) *message {
	n, err := strconv.Atoi(id)
	if err != nil || n < 1 || n > len(s.log) || s.log[n-1].id() != id {
		return nil
	}
	return s.log[n-1]
}

// unread returns the messages of a resource after a position, whether the consumer wants them or not.
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

// wants tells which topics a consumer reads. A topic is read when it matches a pattern of the call, or of any member. Members of
// another version may read other topics, and no member may pass over a message that another one wants, also while that
// one restarts: its session counts until it is forgotten.
func (s *state) wants(info backend.ConsumerInfo) func(topic string) bool {
	patterns := slices.Clone(info.Topics)
	for _, m := range s.sessions {
		patterns = append(patterns, m.spec.Topics[info.Name]...)
	}
	slices.Sort(patterns)
	patterns = slices.Compact(patterns)
	return func(topic string) bool { return backend.MatchTopic(patterns, topic) }
}

// Fetch reads the log.
func (b *Backend) Fetch(ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
	return read(ctx, b, "fetch", func(s *state) (answer []backend.Fetched, err error) {
		wants := s.wants(req.Consumer)
		for _, item := range req.Items {
			from, ok := item.From.(position) // nil is the beginning
			if !ok && item.From != nil {
				return nil, fmt.Errorf("fetch %s: the cursor is a %T; use one of this backend", item.Resource, item.From)
			}
			f := backend.Fetched{Resource: item.Resource, Next: item.From}
			cuts := []backend.Cursor{item.From}
			for _, m := range s.unread(req.Consumer.Per, item.Resource, from) {
				if f.More = len(f.Messages) >= item.Limit; f.More {
					break
				}
				f.Next = m.position
				if req.Consumer.Per == backend.PerTopic || wants(m.Topic) {
					f.Messages = append(f.Messages, m.raw(req.MaxPayload))
					cuts = append(cuts, m.position)
				}
			}
			f.Cut = func(n int) backend.Cursor { return cuts[n] }
			answer = append(answer, f)
		}
		return answer, nil
	})
}

// feed remembers how much of the state it has told of.
type feed struct {
	b         *Backend
	consumers []backend.ConsumerInfo
	told      versions
}

// versions tell whether anything that feeds report has changed.
type versions struct{ messages, ownership, live, replays int }

func (s *state) versions() versions {
	v := versions{messages: len(s.log), ownership: s.ownership, replays: s.replays}
	for _, m := range s.sessions {
		if m.live(s.now) {
			v.live++
		}
	}
	return v
}

// OpenFeed starts watching.
func (b *Backend) OpenFeed(ctx context.Context, consumers []backend.ConsumerInfo) (backend.Feed, error) {
	told, err := read(ctx, b, "open feed", func(s *state) (versions, error) { return s.versions(), nil })
	return &feed{b, consumers, told}, err
}

func (f *feed) Close() {}

// Next looks after each command, and once more after a period, for delayed events and sessions that expire.
func (f *feed) Next(ctx context.Context) (backend.News, error) {
	poll := time.NewTimer(pollPeriod)
	defer poll.Stop()
	for last := false; ; {
		var changed <-chan struct{}
		told := f.told
		news, err := read(ctx, f.b, "feed", func(s *state) (backend.News, error) {
			changed = f.b.changed
			return f.look(s), nil
		})
		if err != nil || last || f.told != told {
			return news, err
		}
		select {
		case <-ctx.Done():
			return news, ctx.Err()
		case <-changed:
		case <-poll.C:
			last = true
		}
	}
}

// look returns what is new since the look before.
func (f *feed) look(s *state) backend.News {
	v := s.versions()
	news := backend.News{Resources: map[string][]string{}, Parked: v.replays != f.told.replays}
	news.Ownership = v.ownership != f.told.ownership || v.live != f.told.live
	topics := map[string]bool{}
	for _, c := range f.consumers {
		wants, slots := s.wants(c), map[string]bool{}
		for _, m := range s.log[f.told.messages:] {
			if wants(m.Topic) {
				topics[m.Topic], slots[strconv.Itoa(m.slot())] = true, true
			}
		}
		if c.Per == backend.PerPartition && len(slots) > 0 {
			news.Resources[c.Name] = slices.Collect(maps.Keys(slots))
		}
	}
	news.Topics = slices.Collect(maps.Keys(topics))
	f.told = v
	return news
}
