package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// A message that kills its process is found in three steps. After suspicionLimit crashed owners
// in a row a resource is handled one message at a time, each marked durably before. Resources
// do so side by side; so a crash leaves the marks of a few messages, of which one is the
// killer. The next owner tries each of these alone in its group, with its mark renewed. The
// message whose mark outlives two such owners becomes a dead letter.

// suspicionLimit is after how many crashed owners in a row a resource is handled one
// message at a time, each marked before.
const suspicionLimit = 2

// doubtful is how many messages the stored cursor may have been behind a crashed owner: one pass
// that was being handled and one not yet stored.
func (c *Consumer) doubtful() int {
	batches := 1 // in a pass
	if c.grows() {
		batches = crewReach
	}
	return 2 * batches * c.spec.Batch
}

// careful says to handle messages alone.
func (h *holding) careful() bool { return h.doubt > 0 && h.suspicion >= suspicionLimit }

// alone handles one message of a resource whose owners keep crashing.
func (t *turn) alone(ctx context.Context, i int, tx bool) bool {
	m := &t.p.ms[i]
	if t.h.killed(m.ID) {
		t.p.out[i] = t.h.killer(m)
		t.settle(i, i+1)
		return t.r.store.flush(t.h)
	}
	end, ok := t.mark(ctx, m.ID)
	if !ok {
		return false
	}
	defer end()
	if tx {
		ok = t.inTx(ctx, i, i+1)
	} else {
		t.runLanes(ctx, i, i+1)
		t.settle(i, i+prefix(t.p.out[i:i+1]))
	}
	if t.p.out[i].verdict == undecided {
		t.unmark()
		return false
	}
	return t.r.store.flush(t.h) && ok
}

const (
	// aloneWait is how long a suspect waits for the other calls of its process to end. When they
	// do not, it runs beside them, and its mark stays as it is.
	aloneWait = time.Second
	// aloneTime is how long a suspect has the process to itself. One that runs on after that is
	// no longer suspected: what kills its process does so soon.
	aloneTime = 10 * time.Second
)

// mark stores that the message id is about to be handled, by itself if an owner has crashed
// while it was marked. The function that it returns ends that.
func (t *turn) mark(ctx context.Context, id string) (end func(), ok bool) {
	end = func() {}
	suspect := t.h.marked == id && t.h.markCount > 0
	if suspect {
		open := t.r.s.gate.alone(ctx, aloneWait)
		if open == nil {
			return end, !t.h.stopped(ctx)
		}
		end = open
	}
	t.r.store.submit(t.h, backend.Progress{Ref: t.h.ref, Mark: id}, counts{})
	if !t.r.store.flush(t.h) {
		end()
		return end, false
	}
	if !suspect {
		return end, true
	}
	t.h.only = true
	open, late := end, t.r.store.nextSeq(t.h)
	timer := time.AfterFunc(aloneTime, func() {
		open()
		t.acquit(late)
	})
	return func() {
		t.h.only = false
		timer.Stop()
		open()
	}, true
}

// acquit takes the mark back from a message that is still being handled. Its Seq was drawn when
// the message was marked, so it cannot overtake what the handler's end stores.
func (t *turn) acquit(seq int64) {
	t.r.log.Info("a message that was suspected of killing its process runs on; it is no longer", "resource", t.h.Resource, "after", aloneTime)
	err := do(of(t.r.s.ctx, "commit", t.h.Resource), func(ctx context.Context) error {
		_, err := t.r.be.Commit(ctx, t.r.s.id, t.r.info.Name, []backend.Progress{{Ref: t.h.ref, Seq: seq}})
		return err
	})
	if err != nil && t.r.s.ctx.Err() == nil {
		t.r.log.Warn("taking back the mark of a message failed; a crash will be blamed on it", "resource", t.h.Resource, "error", err)
	}
}

// unmark takes the mark back from a message that was interrupted: its owner, who tells,
// has not crashed over it.
func (t *turn) unmark() { t.r.store.submit(t.h, backend.Progress{Ref: t.h.ref}, counts{}) }

// markLimit is how many owners may crash over one marked message.
const markLimit = 3

func (h *holding) killed(id string) bool { return h.marked == id && h.markCount >= markLimit }

func (h *holding) killer(m *backend.Raw) outcome {
	return outcome{verdict: dead, attempt: m.Attempt + h.markCount,
		reason: fmt.Sprintf("the process died %d times while handling this message, the last time alone", h.markCount)}
}

// trust clears the suspicion on a resource that has got past what its crashed owners
// may have stumbled over. The caller holds r.mu.
func (r *runner) trust(h *holding) {
	if h.suspicion == 0 || h.doubt > 0 {
		return
	}
	h.suspicion = 0
	r.store.submit(h, backend.Progress{Ref: h.ref, Trust: true}, counts{})
}
