package leasemem

import (
	"hash/fnv"
	"slices"
	"strconv"

	"github.com/leasegen/leasegen/runtime/backend"
)

// defaultSlots is how many slots the log has unless WithSlots says otherwise.
const defaultSlots = 256

// WithSlots sets how many slots the log has, at least 1. Default 256. It belongs to New:
// slots must not change when the log has messages.
func WithSlots(n int) Option { return func(b *Backend) { b.store.slots = max(n, 1) } }

// slotOf is the slot of a message: a hash of its key, or, without a key, its id in turn.
func (s *store) slotOf(m *message) int {
	if m.event.Key == "" {
		return int(m.id % int64(s.slots))
	}
	h := fnv.New64a()
	h.Write([]byte(m.event.Key))
	return int(h.Sum64() % uint64(s.slots))
}

// resourceOf names the resource of a consumer that a message belongs to.
func (s *store) resourceOf(info backend.ConsumerInfo, m *message) string {
	switch info.Per {
	case backend.PerTopic:
		return m.event.Topic
	case backend.PerPartition:
		return strconv.Itoa(s.slotOf(m))
	case backend.PerStream:
		return m.event.Key
	}
	return backend.Whole
}

// logs are the parts of the log by what they are read by, each in the order of ids.
type logs struct {
	topics map[string][]*message
	slots  map[string][]*message
	keys   map[string][]*message
}

func newLogs() logs {
	return logs{topics: map[string][]*message{}, slots: map[string][]*message{}, keys: map[string][]*message{}}
}

func (s *store) index(m *message) {
	for _, by := range []struct {
		part map[string][]*message
		name string
	}{{s.by.topics, m.event.Topic}, {s.by.slots, strconv.Itoa(s.slotOf(m))}, {s.by.keys, m.event.Key}} {
		by.part[by.name] = append(by.part[by.name], m)
	}
}

// drop removes the messages that passed is true for.
func (l *logs) drop(passed func(*message) bool) {
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
