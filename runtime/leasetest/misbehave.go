package leasetest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// misbehaviour is one way in which a call goes wrong.
type misbehaviour string

const (
	// hangsDeaf: no effect; it hangs until the fault is over, whatever its context says.
	hangsDeaf misbehaviour = "hangs, deaf to its context"
	// hangs: no effect; it hangs until its context or the fault is over.
	hangs misbehaviour = "hangs"
	// fails: no effect; it fails at once.
	fails misbehaviour = "fails"
	// mute: it takes effect, and hangs until its context or the fault is over.
	mute misbehaviour = "takes effect and hangs"
	// answersLate: it takes effect, and answers well when its caller has given up.
	answersLate misbehaviour = "answers late"
	// doubled: it takes effect twice.
	doubled misbehaviour = "is executed twice"
	// wrong: the answer is not for what was asked.
	wrong misbehaviour = "answers wrongly"
	// flood: a Feed that answers at once, mostly without news.
	flood misbehaviour = "answers without a pause"
)

// fault makes the calls that it hits misbehave while it is on. Processes share it.
type fault struct {
	kind misbehaviour
	hits func(request) bool
	// silence is how long a call without an answer hangs at most, if its context lets it: real
	// time is dear.
	silence time.Duration

	mu     sync.Mutex
	over   chan struct{} // nil while it is off
	struck int
}

func (f *fault) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = make(chan struct{})
}

func (f *fault) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over != nil {
		close(f.over)
		f.over = nil
	}
}

// strike returns nil when r is spared, or else what is closed when the fault is over, and
// how many calls were hit before.
func (f *fault) strike(r request) (over <-chan struct{}, nth int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over == nil || !f.hits(r) {
		return nil, 0
	}
	f.struck++
	return f.over, f.struck - 1
}

func (f *fault) strikes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.struck
}

// await waits for the end of the fault, of ctx or of what the fault allows, and returns the
// error of the call.
func (f *fault) await(ctx context.Context, over <-chan struct{}) error {
	t := time.NewTimer(f.silence)
	defer t.Stop()
	select {
	case <-over:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return errLink
}

// lateness is how long after its caller has given up a late call answers.
const lateness = 2 * time.Second

// misbehaving lets the calls of one process that a fault hits go wrong.
type misbehaving struct {
	process string
	fault   *fault
	tally   *tally
}

// misbehave returns a backend for the process, on be.
func misbehave(be backend.Backend, process string, f *fault) (backend.Backend, *tally) {
	m := &misbehaving{process, f, newTally()}
	return &proxy{be, m.via, m.tally}, m.tally
}

func (m *misbehaving) via(ctx context.Context, r request, call func(context.Context) (any, error)) (any, error) {
	r.process = m.process
	m.tally.add(r.op)
	over, nth := m.fault.strike(r)
	if over == nil {
		return call(ctx)
	}
	unheard := func() { // the caller does not get the answer
		if v, err := call(ctx); err == nil {
			undo(ctx, v)
		}
	}
	switch m.fault.kind {
	case hangsDeaf:
		<-over
	case hangs:
		return nil, m.fault.await(ctx, over)
	case mute:
		unheard()
		return nil, m.fault.await(ctx, over)
	case answersLate:
		v, err := call(ctx)
		if m.fault.await(ctx, over); ctx.Err() != nil {
			time.Sleep(lateness)
		}
		return v, err
	case doubled:
		if r.feed != nil {
			return r.feed.twice(ctx)
		}
		unheard()
		return call(ctx)
	case flood:
		return r.feed.flooded(ctx)
	case wrong:
		if r.told {
			return nil, foreign(r.op, nth)
		}
		v, err := call(ctx)
		if err == nil {
			v = wrongly(ctx, v, nth)
		}
		return v, err
	}
	return nil, errLink
}

// foreign is an error that is about something else than the call. It comes instead of an effect.
func foreign(op string, nth int) error {
	if op == "Tx.Commit" {
		return backend.ErrFenced // ErrRolledBack is a verdict there
	}
	return []error{backend.ErrFenced, backend.ErrRolledBack}[nth%2]
}

// ghost is a consumer and a resource that the call does not mention.
const ghost = "ghost"

// Ways to make a wrong list of a right one.

func none[T any]([]T) []T      { return nil }
func twofold[T any](l []T) []T { return append(slices.Clone(l), l...) }
func blank[T any](l []T) []T   { return make([]T, len(l)) }

func plus[T any](more ...T) func([]T) []T {
	return func(l []T) []T { return append(slices.Clone(l), more...) }
}

func inEach[T any](change func(*T)) func([]T) []T {
	return func(l []T) []T {
		l = slices.Clone(l)
		for i := range l {
			change(&l[i])
		}
		return l
	}
}

// wrongly makes a wrong answer of a right one, each time in another way.
func wrongly(ctx context.Context, answer any, nth int) any {
	switch v := answer.(type) {
	case []backend.Survey:
		count := func(n int) func([]backend.Survey) []backend.Survey {
			return inEach(func(s *backend.Survey) { s.Resources, s.Free = n, n })
		}
		strange := func([]backend.Survey) []backend.Survey {
			return []backend.Survey{{Consumer: ghost, Resources: 9, Free: 9}}
		}
		alone := inEach(func(s *backend.Survey) { s.Members = nil })
		return turn(nth, v, none, strange, twofold, blank, alone, count(1<<40), count(-1<<40))
	case []backend.Grant:
		more := plus(backend.Grant{Ref: backend.Ref{Resource: ghost, Epoch: 1}})
		return turn(nth, v, none, more, twofold, blank, inEach(func(g *backend.Grant) { g.Epoch-- }))
	case []backend.Ref:
		more := plus(backend.Ref{Resource: ghost, Epoch: 1})
		return turn(nth, v, none, more, twofold, blank, inEach(func(r *backend.Ref) { r.Epoch-- }))
	case []backend.Fetched:
		reversed := func(fs []backend.Fetched) []backend.Fetched { slices.Reverse(fs); return fs }
		fewer := func(fs []backend.Fetched) []backend.Fetched { return fs[1:] }
		renamed := inEach(func(f *backend.Fetched) { f.Resource = ghost })
		uncut := inEach(func(f *backend.Fetched) { f.Cut = nil })
		endless := inEach(func(f *backend.Fetched) { f.Next = nil })
		return turn(nth, v, reversed, fewer, twofold, renamed, blank, uncut, endless, none)
	case backend.Parked:
		switch nth % 4 {
		case 0:
			return backend.Parked{}
		case 1:
			return backend.Parked{More: true}
		case 2:
			v.Messages, v.Next = twofold(v.Messages), 0
		case 3:
			v.Messages, v.Next = append(v.Messages, backend.ParkedMessage{Resource: ghost, Last: true}), 0
		}
		return v
	case []string: // resources that are fenced or lost
		return turn(nth, v, plus(ghost, ghost), plus("", ghost, poison))
	case operate.MaintainReport:
		return operate.MaintainReport{DeadLettersDropped: -1, SessionsForgotten: 1 << 40}
	case backend.OnceState:
		return backend.OnceState([]int{-1, 99}[nth%2])
	case backend.News:
		v.Topics = append(v.Topics, "", ghost, ghost)
		v.Resources = map[string][]string{ghost: {ghost}, victim: {ghost, ""}, "": nil}
		v.Ownership, v.Parked = nth%2 == 0, nth%3 == 0
		return v
	}
	undo(ctx, answer) // a session, a feed or a transaction: none
	return nil
}

// turn makes a wrong list in one of the ways, in turn.
func turn[T any](nth int, l []T, ways ...func([]T) []T) []T { return ways[nth%len(ways)](l) }

// tally counts the calls of one process, second by second, and what it was lent and did not
// give back.
type tally struct {
	began time.Time

	mu     sync.Mutex
	calls  map[string]map[int]int // by operation and second
	loaned map[string]int
}

func newTally() *tally {
	return &tally{began: time.Now(), calls: map[string]map[int]int{}, loaned: map[string]int{}}
}

// tooMany is how many calls of one kind within a second can only come from a loop without
// a pause. Each further one takes a while, so that simulated time passes.
const tooMany = 1000

func (t *tally) add(op string) {
	t.mu.Lock()
	if t.calls[op] == nil {
		t.calls[op] = map[int]int{}
	}
	second := int(time.Since(t.began) / time.Second)
	t.calls[op][second]++
	loop := t.calls[op][second] > tooMany
	t.mu.Unlock()
	if loop {
		time.Sleep(100 * time.Millisecond)
	}
}

// besides returns how many calls there were, but for those of one operation.
func (t *tally) besides(op string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for o, by := range t.calls {
		for _, calls := range by {
			if o != op {
				n += calls
			}
		}
	}
	return n
}

// most returns the highest rate of one kind of calls, per second, over so many seconds.
func (t *tally) most(seconds int) (rate int, op string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for o, by := range t.calls {
		for first := range by {
			sum := 0
			for s := first; s < first+seconds; s++ {
				sum += by[s]
			}
			if sum/seconds > rate {
				rate, op = sum/seconds, o
			}
		}
	}
	return rate, op
}

func (t *tally) lend(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loaned[what]++
}

func (t *tally) giveBack(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loaned[what]--
}

// missed is what was not given back, by kind.
func (t *tally) missed() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[string]int{}
	for what, n := range t.loaned {
		if n != 0 {
			out[what] = n
		}
	}
	return out
}
