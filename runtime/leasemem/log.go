package leasemem

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/backend/rows"
)

// message is one event of the log. It does not change.
type message struct {
	id          int64
	event       backend.Event
	publishedAt time.Time
}

// cursor is the id of the last message passed.
type cursor = rows.Position

func (m *message) name() string { return strconv.FormatInt(m.id, 10) }

// Raw copies m, without a payload larger than maxPayload.
func (m *message) Raw(maxPayload int) backend.Raw {
	return m.event.Raw(m.name(), m.publishedAt, maxPayload)
}

// Publish appends events to the log.
func (b *Backend) Publish(ctx context.Context, events []backend.Event) error {
	return b.around.Publish(ctx, events, false, b.publish)
}

func (b *Backend) publish(ctx context.Context, events []backend.Event) error {
	if err := backend.CheckEvents(events); err != nil {
		return err
	}
	return do(ctx, b, "Publish", func(s *store, now time.Time) error {
		s.publish(events, now)
		return nil
	})
}

// log holds the messages in the order of their ids: all of them, and the parts that consumers read.
type log struct {
	all    []*message
	topics map[string][]*message
	slots  map[string][]*message
	keys   map[string][]*message

	slotCount int
	lastID    int64
}

// add appends an event, which the log keeps.
func (l *log) add(e backend.Event, now time.Time) *message {
	l.lastID++
	m := &message{id: l.lastID, event: e, publishedAt: now}
	l.all = append(l.all, m)
	l.index(m)
	return m
}

// restore makes messages, in the order of their ids, all that there are.
func (l *log) restore(messages []*message, lastID int64) {
	*l = log{all: messages, topics: map[string][]*message{}, slots: map[string][]*message{}, keys: map[string][]*message{}, slotCount: l.slotCount, lastID: lastID}
	for _, m := range messages {
		l.index(m)
	}
}

func (l *log) index(m *message) {
	for _, by := range []struct {
		part map[string][]*message
		name string
	}{{l.topics, m.event.Topic}, {l.slots, strconv.Itoa(l.slotOf(m))}, {l.keys, m.event.Key}} {
		by.part[by.name] = append(by.part[by.name], m)
	}
}

// drop removes the messages that passed is true for.
func (l *log) drop(passed func(*message) bool) {
	l.all = slices.DeleteFunc(l.all, passed)
	for _, part := range []map[string][]*message{l.topics, l.slots, l.keys} {
		for name, ms := range part {
			if ms = slices.DeleteFunc(ms, passed); len(ms) == 0 {
				delete(part, name)
			} else {
				part[name] = ms
			}
		}
	}
}

// append adds an event to the log, which keeps it.
func (s *store) append(e backend.Event, now time.Time) {
	m := s.log.add(e, now)
	for f := range s.feeds {
		f.published(m)
	}
}

// after returns the part of log, which is ordered by id, that follows c.
func after(log []*message, c cursor) []*message {
	i, _ := slices.BinarySearchFunc(log, int64(c)+1, func(m *message, id int64) int { return cmp.Compare(m.id, id) })
	return log[i:]
}

// Message returns the message of that name, or nil.
func (s *store) Message(name string) rows.Message {
	id, err := strconv.ParseInt(name, 10, 64)
	if err != nil {
		return nil
	}
	if rest := after(s.log.all, cursor(id-1)); len(rest) > 0 && rest[0].id == id {
		return rest[0]
	}
	return nil
}

// pending returns the messages that follow c on a resource. They are still to be matched
// with the consumer's topics.
func (l *log) pending(info backend.ConsumerInfo, resource string, c cursor) []*message {
	switch info.Per {
	case backend.PerTopic:
		return after(l.topics[resource], c)
	case backend.PerPartition:
		return after(l.slots[resource], c)
	case backend.PerStream:
		return after(l.keys[resource], c)
	case backend.PerGroup:
		return after(l.all, c)
	}
	return nil
}

func matches(info backend.ConsumerInfo, m *message) bool {
	return info.Per == backend.PerTopic || backend.MatchTopic(info.Topics, m.event.Topic)
}

// Fetch reads the next messages of each item.
func (b *Backend) Fetch(ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
	return call(ctx, b, "Fetch", func(s *store, now time.Time) ([]backend.Fetched, error) {
		for _, item := range req.Items {
			from, _ := item.From.(cursor)
			if err := s.known(from); err != nil {
				return nil, err
			}
		}
		return s.Rows.Fetch(req)
	})
}

// Unread yields the messages that follow a position on a resource.
func (s *store) Unread(info backend.ConsumerInfo, resource string, from cursor) iter.Seq2[cursor, rows.Message] {
	return func(yield func(cursor, rows.Message) bool) {
		for _, m := range s.log.pending(info, resource, from) {
			if matches(info, m) && !yield(cursor(m.id), m) {
				return
			}
		}
	}
}

// trim drops the messages that consumers match and all of these have passed, and
// returns how many. A message that no consumer matches waits for one.
func (s *store) trim() int {
	passed := func(m *message) bool {
		matched := false
		for _, c := range s.Consumers {
			if !backend.MatchTopic(c.Topics, m.event.Topic) {
				continue
			}
			at := c.Start
			if l := s.Leases[c.Name][s.log.resourceOf(c.ConsumerInfo, m)]; l != nil {
				at = l.Cursor
			}
			if at < cursor(m.id) {
				return false
			}
			matched = true
		}
		return matched
	}
	gone := map[*message]bool{}
	for _, m := range s.log.all {
		if passed(m) {
			gone[m] = true
		}
	}
	s.log.drop(func(m *message) bool { return gone[m] })
	return len(gone)
}
