package lease

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// Leases that expire one by one (LockRow) are believed in one by one: each from before the
// request that granted or last renewed it, as the session is by its heartbeats.

// renewer renews the leases of one consumer with LockRow. Its lock may be taken with owner.mu held.
type renewer struct {
	*scope
	own *owner

	mu sync.Mutex // guards the renewFields of the leases
}

// believedFor is how much longer h may be believed in, apart from the session.
func (n *renewer) believedFor(h *holding) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.c.spec.TTL - n.c.spec.Margin - h.anchored.since()
}

// watchRows ends belief in leases in time, whatever becomes of the calls that renew them.
func (n *renewer) watchRows() {
	wait := n.c.spec.Margin/2 + time.Millisecond
	for next := wait; pause(n.s.ctx, next); {
		var late []*holding
		next = wait
		n.own.each(func(h *holding) {
			if left := n.believedFor(h); left <= 0 {
				late = append(late, h)
			} else {
				next = min(next, max(left, time.Millisecond))
			}
		})
		for _, h := range late {
			n.own.expire(h)
		}
	}
}

// renewRows renews all leases of the consumer in one call at a third of the TTL. After a failure
// it tries again soon, so that several tries fit before belief ends, and apart: one lease that
// cannot be renewed does not cost the others.
func (n *renewer) renewRows() {
	interval := n.c.spec.TTL / 3
	for wait := jitter(interval); pause(n.s.ctx, wait); {
		var failed atomic.Int64
		var calls sync.WaitGroup
		parts := n.renewable()
		for _, hs := range parts {
			calls.Go(func() {
				if !n.renew(hs, max(interval/2, 100*time.Millisecond)) {
					failed.Add(1)
				}
			})
		}
		calls.Wait()
		if wait = jitter(interval); failed.Load() > 0 {
			wait = jitter(interval / 6)
		}
		if len(parts) > 1 && int(failed.Load()) == len(parts) {
			n.renewTogether() // it is not one lease that is at fault
		}
	}
}

// renew renews leases in one call, and reports whether it succeeded.
func (n *renewer) renew(hs []*holding, within time.Duration) bool {
	ctx, refs := ofAll(n.s.ctx, "renew", hs)
	sent := now()
	lost, err := callFor(ctx, within, func(ctx context.Context) ([]string, error) {
		return n.caps.Rows.Renew(ctx, n.s.id, n.info, refs)
	})
	n.c.observe(operate.ObservedRenew{Consumer: n.info.Name, Session: n.s.id, Leases: len(refs), Lost: len(lost), Duration: time.Since(sent.t), Err: err})
	n.mu.Lock()
	for _, h := range hs {
		if err == nil {
			h.renewAmong = 0
		} else {
			h.renewAmong = max(len(hs)/8, 1)
		}
	}
	n.mu.Unlock()
	switch {
	case err == nil:
		n.renewed(hs, lost, sent)
	case isLost(err):
		n.s.lose("the backend declared the session dead")
	case n.s.ctx.Err() == nil:
		n.log.Warn("renewing leases failed, trying again with fewer at once", "leases", len(refs), "error", err)
	}
	return err == nil
}

func (n *renewer) renewTogether() {
	n.own.each(func(h *holding) {
		n.mu.Lock()
		defer n.mu.Unlock()
		h.renewAmong = 0
	})
}

// renewable returns the leases to renew, all but the ones whose release is under way, in the parts
// in which they are to be renewed.
func (n *renewer) renewable() (parts [][]*holding) {
	byAmong := map[int][]*holding{} // leases that may be asked for with so many; 0: with any number
	n.own.each(func(h *holding) {
		if !h.is(leaseReleasing) {
			n.mu.Lock()
			defer n.mu.Unlock()
			byAmong[h.renewAmong] = append(byAmong[h.renewAmong], h)
		}
	})
	for among, hs := range byAmong {
		if among == 0 {
			among = len(hs)
		}
		parts = slices.AppendSeq(parts, slices.Chunk(hs, among))
	}
	return parts
}

func (n *renewer) renewed(hs []*holding, lost []string, sent instant) {
	gone := make(map[string]bool, len(lost))
	for _, r := range lost {
		gone[r] = true
	}
	for _, h := range hs {
		switch {
		case !gone[h.Resource]:
			n.mu.Lock()
			h.anchored = sent
			n.mu.Unlock()
		case !h.is(leaseReleasing):
			n.own.lose(h, "it expired, or another owner has it")
		}
	}
}
