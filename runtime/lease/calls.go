package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// callTimeout bounds calls of the backend: one over a connection that went silent would
// else wait for as long as the system's network does. The outcome is unknown then, and
// the call is repeated.
const callTimeout = 30 * time.Second

// callGrace is how much longer a call may take to return when its context has ended. One that
// takes longer ignores its context: it is left behind, so that no process hangs with it.
const callGrace = 2 * time.Second

// leftAtMost is how many calls of a caller that are of one kind may be left behind and not yet have
// returned. After that such calls fail at once, until some have.
const leftAtMost = 8

// caller is on whose behalf the backend is called: a consumer's, or the process's for all of its
// consumers. Contexts carry it.
type caller struct {
	left     *leftBehind
	kind     string    // of the calls
	session  *session  // ends when a call says that it is lost; nil when there is none yet
	progress *progress // learns of calls that fail; nil for the process
}

// leftBehind counts calls that were left behind, by kind; it outlives sessions. Calls of one kind that
// never return keep no others from being made. Its zero value is ready to use.
type leftBehind struct {
	mu sync.Mutex
	by map[string]int // without zeros
}

func (l *leftBehind) count(kind string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.by[kind]
}

func (l *leftBehind) add(kind string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by == nil {
		l.by = map[string]int{}
	}
	if l.by[kind] += n; l.by[kind] == 0 {
		delete(l.by, kind)
	}
}

type callerKey struct{}

func callerOf(ctx context.Context) *caller {
	c, _ := ctx.Value(callerKey{}).(*caller)
	return c
}

// of is ctx for calls of a kind: an operation, or one for a resource by itself.
func of(ctx context.Context, kind ...string) context.Context {
	c := callerOf(ctx)
	if c == nil {
		return ctx
	}
	own := *c
	own.kind = strings.Join(kind, "/")
	return context.WithValue(ctx, callerKey{}, &own)
}

// ofAll is of for a call for leases, which is of its resource when it is for one alone.
func ofAll(ctx context.Context, kind string, hs []*holding) (context.Context, []backend.Ref) {
	refs := make([]backend.Ref, len(hs))
	for i, h := range hs {
		refs[i] = h.ref
	}
	if len(hs) == 1 {
		return of(ctx, kind, hs[0].Resource), refs
	}
	return of(ctx, kind), refs
}

// errNothing: what was asked for may have been made, and cannot be given back.
var errNothing = errors.New("lease: call the backend: it gave neither an answer nor an error")

// call makes one bounded call of the backend.
func call[T any](ctx context.Context, f func(ctx context.Context) (T, error)) (T, error) {
	return callFor(ctx, callTimeout, f)
}

// do is call for calls that return an error alone.
func do(ctx context.Context, f func(ctx context.Context) error) error {
	return doFor(ctx, callTimeout, f)
}

func doFor(ctx context.Context, d time.Duration, f func(ctx context.Context) error) error {
	_, err := callFor(ctx, d, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
	return err
}

// callFor is call with a time of its own. It returns when f does, or a grace after its time or
// ctx is over, whatever f does. That the session is lost ends it, whatever was called.
func callFor[T any](ctx context.Context, d time.Duration, f func(ctx context.Context) (T, error)) (T, error) {
	var none T
	c := callerOf(ctx)
	if c != nil {
		if n := c.left.count(c.kind); n >= leftAtMost {
			return none, fmt.Errorf("lease: call the backend: %d such calls before have not returned though their time is over; restart the process if they never do", n)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		a := answer{err: errGoexit}
		defer func() {
			if r := recover(); r != nil {
				a = answer{err: &panicError{r}}
			}
			answered <- a
		}()
		v, err := f(ctx)
		a = answer{v, err}
	}()
	var a answer
	select {
	case a = <-answered:
	case <-ctx.Done():
		grace := time.NewTimer(min(d, callGrace))
		defer grace.Stop()
		select {
		case a = <-answered:
		case <-grace.C:
			if c != nil {
				c.left.add(c.kind, 1)
			}
			go func() {
				late := <-answered
				if late.err == nil {
					discard(late.value)
				}
				if c != nil {
					c.left.add(c.kind, -1)
				}
			}()
			return none, fmt.Errorf("lease: call the backend: it did not return %v after its context ended: %w", min(d, callGrace), context.Cause(ctx))
		}
	}
	if a.err == nil && any(a.value) == nil { // a session, a feed or a transaction that is none
		a.err = errNothing
	}
	if c != nil && c.session != nil && isLost(a.err) {
		c.session.lose("the backend declared the session dead")
	}
	return a.value, a.err
}

// discard gives back what an answer brought that came when no process waited for it any more.
func discard(answer any) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	switch v := answer.(type) {
	case backend.Tx:
		_ = v.Rollback(ctx)
	case backend.Session:
		_ = v.Close(ctx)
	case backend.Feed:
		v.Close()
	}
}
