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
func (w *work) doubtful() int {
	batches := 1 // in a pass
	if w.grows() {
		batches = crewReach
	}
	return 2 * batches * w.c.spec.Batch
}

// careful says to handle messages alone. It is asked by whoever runs h.
func (h *held) careful() bool { return h.doubt > 0 && h.suspicion >= suspicionLimit }

// alone handles one message of a resource whose owners keep crashing.
func (w *work) alone(ctx context.Context, h *held, p *pass, i int, tx bool) bool {
	m := &p.ms[i]
	if w.killed(h, m.ID) {
		p.out[i] = w.killer(h, m)
		w.settle(h, p, i, i+1)
		return w.store.flush(h)
	}
	end, ok := w.mark(ctx, h, m.ID)
	if !ok {
		return false
	}
	defer end()
	if tx {
		ok = w.inTx(ctx, h, p, i, i+1)
	} else {
		w.lanes(ctx, h, p, i, i+1)
		w.settle(h, p, i, i+prefix(p.out[i:i+1]))
	}
	if p.out[i].verdict == undecided {
		w.unmark(h)
		return false
	}
	return w.store.flush(h) && ok
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
func (w *work) mark(ctx context.Context, h *held, id string) (end func(), ok bool) {
	end = func() {}
	suspect := h.marked == id && h.markCount > 0
	if suspect {
		open := w.s.gate.alone(ctx, aloneWait)
		if open == nil {
			return end, !h.stopped(ctx)
		}
		end = open
	}
	w.store.submit(h, backend.Progress{Ref: h.ref, Mark: id}, counts{})
	if !w.store.flush(h) {
		end()
		return end, false
	}
	if !suspect {
		return end, true
	}
	h.only = true
	open, late := end, w.store.nextSeq(h)
	timer := time.AfterFunc(aloneTime, func() {
		open()
		w.acquit(h, late)
	})
	return func() {
		h.only = false
		timer.Stop()
		open()
	}, true
}

// acquit takes the mark back from a message that is still being handled. Its Seq was drawn when
// the message was marked, so it cannot overtake what the handler's end stores.
func (w *work) acquit(h *held, seq int64) {
	w.log.Info("a message that was suspected of killing its process runs on; it is no longer", "resource", h.Resource, "after", aloneTime)
	err := do(of(w.s.ctx, "commit", h.Resource), func(ctx context.Context) error {
		_, err := w.be.Commit(ctx, w.s.id, w.info.Name, []backend.Progress{{Ref: h.ref, Seq: seq}})
		return err
	})
	if err != nil && w.s.ctx.Err() == nil {
		w.log.Warn("taking back the mark of a message failed; a crash will be blamed on it", "resource", h.Resource, "error", err)
	}
}

// unmark takes the mark back from a message that was interrupted: its owner, who tells,
// has not crashed over it.
func (w *work) unmark(h *held) { w.store.submit(h, backend.Progress{Ref: h.ref}, counts{}) }

// markLimit is how many owners may crash over one marked message.
const markLimit = 3

func (w *work) killed(h *held, id string) bool { return h.marked == id && h.markCount >= markLimit }

func (w *work) killer(h *held, m *backend.Raw) outcome {
	return outcome{verdict: dead, attempt: m.Attempt + h.markCount,
		reason: fmt.Sprintf("the process died %d times while handling this message, the last time with nothing else running", h.markCount)}
}

// trust clears the suspicion on a resource that has got past what its crashed owners
// may have stumbled over. The caller holds w.mu.
func (w *work) trust(h *held) {
	if h.suspicion == 0 || h.doubt > 0 {
		return
	}
	h.suspicion = 0
	w.store.submit(h, backend.Progress{Ref: h.ref, Trust: true}, counts{})
}
