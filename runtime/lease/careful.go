package lease

import (
	"context"
	"fmt"
)

// suspicionLimit is after how many crashed owners in a row a resource is handled one
// message at a time, each marked before.
const suspicionLimit = 2

// doubtBatches is how many batches the stored cursor may have been behind a crashed
// owner: one being handled and one not yet stored.
const doubtBatches = 2

// careful says to handle messages alone. It is asked by whoever runs h.
func (h *held) careful() bool { return h.doubt > 0 && h.suspicion >= suspicionLimit }

// alone handles one message of a resource whose owners keep crashing: it is marked
// durably first, and given up on when its mark has outlived several owners.
func (w *work) alone(ctx context.Context, h *held, f Fetched, i int, out []outcome, tx bool) bool {
	m := &f.Messages[i]
	ok := true
	switch {
	case w.killed(h, m.ID):
		out[i] = w.killer(h, m)
		w.settleFresh(h, f, out, i, i+1)
	case !w.mark(h, m.ID):
		return false
	case tx:
		ok = w.inTx(ctx, h, f, i, i+1, out)
	default:
		w.lanes(ctx, h, f.Messages[i:i+1], out[i:i+1])
		w.settleFresh(h, f, out, i, i+prefix(out[i:i+1]))
	}
	if out[i].verdict == undecided {
		w.unmark(h)
		return false
	}
	return w.flush(h) && ok
}

// mark stores that the message id is about to be handled alone.
func (w *work) mark(h *held, id string) bool {
	w.handOver(h, Progress{Ref: h.ref, Mark: id}, counts{})
	return w.flush(h)
}

// unmark takes the mark back from a message that was interrupted: its owner, who tells,
// has not crashed over it.
func (w *work) unmark(h *held) { w.handOver(h, Progress{Ref: h.ref}, counts{}) }

// markLimit is how many owners may crash over one marked message.
const markLimit = 2

func (w *work) killed(h *held, id string) bool { return h.marked == id && h.markCount >= markLimit }

func (w *work) killer(h *held, m *Raw) outcome {
	return outcome{verdict: dead, attempt: m.Attempt + h.markCount,
		reason: fmt.Sprintf("the process died %d times while handling this message", h.markCount)}
}

// trust clears the suspicion on a resource that has got past what its crashed owners
// may have stumbled over. The caller holds w.mu.
func (w *work) trust(h *held) {
	if h.suspicion == 0 || h.doubt > 0 {
		return
	}
	h.suspicion = 0
	w.submit(h, Progress{Ref: h.ref, Trust: true}, counts{})
}
