package lease

import (
	"context"
	"fmt"
)

const (
	fetchItems  = 1000 // resources in one Fetch
	fetchBudget = 4000 // messages in one Fetch
	fetchRun    = 4    // batches of one resource in one Fetch
	readAhead   = 2    // answers of Fetch that a resource may have in store
)

// nextBatch takes the next batch out of what was read of h: a Fetch may bring several.
func (w *work) nextBatch(h *held) Fetched {
	f, n := h.next[0], w.c.spec.Batch
	if len(f.Messages) <= n {
		h.next = h.next[1:]
		return f
	}
	rest := f
	rest.Messages = f.Messages[n:]
	rest.Cut = func(i int) Cursor { return f.Cut(n + i) }
	h.next[0] = rest
	return Fetched{Resource: f.Resource, Messages: f.Messages[:n], Next: f.Cut(n), Cut: f.Cut}
}

// startFetch reads many resources in one round trip.
func (w *work) startFetch() {
	n := min(len(w.fetch), fetchItems)
	req := FetchRequest{Consumer: w.info, MaxPayload: w.c.maxPayload}
	limit := max(min(max(fetchBudget, w.c.spec.Batch)/n, w.c.spec.Batch*fetchRun), 1)
	items := make([]*held, 0, n)
	reads := make([]uint64, 0, n)
	for range n {
		h := pop(&w.fetch)
		h.inFetch = false
		if h.gone || h.giving.Load() || len(h.next) >= readAhead || h.yield {
			continue
		}
		h.reading, h.dirty = true, false
		items = append(items, h)
		reads = append(reads, h.reads)
		req.Items = append(req.Items, FetchItem{Resource: h.Resource, From: h.cursor, Limit: limit})
	}
	if len(items) == 0 {
		return
	}
	w.fetching = true
	w.calls.Go(func() {
		fetched, err := w.fetchRetrying(req)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.fetching = false
		for i, h := range items {
			h.reading = false
			if err != nil || h.reads != reads[i] {
				h.dirty = true
				w.queueFetch(h)
				continue
			}
			w.deliver(h, &fetched[i])
		}
		w.kick()
	})
}

// deliver puts a batch just read in line.
func (w *work) deliver(h *held, f *Fetched) {
	if h.gone || h.giving.Load() {
		return
	}
	moved := f.Next != h.cursor
	h.cursor = f.Next
	h.dirty = h.dirty || f.More
	if len(f.Messages) > 0 {
		h.next = append(h.next, *f)
		w.queueReady(h)
	} else if !h.running && len(h.next) == 0 { // all that was read before is handled
		if !f.More && len(h.lanes) == 0 && h.doubt > 0 {
			h.doubt = 0 // nothing is left that its owners can have crashed over
			if h.busyAt > 0 {
				w.trust(h)
			}
		}
		if moved {
			// Nothing for this consumer so far; remember that, so that the log can forget.
			w.submit(h, Progress{Ref: h.ref, Cursor: f.Next}, counts{})
		}
	}
	w.queueFetch(h)
}

func (w *work) fetchRetrying(req FetchRequest) ([]Fetched, error) {
	var failed backoff
	for {
		fetched, err := call(w.s.ctx, func(ctx context.Context) ([]Fetched, error) { return w.be.Fetch(ctx, req) })
		if err == nil && len(fetched) != len(req.Items) {
			err = fmt.Errorf("the backend answered %d of %d resources", len(fetched), len(req.Items))
		}
		if err == nil {
			return fetched, nil
		}
		failed.pause(w.s.ctx, w.log, "fetch failed", err)
		if w.s.ctx.Err() != nil {
			return nil, err
		}
	}
}
