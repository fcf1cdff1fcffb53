package lease

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/leasegen/leasegen/runtime/backend"
)

// OnUnknown says what becomes of an item whose earlier execution was begun and never told
// how it ended, because its process died or lost its lease in between.
type OnUnknown int

const (
	// OnUnknownRetry executes it again, with the same idempotency key.
	OnUnknownRetry OnUnknown = iota
	// OnUnknownPark makes its message a dead letter, for someone to look whether it was
	// executed. Replayed, it is executed again.
	OnUnknownPark
)

// Once lets a handler made with One or OneTx execute each item once, whatever number of
// messages name it: key returns the item's name, which all replicas of the consumer share.
// A message whose item was executed counts as handled without a call. A message with an
// empty key becomes a dead letter, and so does one with a key of more than 512 bytes.
//
// With OneTx the item is noted in the handler's transaction, so that its effects through
// the transaction happen exactly once, and unknown does not apply. With One it is
// noted before the call, and again after it; when the second note is missing, unknown
// decides. An error that the handler returns is a known failure, which is retried like any
// other; one returned after its context has ended with the lease has no meaning.
//
// An item is not executed by two handlers at once: the message of the second is set aside
// for a moment, which does not count as a failure.
func Once[T any](h Handler, key func(*T) string, unknown OnUnknown) Handler {
	h.once = &once{unknown: unknown}
	if key != nil {
		row := cloner[T]()
		h.once.key = func(r *backend.Raw) (string, error) {
			var m Message[T]
			if err := decode(r, delivery{}, row, &m); err != nil {
				return "", &decodeError{0, err}
			}
			item, err := read(key, &m.Payload)
			if err != nil {
				return "", DeadLetter("the name of the item cannot be read: " + err.Error())
			}
			return item, nil
		}
	}
	return h
}

// once is what a handler made with Once has beside its method.
type once struct {
	key     func(*backend.Raw) (string, error)
	unknown OnUnknown
}

// checkOnce finds what is wrong with handlers made with Once.
func (c *Consumer) checkOnce() error {
	var errs []error
	for i := range c.spec.Handlers {
		h := &c.spec.Handlers[i]
		if h.once == nil {
			continue
		}
		if h.batch || h.call == nil {
			errs = append(errs, fmt.Errorf("lease: consumer %q: Once goes with handlers made by One and OneTx only", c.spec.Name))
		}
		if h.once.key == nil {
			errs = append(errs, fmt.Errorf("lease: consumer %q: Once for kind %q was given no key function", c.spec.Name, h.kind))
		}
		if h.once.unknown < OnUnknownRetry || h.once.unknown > OnUnknownPark {
			errs = append(errs, fmt.Errorf("lease: consumer %q: OnUnknown %d is unknown", c.spec.Name, h.once.unknown))
		}
		if c.backend != nil && c.backend.Capabilities().Ledger == nil {
			errs = append(errs, fmt.Errorf("lease: consumer %q: has handlers made with Once, but the backend %T keeps no ledger", c.spec.Name, c.backend))
		}
	}
	return errors.Join(errs...)
}

const unknownReason = "the outcome of an earlier execution is unknown; see whether it took effect: replay executes the item again, purge lets it be"

// admit prepares the call of a handler made with Once, and reports whether to make it. If
// not, the message is decided, or q has failed.
func (q *sequence) admit(ctx context.Context, hd *Handler) bool {
	m := &q.ms[q.i]
	key, err := q.itemOf(hd, m)
	if err == nil {
		err = checkItem(key)
	}
	if err != nil {
		f := examine(err)
		if o := q.judge(f); o.verdict == dead {
			q.out[q.i] = o
		} else {
			q.fail(ctx, f)
		}
		return false
	}
	q.itemKey = q.r.info.Name + "/" + key
	if hd.tx {
		return q.admitTx(ctx, key)
	}
	if !q.r.c.beginItem(key) {
		q.wait(m)
		return false
	}
	q.item = key
	state, ok := q.startOnce(ctx, key, m.ID)
	switch {
	case !ok:
		q.failed = true
	case q.h.stopped(ctx):
		q.failed = true
		q.r.store.tell(q.h, backend.OnceResult{Key: key}) // known: it was not called
	case state == backend.OnceDone:
		q.out[q.i].verdict = skipped
	case state == backend.OnceBusy:
		q.wait(m)
	case state == backend.OnceUnknown && hd.once.unknown == OnUnknownPark:
		q.out[q.i] = outcome{verdict: dead, attempt: m.Attempt, reason: unknownReason, asked: key}
	default:
		return true
	}
	q.item = ""
	q.r.c.endItem(key)
	return false
}

// ask tells the ledger that a message became a dead letter over an unknown outcome.
func (o *outcome) ask(message string) []backend.OnceResult {
	if o.asked == "" {
		return nil
	}
	return []backend.OnceResult{{Key: o.asked, Asked: message}}
}

// admitTx notes the item in the transaction that the handler joins.
func (q *sequence) admitTx(ctx context.Context, key string) bool {
	first, err := q.joined.Once(ctx, q.r.info.Name, key)
	if err != nil {
		q.conflict = true // with another transaction, or the connection: not the handler's fault
		q.fail(ctx, examine(err))
		return false
	}
	if !first {
		q.out[q.i].verdict = skipped
	}
	return first
}

// itemOf asks the user's key function.
func (q *sequence) itemOf(hd *Handler, m *backend.Raw) (key string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &panicError{r}
			q.r.log.Error("the key function of Once panicked", "resource", q.h.Resource, "kind", m.Kind, "id", m.ID,
				"panic", oneLine(fmt.Sprint(r)), "stack", string(debug.Stack()))
		}
	}()
	return hd.once.key(m)
}

const maxItem = 512 // bytes

func checkItem(key string) error {
	switch {
	case key == "":
		return DeadLetter("the key is empty")
	case len(key) > maxItem:
		return DeadLetter(fmt.Sprintf("the key is %d bytes long, at most %d are allowed", len(key), maxItem))
	case !utf8.ValidString(key) || strings.ContainsRune(key, 0):
		return DeadLetter("the key is not UTF-8 text without NUL")
	}
	return nil
}

// wait sets the message aside because its item is being executed elsewhere.
func (q *sequence) wait(m *backend.Raw) {
	r := q.r.c.spec.Retry
	q.setAside(outcome{verdict: parked, lane: q.lane(q.i), attempt: m.Attempt, after: max(r.wait(3), 50*time.Millisecond),
		reason: "the same item is being executed by another handler"})
}

// startOnce notes the beginning of an execution, until it is known to be noted. It returns
// false when the lease cannot go on.
func (q *sequence) startOnce(ctx context.Context, key, message string) (backend.OnceState, bool) {
	w := q.r
	// How the same lease told of this item before has to be stored first.
	if w.store.untold(q.h, key) && !w.store.flush(q.h) {
		return 0, false
	}
	var failed backoff
	for {
		state, err := call(of(ctx, "once", q.h.Resource), func(ctx context.Context) (backend.OnceState, error) {
			return w.caps.Ledger.StartOnce(ctx, w.s.id, w.info.Name, q.h.ref, key, message)
		})
		if err == nil && (state < backend.OnceNew || state > backend.OnceBusy) {
			err = fmt.Errorf("lease: start an execution for %s: the backend answered with the unknown state %d", w.info.Name, state)
		}
		switch {
		case err == nil:
			return state, true
		case errors.Is(err, backend.ErrFenced):
			w.own.fenced(q.h)
			return 0, false
		case isLost(err):
			w.s.lose("the backend declared the session dead")
			return 0, false
		case q.h.stopped(ctx):
			w.store.tell(q.h, backend.OnceResult{Key: key})
			return 0, false
		}
		failed.pause(ctx, w.log, "noting the start of an execution failed", err)
	}
}

// endOnce tells how the call that admit allowed has ended. It has no effect after others.
func (q *sequence) endOnce(ctx context.Context, err error) {
	key := q.item
	if key == "" {
		return
	}
	q.item = ""
	if err == nil || ctx.Err() == nil {
		q.r.store.tell(q.h, backend.OnceResult{Key: key, Done: err == nil})
	}
	q.r.c.endItem(key)
}

// beginItem and endItem bracket the execution of an item within this process, across
// sessions. A handler that ignores its cancelled context keeps its item from being executed.
func (c *Consumer) beginItem(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, busy := c.items[key]; busy {
		return false
	}
	c.items[key] = struct{}{}
	return true
}

func (c *Consumer) endItem(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.items, key)
}
