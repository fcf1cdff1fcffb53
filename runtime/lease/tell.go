package lease

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// Goroutines of their own hand over lines and observations to a consumer's logger and observer:
// one that blocks or panics loses what it would have got, and costs no lease.

const (
	tellAtMost  = 16 << 10        // items that wait to be handed over; those on top are dropped and counted
	tellPatient = 2 * time.Second // how long Run waits at its end for the rest
	tellPause   = time.Millisecond
)

// teller tells things in order, one at a time, in a goroutine that lives while there are some. Those that come within a pause
// after the last ones are handed over at its end, together: waking a processor for each message costs more than the message.
type teller[T any] struct {
	tell   func(T)
	room   func(T) int       // how many may wait, it included
	counts func(T) counts    // what it counts, which is reported though it is dropped
	lossy  func(what losses) // reports dropped ones
	pause  time.Duration     // 0 for those to be handed over though the process ends at once

	mu      sync.Mutex
	waiting []T
	dropped losses
	idle    chan struct{} // closed when all is handed over; nil when none is being handed over
	hurry   chan struct{} // of capacity 1: ends a pause
	flushed bool          // no more pauses until all is handed over
}

// losses are what was dropped: how many, and what these counted.
type losses struct {
	n int
	counts
}

func (t *teller[T]) add(x T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) >= t.room(x) {
		t.dropped.n++
		t.dropped.merge(t.counts(x))
		return
	}
	t.waiting = append(t.waiting, x)
	switch {
	case t.idle == nil:
		t.idle, t.hurry, t.flushed = make(chan struct{}), make(chan struct{}, 1), false
		go t.run()
	case len(t.waiting) == tellAtMost/4:
		hint(t.hurry)
	}
}

func (t *teller[T]) run() { t.tellAll(nil, losses{}) }

// rest lets things gather after some were handed over.
func (t *teller[T]) rest() {
	t.mu.Lock()
	flushed := t.flushed
	t.mu.Unlock()
	if flushed {
		return
	}
	timer := time.NewTimer(t.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.hurry:
	}
}

// tellAll tells a batch, of which dropped things were lost at the end, and all that has come since.
func (t *teller[T]) tellAll(batch []T, dropped losses) {
	n, ended := 0, false
	defer func() {
		if !ended { // whom it told ended this goroutine
			go t.tellAll(batch[min(n, len(batch)):], dropped)
		}
	}()
	for {
		for n < len(batch) {
			n++
			t.tell(batch[n-1])
		}
		if lost := dropped; lost.n > 0 {
			dropped = losses{}
			t.lossy(lost)
		}
		if clear(batch); n > 0 && t.pause > 0 {
			t.rest()
		}
		t.mu.Lock()
		next := t.waiting
		if len(next) == 0 {
			close(t.idle)
			t.idle, ended = nil, true
			t.mu.Unlock()
			return
		}
		t.waiting, batch, n = batch[:0], next, 0
		dropped, t.dropped = t.dropped, losses{} // they came while next filled
		t.mu.Unlock()
	}
}

// flush waits until all is handed over, up to d.
func (t *teller[T]) flush(d time.Duration) {
	t.mu.Lock()
	idle := t.idle
	if idle != nil {
		t.flushed = true
		hint(t.hurry)
	}
	t.mu.Unlock()
	if idle == nil {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
}

// newObserverTeller tells observer, and log of its panics and of what was dropped.
func newObserverTeller(consumer string, observer operate.Observer, log *slog.Logger) *teller[operate.Observation] {
	tell := func(o operate.Observation) {
		returned := false
		defer func() {
			if r := recover(); r != nil {
				log.Error("the observer panicked", "consumer", consumer, "observation", fmt.Sprintf("%T", o), "panic", oneLine(fmt.Sprint(r)))
			} else if !returned {
				log.Error("the observer ended its goroutine", "consumer", consumer, "observation", fmt.Sprintf("%T", o))
			}
		}()
		observer.Observe(o)
		returned = true
	}
	return &teller[operate.Observation]{tell: tell, room: roomFor, counts: countsOf, pause: tellPause, lossy: func(what losses) {
		log.Warn("observations were dropped because the observer is too slow", "consumer", consumer, "dropped", what.n)
		tell(operate.ObservedDropped{Consumer: consumer, Dropped: what.n, Outcomes: what.Outcomes, Kinds: what.kinds})
	}}
}

// roomFor says how many observations may wait: the fewer, the more there are of its type, so that a flood of it leaves room
// for what is rarer.
func roomFor(o operate.Observation) int {
	switch o.(type) {
	case operate.ObservedHandle, operate.ObservedCommit: // for each call
		return tellAtMost * 3 / 4
	case operate.ObservedRetry: // for each call that fails
		return tellAtMost * 7 / 8
	case operate.ObservedDeadLetter: // for each message at most
		return tellAtMost * 15 / 16
	}
	return tellAtMost
}

func countsOf(o operate.Observation) counts {
	c, _ := o.(operate.ObservedCommit)
	return counts{c.Outcomes, c.Kinds}
}

// logLine is a record on its way to a handler.
type logLine struct {
	to     slog.Handler
	record slog.Record
}

// newLogger returns a logger that hands its lines to a teller, which writes them to to.
func newLogger(to *slog.Logger) (*slog.Logger, *teller[logLine]) {
	write := func(l logLine) {
		defer func() { _ = recover() }() // there is no other place to report it
		_ = l.to.Handle(context.Background(), l.record)
	}
	all := func(logLine) int { return tellAtMost }
	t := &teller[logLine]{tell: write, room: all, counts: func(logLine) counts { return counts{} }, lossy: func(what losses) {
		r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines were dropped because the logger is too slow", 0)
		r.AddAttrs(slog.Int("dropped", what.n))
		write(logLine{to.Handler(), r})
	}}
	return slog.New(&logHandler{to: to.Handler(), lines: t}), t
}

// logHandler is a slog.Handler that never waits for the one it writes to.
type logHandler struct {
	to    slog.Handler
	lines *teller[logLine]
}

func (h *logHandler) Enabled(ctx context.Context, l slog.Level) bool { return h.to.Enabled(ctx, l) }

func (h *logHandler) Handle(_ context.Context, r slog.Record) error {
	h.lines.add(logLine{h.to, r.Clone()})
	return nil
}

func (h *logHandler) WithAttrs(as []slog.Attr) slog.Handler {
	return &logHandler{h.to.WithAttrs(as), h.lines}
}

func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{h.to.WithGroup(name), h.lines}
}
