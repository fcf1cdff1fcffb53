package lease

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// startRuns calls the Run handler of every lease that has none running, and returns
// when to look again.
func (w *work) startRuns() time.Duration {
	wait := time.Hour
	for _, h := range w.held {
		if h.running || h.giving.Load() {
			continue
		}
		if d := time.Until(h.runAt); d > 0 {
			wait = min(wait, d)
			continue
		}
		w.start(h, func(ctx context.Context) { w.runOnce(ctx, h) })
	}
	return wait
}

// runOnce calls the Run handler. One that returns while its lease is held is called again
// after the backoff of its retry policy; a stream's is done with nil, and is given up when
// it keeps failing.
func (w *work) runOnce(ctx context.Context, h *held) {
	leave := w.s.gate.enterRun(ctx, aloneTime)
	if leave == nil {
		return
	}
	defer leave()
	began := time.Now()
	ended := make(chan error, 1)
	go func() {
		err := errGoexit
		defer func() {
			if r := recover(); r != nil {
				err = &panicError{r}
				w.log.Error("handler panicked", "resource", h.Resource, "panic", oneLine(fmt.Sprint(r)), "stack", string(debug.Stack()))
			}
			ended <- err
		}()
		err = w.c.spec.Handlers[0].run(ctx, h.Lease)
	}()
	err := <-ended
	w.c.observe(operate.ObservedHandle{Consumer: h.Consumer, Resource: h.Resource, Epoch: h.Epoch, Duration: time.Since(began), Err: err})
	if h.stopped(ctx) {
		return
	}
	if time.Since(began) > w.c.spec.Retry.Cap {
		h.runFailures = 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.suspicion > 0 {
		h.suspicion = 0
		w.store.submit(h, backend.Progress{Ref: h.ref, Trust: true}, counts{})
	}
	if w.info.Announced && err == nil {
		w.retire(h)
		return
	}
	h.runFailures++
	if w.info.Announced && h.runFailures >= w.c.spec.Retry.Max {
		w.log.Error("Run failed too often; the stream is left alone for a while", "resource", h.Resource,
			"failures", h.runFailures, "for", w.c.spec.Retry.Cap, "error", err)
		w.avoid(h)
		return
	}
	again := w.c.spec.Retry.wait(h.runFailures)
	w.log.Warn("Run returned while its lease is held; calling it again", "resource", h.Resource, "after", again, "error", err)
	h.runAt = time.Now().Add(again)
}

// stopRun asks a Run handler to return because its lease is given away. Handlers of
// messages finish their call instead.
func (w *work) stopRun(h *held) {
	if w.runs() && h.cancel != nil {
		h.cancel(ErrHandover)
	}
}
