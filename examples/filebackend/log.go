package filebackend

import (
	"context"
	"hash/fnv"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/backend/rows"
)

const (
	slots      = 64                     // of PerPartition; another number would change the order of keys
	keepsOut   = 7 * 24 * time.Hour     // how long an event's ID dedupes
	pollPeriod = 200 * time.Millisecond // in which feeds find the changes that time alone makes
)

// message is one of the log. Its id is its number, so that a cursor holds the id of the last message passed.
type message struct {
	backend.Event
	Due    time.Time     // when it joined the log, or will
	Number rows.Position `json:"-"` // since then
}

func (m *message) id() string { return strconv.FormatInt(int64(m.Number), 10) }

// Raw copies the message.
func (m *message) Raw(maxPayload int) backend.Raw { return m.Event.Raw(m.id(), m.Due, maxPayload) }

type eventID struct{ topic, id string }

// resource names the one of a consumer that the message belongs to. Messages without a key are spread over all slots.
func (m *message) resource(per backend.Per) string {
	slot := uint32(m.Number)
	if m.Key != "" {
		h := fnv.New32a()
		h.Write([]byte(m.Key))
		slot = h.Sum32()
	}
	return per.ResourceOf(m.Topic, m.Key, int(slot%slots))
}

// Publish appends all events of a call in one step.
func (b *Backend) Publish(ctx context.Context, events []backend.Event) error {
	if err := backend.CheckEvents(events); err != nil {
		return err
	}
	return do(ctx, b, "publish", func(s *store) error {
		here := map[eventID]bool{}
		for _, e := range events {
			id := eventID{e.Topic, e.ID}
			if e.ID != "" && (here[id] || s.At.Before(s.ids[id])) {
				continue
			}
			here[id] = true
			s.line.Messages = append(s.line.Messages, &message{Event: e, Due: e.Due(s.At)})
		}
		return nil
	})
}

// join takes over messages that were just published.
func (s *store) join(messages []*message) {
	for _, m := range messages {
		if m.ID != "" {
			s.ids[eventID{m.Topic, m.ID}] = s.At.Add(keepsOut)
		}
	}
	s.delayed = append(s.delayed, messages...)
	slices.SortStableFunc(s.delayed, func(a, b *message) int { return a.Due.Compare(b.Due) })
	s.advance(s.At) // those without delay join the log at once
}

// advance sets the present and lets events that are due join the log. It depends on the time alone, so that the log is
// the same whether a read or a later line finds them due.
func (s *store) advance(now time.Time) {
	if now.After(s.At) {
		s.At = now
	}
	for len(s.delayed) > 0 && !s.delayed[0].Due.After(s.At) {
		s.log, s.delayed = append(s.log, s.delayed[0]), s.delayed[1:]
		s.log[len(s.log)-1].Number = rows.Position(len(s.log))
	}
}

// Message returns the message with this id, or nil.
func (s *store) Message(id string) rows.Message {
	n, err := strconv.Atoi(id)
	if err != nil || n < 1 || n > len(s.log) || s.log[n-1].id() != id {
		return nil
	}
	return s.log[n-1]
}

// Unread yields the messages of a resource after a position.
func (s *store) Unread(c backend.ConsumerInfo, resource string, from rows.Position) iter.Seq2[rows.Position, rows.Message] {
	return func(yield func(rows.Position, rows.Message) bool) {
		for _, m := range s.log[min(int(from), len(s.log)):] {
			if c.Per != backend.PerCluster && m.resource(c.Per) == resource &&
				(c.Per == backend.PerTopic || backend.MatchTopic(c.Topics, m.Topic)) && !yield(m.Number, m) {
				return
			}
		}
	}
}

// Fetch reads the log.
func (b *Backend) Fetch(ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
	return call(ctx, b, "fetch", func(s *store) ([]backend.Fetched, error) { return s.Fetch(req) })
}

// feed remembers how much of the store it has told of.
type feed struct {
	b         *Backend
	consumers []backend.ConsumerInfo
	told      versions
}

// versions tell whether anything that feeds report has changed.
type versions struct{ messages, ownership, live, replays int }

func (s *store) versions() versions {
	v := versions{messages: len(s.log), ownership: s.Handovers, replays: s.Replays}
	for _, m := range s.Sessions {
		if m.Live(s.At) {
			v.live++
		}
	}
	return v
}

// OpenFeed starts watching.
func (b *Backend) OpenFeed(ctx context.Context, consumers []backend.ConsumerInfo) (backend.Feed, error) {
	return call(ctx, b, "open feed", func(s *store) (backend.Feed, error) { return &feed{b, consumers, s.versions()}, nil })
}

func (f *feed) Close() {}

// Next looks after each change, and once more after a period, for delayed events and sessions that expire.
func (f *feed) Next(ctx context.Context) (backend.News, error) {
	period, cancel := context.WithTimeout(ctx, pollPeriod)
	defer cancel()
	for told := f.told; ; {
		last := period.Err() != nil
		var changed <-chan struct{}
		news, err := call(ctx, f.b, "feed", func(s *store) (backend.News, error) {
			changed = f.b.changed
			return f.look(s), nil
		})
		if err != nil || last || f.told != told {
			return news, err
		}
		select {
		case <-changed:
		case <-period.Done():
		}
	}
}

// look returns what is new since the look before.
func (f *feed) look(s *store) backend.News {
	v, told := s.versions(), f.told
	f.told = v
	news := backend.News{Ownership: v.ownership != told.ownership || v.live != told.live, Parked: v.replays != told.replays}
	for _, c := range f.consumers {
		for _, m := range s.log[told.messages:] {
			if backend.MatchTopic(c.Topics, m.Topic) {
				news.Topics = append(news.Topics, m.Topic)
				if c.Per == backend.PerPartition {
					news.Add(c.Name, m.resource(c.Per))
				}
			}
		}
	}
	news.Compact()
	return news
}
