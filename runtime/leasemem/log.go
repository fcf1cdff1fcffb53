package leasemem

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// message is one event of the log. It does not change.
type message struct {
	id          int64
	event       backend.Event
	publishedAt time.Time
}

// cursor is the id of the last message passed.
type cursor int64

func (m *message) name() string { return strconv.FormatInt(m.id, 10) }

// raw copies m, without a payload larger than maxPayload.
func (m *message) raw(maxPayload int) backend.Raw {
	r := backend.Raw{
		ID: m.name(), Topic: m.event.Topic, Key: m.event.Key, Kind: m.event.Kind,
		Headers: maps.Clone(m.event.Headers), PublishedAt: m.publishedAt, Size: len(m.event.Payload),
	}
	if r.Size <= maxPayload {
		r.Payload = bytes.Clone(m.event.Payload)
	}
	return r
}

// Publish appends events to the log.
func (b *Backend) Publish(ctx context.Context, events []backend.Event) error {
	if err := backend.CheckEvents(events); err != nil {
		return err
	}
	return do(ctx, b, "Publish", func(s *store, now time.Time) error {
		s.publish(events, now)
		return nil
	})
}

// append adds an event to the log, which keeps it.
func (s *store) append(e backend.Event, now time.Time) {
	s.lastID++
	m := &message{id: s.lastID, event: e, publishedAt: now}
	s.log = append(s.log, m)
	s.index(m)
	for f := range s.feeds {
		f.published(m)
	}
}

// after returns the part of log, which is ordered by id, that follows c.
func after(log []*message, c cursor) []*message {
	i, _ := slices.BinarySearchFunc(log, int64(c)+1, func(m *message, id int64) int { return cmp.Compare(m.id, id) })
	return log[i:]
}

// find returns the message of that name, or nil.
func (s *store) find(name string) *message {
	id, err := strconv.ParseInt(name, 10, 64)
	if err != nil {
		return nil
	}
	if rest := after(s.log, cursor(id-1)); len(rest) > 0 && rest[0].id == id {
		return rest[0]
	}
	return nil
}

// pending returns the messages that follow c on a resource. They are still to be matched
// with the consumer's topics.
func (s *store) pending(info backend.ConsumerInfo, resource string, c cursor) []*message {
	switch info.Per {
	case backend.PerTopic:
		return after(s.by.topics[resource], c)
	case backend.PerPartition:
		return after(s.by.slots[resource], c)
	case backend.PerStream:
		return after(s.by.keys[resource], c)
	case backend.PerGroup:
		return after(s.log, c)
	}
	return nil
}

func matches(info backend.ConsumerInfo, m *message) bool {
	return info.Per == backend.PerTopic || backend.MatchTopic(info.Topics, m.event.Topic)
}

// Fetch reads the next messages of each item.
func (b *Backend) Fetch(ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
	return call(ctx, b, "Fetch", func(s *store, now time.Time) ([]backend.Fetched, error) {
		out := make([]backend.Fetched, len(req.Items))
		info := s.reading(req.Consumer)
		for i, item := range req.Items {
			from, _ := item.From.(cursor)
			if err := s.known(from); err != nil {
				return nil, err
			}
			out[i] = s.fetch(info, item, from, req.MaxPayload)
		}
		return out, nil
	})
}

func (s *store) fetch(info backend.ConsumerInfo, item backend.FetchItem, from cursor, maxPayload int) backend.Fetched {
	f := backend.Fetched{Resource: item.Resource}
	cuts := []cursor{from}
	for _, m := range s.pending(info, item.Resource, from) {
		if !matches(info, m) {
			continue
		}
		if len(f.Messages) >= item.Limit {
			f.More = true
			break
		}
		f.Messages = append(f.Messages, m.raw(maxPayload))
		cuts = append(cuts, cursor(m.id))
	}
	f.Next = cuts[len(cuts)-1]
	f.Cut = func(n int) backend.Cursor { return cuts[n] }
	return f
}

// trim drops the messages that consumers match and all of these have passed, and
// returns how many. A message that no consumer matches waits for one.
func (s *store) trim() int {
	passed := func(m *message) bool {
		matched := false
		for _, c := range s.consumers {
			if !backend.MatchTopic(c.info.Topics, m.event.Topic) {
				continue
			}
			at := c.start
			if l := c.leases[s.resourceOf(c.info, m)]; l != nil {
				at = l.cursor
			}
			if at < cursor(m.id) {
				return false
			}
			matched = true
		}
		return matched
	}
	before := len(s.log)
	gone := map[*message]bool{}
	for _, m := range s.log {
		gone[m] = passed(m)
	}
	s.log = slices.DeleteFunc(s.log, func(m *message) bool { return gone[m] })
	s.by.drop(func(m *message) bool { return gone[m] })
	return before - len(s.log)
}
