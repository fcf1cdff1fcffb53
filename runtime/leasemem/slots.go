package leasemem

import (
	"hash/fnv"

	"github.com/leasegen/leasegen/runtime/backend"
)

// defaultSlots is how many slots the log has unless WithSlots says otherwise.
const defaultSlots = 256

// WithSlots sets how many slots the log has, at least 1. Default 256. It belongs to New:
// slots must not change when the log has messages.
func WithSlots(n int) Option { return func(b *Backend) { b.store.log.slotCount = max(n, 1) } }

// slotOf is the slot of a message: a hash of its key, or, without a key, its id in turn.
func (l *log) slotOf(m *message) int {
	if m.event.Key == "" {
		return int(m.id % int64(l.slotCount))
	}
	h := fnv.New64a()
	h.Write([]byte(m.event.Key))
	return int(h.Sum64() % uint64(l.slotCount))
}

// resourceOf names the resource of a consumer that a message belongs to.
func (l *log) resourceOf(info backend.ConsumerInfo, m *message) string {
	return info.Per.ResourceOf(m.event.Topic, m.event.Key, l.slotOf(m))
}
