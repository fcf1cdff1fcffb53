package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

const (
	fetchItems  = 250  // resources in one Fetch: of each enough messages that few are read and stored more often than needed
	fetchBudget = 4000 // messages in one Fetch
	fetchRun    = 4    // batches of one resource in one Fetch
	readAhead   = 2    // answers of Fetch that a resource may have in store
)

// nextBatch takes the next batch out of what was read of h: a Fetch may bring several.
func (r *runner) nextBatch(h *holding) backend.Fetched {
	f, n := h.next[0], r.c.spec.Batch
	if len(f.Messages) <= n {
		h.next = h.next[1:]
		return f
	}
	rest := f
	rest.Messages = f.Messages[n:]
	rest.Cut = func(i int) backend.Cursor { return f.Cut(n + i) }
	h.next[0] = rest
	return backend.Fetched{Resource: f.Resource, Messages: f.Messages[:n], Next: f.Cut(n), Cut: f.Cut}
}

// readState is guarded by runner.mu.
type readState struct {
	queue    []*holding // may have news and no batch ready
	alone    []*holding // the same, to be read by themselves
	calls    slots
	failures int // of reads of several, in a row
}

// resourceReads is the same of one resource.
type resourceReads struct {
	queued, busy bool
	voided       uint64 // raised when a read that is under way has become void
	strain       strain
}

// stepRead starts the reads that may be started, and returns when to look again.
func (r *runner) stepRead() time.Duration {
	q := &r.reads
	for len(q.alone) > 0 && q.calls.freeAlone() {
		h := pop(&q.alone)
		r.startRead(r.readable(nil, h))
	}
	for len(q.queue) > 0 && len(r.ready) < r.c.concurrency {
		if wait := q.calls.free(time.Now()); wait != 0 {
			if wait < 0 {
				break
			}
			return wait
		}
		r.startRead(together(&q.queue, fetchItems, func(h *holding) int { return h.reads.strain.among }, r.readable))
	}
	return time.Hour
}

// readable appends h, which was queued, if it still wants to be read.
func (r *runner) readable(items []*holding, h *holding) []*holding {
	h.reads.queued = false
	if h.leaving() || len(h.next) >= readAhead {
		return items
	}
	return append(items, h)
}

// startRead reads resources in one round trip.
func (r *runner) startRead(items []*holding) {
	if len(items) == 0 {
		return
	}
	alone := len(items) == 1 && items[0].reads.strain.alone()
	limit := max(min(max(fetchBudget, r.c.spec.Batch)/len(items), r.c.spec.Batch*fetchRun), 1)
	within := strainTime
	req := backend.FetchRequest{Consumer: r.info, MaxPayload: r.c.maxPayload}
	voids := make([]uint64, len(items))
	for i, h := range items {
		h.reads.busy, h.dirty = true, false
		voids[i] = h.reads.voided
		req.Items = append(req.Items, backend.FetchItem{Resource: h.Resource, From: h.cursor, Limit: h.reads.strain.limit(limit)})
		within = max(within, h.reads.strain.timeout())
	}
	r.reads.calls.begin(alone)
	r.calls.Go(func() {
		began := time.Now()
		ctx := of(r.s.ctx, "fetch")
		if alone {
			ctx = of(ctx, "fetch", items[0].Resource)
		}
		fetched, err := callFor(ctx, within, func(ctx context.Context) ([]backend.Fetched, error) { return r.be.Fetch(ctx, req) })
		if err == nil {
			err = checkFetched(&req, fetched)
		}
		if isLost(err) {
			r.s.lose("the backend declared the session dead")
		}
		r.mu.Lock()
		if err == nil {
			r.course.step(reading)
			r.reads.failures = 0
			for i, h := range items {
				h.reads.strain.passed(time.Since(began))
				h.reads.busy = false
				if h.reads.voided != voids[i] {
					h.dirty = true
					r.queueRead(h)
					continue
				}
				r.deliver(h, &fetched[i])
			}
		} else {
			r.course.failed("fetch failed", err)
			for _, h := range items {
				h.dirty = true
				if wait := h.reads.strain.failed(len(items), time.Since(began) >= within); wait > 0 {
					r.restRead(h, wait, err)
				}
			}
			if len(items) > 1 {
				failures := r.reads.failures
				r.reads.failures++
				r.mu.Unlock()
				endure(r.s.ctx, r.log, "fetch failed, trying again with fewer resources at once", failures, err)
				r.mu.Lock()
			}
			for _, h := range items {
				h.reads.busy = false
				r.queueRead(h)
			}
		}
		r.reads.calls.end(alone)
		r.mu.Unlock()
		r.kick()
	})
}

// restRead keeps a resource from being read for a while that fails by itself. The caller holds
// r.mu.
func (r *runner) restRead(h *holding, wait time.Duration, err error) {
	s := &h.reads.strain
	if s.failures%10 == 1 && r.s.ctx.Err() == nil {
		r.log.Warn("reading a resource failed, trying it again by itself", "resource", h.Resource, "failures", s.failures, "after", wait, "error", err)
	}
	s.resting = true
	r.calls.Go(func() {
		pause(r.s.ctx, wait)
		r.mu.Lock()
		s.resting = false
		r.queueRead(h)
		r.mu.Unlock()
		r.kick()
	})
}

// checkFetched refuses answers to other questions than were asked.
func checkFetched(req *backend.FetchRequest, fetched []backend.Fetched) error {
	if len(fetched) != len(req.Items) {
		return fmt.Errorf("lease: fetch messages of %s: the backend answered for %d of %d resources", req.Consumer.Name, len(fetched), len(req.Items))
	}
	for i := range fetched {
		f, asked := &fetched[i], &req.Items[i]
		switch {
		case f.Resource != asked.Resource:
			return fmt.Errorf("lease: fetch messages of %s: the backend answered for %q where %q was asked for", req.Consumer.Name, f.Resource, asked.Resource)
		case f.Next == nil && asked.From != nil, len(f.Messages) > 0 && f.Cut == nil:
			return fmt.Errorf("lease: fetch messages of %s: the backend gave no cursor for %q", req.Consumer.Name, f.Resource)
		}
	}
	return nil
}

// emptyPause spaces out reads that bring no message though the backend says that there is more.
const emptyPause = 20 * time.Millisecond

// deliver puts a batch just read in line.
func (r *runner) deliver(h *holding, f *backend.Fetched) {
	if h.leaving() {
		return
	}
	moved := f.Next != h.cursor
	h.cursor = f.Next
	h.dirty = h.dirty || f.More
	if f.More && len(f.Messages) == 0 && !moved {
		h.reads.strain.resting = true
		r.calls.Go(func() {
			pause(r.s.ctx, emptyPause)
			r.mu.Lock()
			h.reads.strain.resting = false
			r.queueRead(h)
			r.mu.Unlock()
			r.kick()
		})
	}
	if len(f.Messages) > 0 {
		h.next = append(h.next, *f)
		r.queueReady(h)
		hint(h.more)
	} else if !h.running && len(h.next) == 0 { // all that was read before is handled
		if !f.More && len(h.lanes) == 0 && h.doubt > 0 {
			h.doubt = 0 // no message is left that its owners can have crashed over
			if h.busyAt > 0 {
				r.trust(h)
			}
		}
		if moved {
			// No message for this consumer so far; remember that, so that the log can forget.
			r.store.submit(h, backend.Progress{Ref: h.ref, Cursor: f.Next}, counts{})
		}
	}
	r.queueRead(h)
}
