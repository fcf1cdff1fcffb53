package leasemem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/backend/rows"
)

// ledger is what consumers have executed, and what transactions are noting.
type ledger struct {
	items  map[itemName]*item
	noting map[itemName]*transaction
}

type itemName struct{ consumer, key string }

// item is the execution of one item: done, or begun and not told how it ended.
type item struct {
	done bool
	at   time.Time // begun, or done

	session string // that began it; empty when its end is unknown
	ref     backend.Ref
	before  backend.OnceState // the answer to its beginner
	asked   []string          // messages that became dead letters because its end is unknown
}

// note returns the entry of an item, a new one if need be.
func (l *ledger) note(name itemName) *item {
	it := l.items[name]
	if it == nil {
		if l.items == nil {
			l.items = map[itemName]*item{}
		}
		it = &item{}
		l.items[name] = it
	}
	return it
}

// StartOnce notes that an execution is about to begin.
func (b *Backend) StartOnce(ctx context.Context, session, consumer string, ref backend.Ref, key, message string) (backend.OnceState, error) {
	return call(ctx, b, "StartOnce", func(s *store, now time.Time) (backend.OnceState, error) {
		if s.Held(session, consumer, ref) == nil {
			return 0, backend.ErrFenced
		}
		name := itemName{consumer, key}
		it, known := s.ledger.items[name]
		switch {
		case !known:
			it = s.ledger.note(name)
			it.before = backend.OnceNew
		case it.done:
			return backend.OnceDone, nil
		case it.session == session && it.ref == ref:
			return it.before, nil // the reply was lost
		case s.executing(consumer, it, now):
			return backend.OnceBusy, nil
		case slices.Contains(it.asked, message):
			it.asked = slices.DeleteFunc(it.asked, func(id string) bool { return id == message })
			it.before = backend.OnceNew
		default:
			it.before = backend.OnceUnknown
		}
		it.session, it.ref, it.at = session, ref, now
		return it.before, nil
	})
}

// executing reports whether the lease under which it was begun has not ended.
func (s *store) executing(consumer string, it *item, now time.Time) bool {
	l := s.Held(it.session, consumer, it.ref)
	if l == nil {
		return false
	}
	free, _ := s.Free(l, s.Consumers[consumer].Grace)
	return !free
}

// endItems stores how executions that l's owner began have ended.
func (s *store) endItems(consumer string, l *rows.Lease, results []backend.OnceResult, now time.Time) {
	for _, r := range results {
		name := itemName{consumer, r.Key}
		it := s.ledger.items[name]
		if it == nil || it.done || it.session != l.Session || it.ref != (backend.Ref{Resource: l.Resource, Epoch: l.Epoch}) {
			continue
		}
		switch {
		case r.Done:
			*it = item{done: true, at: now}
		case r.Asked != "":
			it.session, it.asked = "", append(it.asked, r.Asked)
		default:
			delete(s.ledger.items, name)
		}
	}
}

// forgetItems drops the items of a consumer that were executed, or given up on, before
// keep, and returns how many.
func (s *store) forgetItems(info backend.ConsumerInfo, now time.Time) (n int) {
	if info.OnceKeep <= 0 {
		return 0
	}
	for name, it := range s.ledger.items {
		if name.consumer == info.Name && now.Sub(it.at) > info.OnceKeep && (it.done || !s.executing(info.Name, it, now)) {
			delete(s.ledger.items, name)
			n++
		}
	}
	return n
}

// Once notes an item in the transaction.
func (t *transaction) Once(ctx context.Context, consumer, key string) (bool, error) {
	name := itemName{consumer, key}
	for {
		var other *transaction
		first, err := call(ctx, t.backend, "TxOnce", func(s *store, now time.Time) (bool, error) {
			if t.ended {
				return false, errors.New("leasemem: the transaction has ended")
			}
			t.waits = itemName{}
			if it := s.ledger.items[name]; it != nil && it.done {
				return false, nil
			}
			switch other = s.ledger.noting[name]; {
			case other == t:
				other = nil
				return false, nil
			case other != nil:
				for o := other; o != nil; o = s.ledger.noting[o.waits] {
					if o == t {
						return false, fmt.Errorf("leasemem: transactions of %s wait for each other's items", consumer)
					}
				}
				t.waits = name
				return false, nil
			}
			if s.ledger.noting == nil {
				s.ledger.noting = map[itemName]*transaction{}
			}
			s.ledger.noting[name] = t
			t.noted = append(t.noted, name)
			return true, nil
		})
		if err != nil || other == nil {
			return first, err
		}
		select {
		case <-other.over:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// end frees what the transaction was noting, and keeps it when it is committed.
func (t *transaction) end(s *store, commit bool, now time.Time) {
	if t.ended {
		return
	}
	t.ended = true
	for _, name := range t.noted {
		delete(s.ledger.noting, name)
		if commit {
			*s.ledger.note(name) = item{done: true, at: now}
		}
	}
	close(t.over)
}
