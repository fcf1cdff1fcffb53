package lease

import (
	"context"
	"slices"

	"github.com/leasegen/leasegen/runtime/backend"
)

// pass is what one turn of a resource works on: a batch read from its source, or messages of
// its parked lanes that are due.
type pass struct {
	ms     []backend.Raw
	out    []outcome
	read   []backend.Fetched       // of a batch: where it was read, and what a crew took in addition
	starts []int                   // of these in ms
	parked []backend.ParkedMessage // what ms was made of; nil for a batch
	behind map[string]struct{}
}

func freshPass(f backend.Fetched) *pass {
	p := &pass{}
	p.add(f)
	return p
}

// add appends a batch that was read next.
func (p *pass) add(f backend.Fetched) {
	p.read, p.starts = append(p.read, f), append(p.starts, len(p.ms))
	if p.ms == nil {
		p.ms = f.Messages[:len(f.Messages):len(f.Messages)] // others may follow in that array
	} else {
		p.ms = append(p.ms, f.Messages...)
	}
	p.out = append(p.out, make([]outcome, len(f.Messages))...)
}

// cursor is the position before ms[n], or after all.
func (p *pass) cursor(n int) backend.Cursor {
	last := len(p.read) - 1
	if n == len(p.ms) {
		return p.read[last].Next
	}
	for p.starts[last] > n {
		last--
	}
	return p.read[last].Cut(n - p.starts[last])
}

func parkedPass(parked []backend.ParkedMessage) *pass {
	p := &pass{ms: make([]backend.Raw, len(parked)), out: make([]outcome, len(parked)), parked: parked, behind: map[string]struct{}{}}
	for i := range parked {
		p.ms[i] = parked[i].Raw
	}
	return p
}

// lane is the queue in which message i waits when it is set aside.
func (p *pass) lane(o Order, i int) string {
	if p.parked != nil {
		return p.parked[i].Lane
	}
	return o.lane(&p.ms[i])
}

// turn is one resource at work on a pass, in one goroutine. No other goroutine works on the resource then: the turnFields
// of h need no lock.
type turn struct {
	r *runner
	h *holding
	p *pass
}

// process handles a pass of one resource and hands over its progress. Consecutive messages
// whose handlers take a transaction share one; the others share a commit.
func (t *turn) process(ctx context.Context) {
	done := 0
	for done < len(t.p.out) && !t.h.stopped(ctx) {
		end, tx := t.r.c.segment(t.p.ms, done)
		ok := true
		switch {
		case t.h.careful():
			ok = t.alone(ctx, done, tx)
		case tx:
			ok = t.inTx(ctx, done, end)
		default:
			t.runLanes(ctx, done, end) // perhaps beyond end
			t.settle(done, prefix(t.p.out))
		}
		upto := prefix(t.p.out)
		if !ok || upto == done {
			break
		}
		if t.p.parked == nil {
			t.h.doubt = max(t.h.doubt-(upto-done), 0)
		}
		if done = upto; t.p.parked == nil && t.r.c.spec.Retry.Order == OrderBlock && len(t.h.lanes) > 0 {
			break
		}
	}
	if t.p.parked != nil {
		return // what is left is read again
	}
	if done < len(t.p.out) {
		t.rewind(t.p.cursor(done))
		return
	}
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	t.r.trust(t.h)
	t.h.dirty = t.h.dirty || t.h.doubt > 0 // there may be no other message to get past
}

// segment returns the end of the run of messages from i on whose handlers all take a
// transaction, or all do not. Messages without a handler go with any.
func (c *Consumer) segment(ms []backend.Raw, i int) (end int, tx bool) {
	if !c.hasTx {
		return len(ms), false
	}
	known := false
	for end = i; end < len(ms); end++ {
		hd := c.handlerFor(ms[end].Kind)
		if hd == nil {
			continue
		}
		if known && hd.tx != tx {
			break
		}
		known, tx = true, hd.tx
	}
	return end, tx
}

// prefix counts the messages decided before the first that is not.
func prefix(out []outcome) int {
	n := slices.IndexFunc(out, func(o outcome) bool { return o.verdict == undecided })
	if n < 0 {
		return len(out)
	}
	return n
}

// rewind makes the messages from cursor on be read again, if the lease is still held.
func (t *turn) rewind(cursor backend.Cursor) {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	t.h.cursor, t.h.next, t.h.dirty, t.h.batchNext = cursor, nil, true, false
	t.h.reads.voided++
}

func (t *turn) sequence(from, to int) *sequence {
	return &sequence{turn: t, ms: t.p.ms[from:to], out: t.p.out[from:to], from: from, only: t.h.only}
}
