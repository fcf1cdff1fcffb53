package leasemem

import (
	"fmt"
	"maps"
	"slices"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/backend/rows"
)

// Snapshot is a storage as it was at one moment, see Backend.Snapshot.
type Snapshot struct {
	log    []*message
	lastID int64
	rows   *rows.Rows // without sessions
	items  map[itemName]*item
	outbox outbox
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
	s.Rows, s.ledger.items, s.outbox = again.rows, again.items, again.outbox
	s.At, s.Log = s.now(), s
	for consumer, leases := range s.Leases {
		for _, l := range leases {
			if l.Session != "" {
				s.Drop(consumer, l)
			}
		}
	}
	for f := range s.feeds {
		f.setBack = true
		f.signal()
	}
}

func (s *store) snapshot() *Snapshot {
	all := &Snapshot{log: s.log.all, lastID: s.log.lastID, rows: s.Rows, items: s.ledger.items, outbox: s.outbox}
	return all.copy()
}

// copy leaves out what never changes: messages, parked ones and dead letters are replaced, or
// copied here, and not shared with what changes them.
func (p *Snapshot) copy() *Snapshot {
	out := &Snapshot{
		log: slices.Clone(p.log), lastID: p.lastID, rows: rows.New(),
		items: map[itemName]*item{}, outbox: outbox{ids: maps.Clone(p.outbox.ids), delayed: slices.Clone(p.outbox.delayed)},
	}
	maps.Copy(out.rows.Dead, p.rows.Dead)
	for name, c := range p.rows.Consumers {
		k := *c
		k.Wanted = maps.Clone(c.Wanted)
		out.rows.Consumers[name] = &k
	}
	for consumer, leases := range p.rows.Leases {
		for _, l := range leases {
			out.rows.Save(consumer, copyLease(l))
		}
	}
	for name, it := range p.items {
		k := *it
		k.asked = slices.Clone(it.asked)
		out.items[name] = &k
	}
	return out
}

func copyLease(l *rows.Lease) *rows.Lease {
	k := *l
	k.Parked = nil
	for _, m := range l.Parked {
		aside := *m
		k.Parked = append(k.Parked, &aside)
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
