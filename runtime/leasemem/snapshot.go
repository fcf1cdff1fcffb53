package leasemem

import (
	"fmt"
	"maps"
	"slices"

	"github.com/leasegen/leasegen/runtime/backend"
)

// Snapshot is a storage as it was at one moment, see Backend.Snapshot.
type Snapshot struct {
	log                []*message
	lastID, lastDeadID int64
	consumers          map[string]*consumer
	items              map[itemName]*item
	outbox             outbox
}

// Snapshot copies the storage, so that a test can set it back.
func (b *Backend) Snapshot() *Snapshot {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	return b.store.snapshot()
}

// Restore sets the storage back, as the promotion of a standby does that lacks the writes since:
// messages and progress of later are gone, and their ids are given out again. All sessions are lost, and
// positions that were handed out since are refused. A snapshot can be restored several times.
func (b *Backend) Restore(from *Snapshot) {
	s := b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	again := from.copy()
	s.log.restore(again.log, again.lastID)
	s.lastDeadID = again.lastDeadID
	s.consumers, s.ledger.items, s.outbox = again.consumers, again.items, again.outbox
	s.sessions = map[string]*session{}
	now := s.now()
	for _, c := range s.consumers {
		for _, l := range c.leases {
			if l.owner != "" {
				l.vacate(now)
			}
		}
	}
	for f := range s.feeds {
		f.setBack = true
		f.signal()
	}
}

func (s *store) snapshot() *Snapshot {
	all := &Snapshot{log: s.log.all, lastID: s.log.lastID, lastDeadID: s.lastDeadID, consumers: s.consumers, items: s.ledger.items, outbox: s.outbox}
	return all.copy()
}

// copy leaves out what never changes: messages, parked ones and dead letters are replaced, or
// copied here, and not shared with what changes them.
func (p *Snapshot) copy() *Snapshot {
	out := &Snapshot{
		log: slices.Clone(p.log), lastID: p.lastID, lastDeadID: p.lastDeadID, consumers: map[string]*consumer{},
		items: map[itemName]*item{}, outbox: outbox{ids: maps.Clone(p.outbox.ids), delayed: slices.Clone(p.outbox.delayed)},
	}
	for name, c := range p.consumers {
		k := *c
		k.dead, k.leases = slices.Clone(c.dead), map[string]*leaseState{}
		for resource, l := range c.leases {
			k.leases[resource] = l.copy()
		}
		out.consumers[name] = &k
	}
	for name, it := range p.items {
		k := *it
		k.asked = slices.Clone(it.asked)
		out.items[name] = &k
	}
	return out
}

func (l *leaseState) copy() *leaseState {
	k := *l
	k.parked, k.parkedByID = map[string][]*parked{}, map[string]*parked{}
	for _, lane := range l.parked {
		for _, m := range lane {
			aside := *m
			k.setAside(&aside)
		}
	}
	return &k
}

// known refuses a position from the future: a storage that was set back has not given it.
func (s *store) known(c cursor) error {
	if int64(c) > s.log.lastID {
		return fmt.Errorf("%w: position %d is from the future, the last message is %d", backend.ErrSessionLost, c, s.log.lastID)
	}
	return nil
}
