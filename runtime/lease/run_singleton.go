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
func (r *runner) startRuns() time.Duration {
	wait := time.Hour
	for _, h := range r.at {
		if h.running || h.leaving() {
			continue
		}
		if d := time.Until(h.runAt); d > 0 {
			wait = min(wait, d)
			continue
		}
		r.start(h, func(ctx context.Context) { r.runOnce(ctx, h) })
	}
	return wait
}

// runOnce calls the Run handler. One that returns while its lease is held is called again
// after the backoff of its retry policy; a stream's is done with nil, and is given up when
// it keeps failing.
func (r *runner) runOnce(ctx context.Context, h *holding) {
	leave := r.s.gate.enterRun(ctx, aloneTime)
	if leave == nil {
		return
	}
	defer leave()
	began := time.Now()
	ended := make(chan error, 1)
	go func() {
		err := errGoexit
		defer func() {
			if p := recover(); p != nil {
				err = &panicError{p}
				r.log.Error("handler panicked", "resource", h.Resource, "panic", oneLine(fmt.Sprint(p)), "stack", string(debug.Stack()))
			}
			ended <- err
		}()
		err = r.callRun(ctx, h)
	}()
	err := <-ended
	r.c.observe(operate.ObservedHandle{Consumer: h.Consumer, Resource: h.Resource, Epoch: h.Epoch, Duration: time.Since(began), Err: err})
	if h.stopped(ctx) {
		return
	}
	if time.Since(began) > r.c.spec.Retry.Cap {
		h.runFailures = 0
	}
	if h.suspicion > 0 {
		h.suspicion = 0
		r.store.submit(h, backend.Progress{Ref: h.ref, Trust: true}, counts{})
	}
	if r.info.Announced && err == nil {
		r.own.retireRun(h)
		return
	}
	h.runFailures++
	if r.info.Announced && h.runFailures >= r.c.spec.Retry.Max {
		r.log.Error("Run failed too often; the stream is left alone for a while", "resource", h.Resource,
			"failures", h.runFailures, "for", r.c.spec.Retry.Cap, "error", err)
		r.own.announced.avoid(h.Resource)
		r.own.retireRun(h)
		return
	}
	again := r.c.spec.Retry.wait(h.runFailures)
	r.log.Warn("Run returned while its lease is held; calling it again", "resource", h.Resource, "after", again, "error", err)
	r.mu.Lock()
	defer r.mu.Unlock()
	h.runAt = time.Now().Add(again)
}

func (r *runner) callRun(ctx context.Context, h *holding) error {
	handler := func(ctx context.Context) error { return r.c.spec.Handlers[0].run(ctx, h.Lease) }
	if r.c.around == nil {
		return handler(ctx)
	}
	w := &wrapped{by: r.c.around, call: Call{Consumer: h.Consumer, Resource: h.Resource, Epoch: h.Epoch}}
	return w.make(ctx, handler)
}

// stopRun asks a Run handler to return because its lease is given away. Handlers of
// messages finish their call instead.
func (r *runner) stopRun(h *holding) {
	if r.runs() {
		r.cancel(h, ErrHandover)
	}
}
