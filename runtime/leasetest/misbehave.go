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

// request is one call of a backend, and whom it is about.
type request struct {
	op        string
	process   string
	consumers []string
	resources []string
}

func (r request) names(consumer, resource string) bool {
	return slices.Contains(r.consumers, consumer) && slices.Contains(r.resources, resource)
}

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

// misbehaving is the backend of one process: a fault may hit its calls, all of them are
// counted, and what it hands out is missed when it is not given back.
type misbehaving struct {
	be      backend.Backend
	process string
	fault   *fault
	tally   *tally
}

// misbehave returns a backend for the process, on be.
func misbehave(be backend.Backend, process string, f *fault) (backend.Backend, *tally) {
	m := &misbehaving{be, process, f, newTally()}
	return m, m.tally
}

// answer is how one call is made: well, and for some in ways of their own.
type answer[T any] struct {
	well func(ctx context.Context) (T, error)
	// wrongly turns an answer into a wrong one. Nil: a wrong answer is a foreign error.
	wrongly func(v T, nth int) T
	// again is a call that is executed twice. Nil: well and well again.
	again func(ctx context.Context) (T, error)
	// flooding is a call that does not wait.
	flooding func(ctx context.Context) (T, error)
	// discard undoes a call whose answer nobody gets. Nil: there is nothing to undo.
	discard func(T)
}

func through[T any](ctx context.Context, m *misbehaving, r request, a answer[T]) (T, error) {
	var none T
	r.process = m.process
	m.tally.add(r.op)
	over, nth := m.fault.strike(r)
	if over == nil {
		return a.well(ctx)
	}
	well := func() (T, error) { // for an answer that nobody gets
		v, err := a.well(ctx)
		if err == nil && a.discard != nil {
			a.discard(v)
		}
		return v, err
	}
	switch m.fault.kind {
	case hangsDeaf:
		<-over
	case hangs:
		return none, m.fault.await(ctx, over)
	case mute:
		well()
		return none, m.fault.await(ctx, over)
	case answersLate:
		v, err := a.well(ctx)
		if m.fault.await(ctx, over); ctx.Err() != nil {
			time.Sleep(lateness)
		}
		return v, err
	case doubled:
		if a.again != nil {
			return a.again(ctx)
		}
		well()
		return a.well(ctx)
	case flood:
		return a.flooding(ctx)
	case wrong:
		if a.wrongly == nil {
			return none, foreign(r.op, nth)
		}
		v, err := a.well(ctx)
		if err == nil {
			v = a.wrongly(v, nth)
		}
		return v, err
	}
	return none, errLink
}

// foreign is an error that is about something else than the call. It comes instead of an effect.
func foreign(op string, nth int) error {
	if op == "Tx.Commit" {
		return backend.ErrFenced // ErrRolledBack is a verdict there
	}
	return []error{backend.ErrFenced, backend.ErrRolledBack}[nth%2]
}

// told makes a call that returns nothing but an error.
func told(ctx context.Context, m *misbehaving, r request, call func(ctx context.Context) error) error {
	_, err := through(ctx, m, r, answer[struct{}]{
		well: func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) },
	})
	return err
}

// about is a request about one consumer.
func about(op, consumer string, resources ...string) request {
	return request{op: op, consumers: []string{consumer}, resources: resources}
}

func aboutAll(op string, infos []backend.ConsumerInfo) request {
	r := request{op: op}
	for _, c := range infos {
		r.consumers = append(r.consumers, c.Name)
	}
	return r
}

func named(refs []backend.Ref) []string {
	out := make([]string, len(refs))
	for i, r := range refs {
		out[i] = r.Resource
	}
	return out
}

// turn returns one of the ways in turn.
func turn[T any](nth int, ways ...func() T) T { return ways[nth%len(ways)]() }

// ghost is a consumer and a resource that nobody asked for.
const ghost = "ghost"

func (m *misbehaving) Publish(ctx context.Context, es []backend.Event) error {
	return m.be.Publish(ctx, es) // the runtime does not call it
}

func (m *misbehaving) Check(ctx context.Context, infos []backend.ConsumerInfo) error {
	return told(ctx, m, aboutAll("Check", infos), func(ctx context.Context) error { return m.be.Check(ctx, infos) })
}

func (m *misbehaving) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	return through(ctx, m, request{op: "OpenSession", consumers: spec.Consumers}, answer[backend.Session]{
		well: func(ctx context.Context) (backend.Session, error) {
			s, err := m.be.OpenSession(ctx, spec)
			if err != nil {
				return nil, err
			}
			return &misbehavingSession{m, s, spec.Consumers}, nil
		},
		wrongly: func(backend.Session, int) backend.Session { return nil },
	})
}

func (m *misbehaving) Register(ctx context.Context, c backend.ConsumerInfo, resources []string) error {
	return told(ctx, m, about("Register", c.Name, resources...), func(ctx context.Context) error { return m.be.Register(ctx, c, resources) })
}

func (m *misbehaving) Survey(ctx context.Context, consumers []string) ([]backend.Survey, error) {
	return through(ctx, m, request{op: "Survey", consumers: consumers}, answer[[]backend.Survey]{
		well: func(ctx context.Context) ([]backend.Survey, error) { return m.be.Survey(ctx, consumers) },
		wrongly: func(s []backend.Survey, nth int) []backend.Survey {
			each := func(change func(*backend.Survey)) []backend.Survey {
				out := slices.Clone(s)
				for i := range out {
					change(&out[i])
				}
				return out
			}
			return turn(nth,
				func() []backend.Survey { return nil },
				func() []backend.Survey { return []backend.Survey{{Consumer: ghost, Resources: 9, Free: 9}} },
				func() []backend.Survey { return append(slices.Clone(s), s...) },
				func() []backend.Survey { return make([]backend.Survey, len(s)) },
				func() []backend.Survey { return each(func(x *backend.Survey) { x.Members = nil }) },
				func() []backend.Survey { return each(func(x *backend.Survey) { x.Resources, x.Free = 1<<40, 1<<40 }) },
				func() []backend.Survey { return each(func(x *backend.Survey) { x.Resources, x.Free = -1<<40, -1<<40 }) },
			)
		},
	})
}

func (m *misbehaving) Acquire(ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
	return through(ctx, m, about("Acquire", req.Consumer.Name), answer[[]backend.Grant]{
		well: func(ctx context.Context) ([]backend.Grant, error) { return m.be.Acquire(ctx, req) },
		wrongly: func(gs []backend.Grant, nth int) []backend.Grant {
			return turn(nth,
				func() []backend.Grant { return nil },
				func() []backend.Grant { return append(gs, backend.Grant{Ref: backend.Ref{Resource: ghost, Epoch: 1}}) },
				func() []backend.Grant { return append(slices.Clone(gs), gs...) },
				func() []backend.Grant { return make([]backend.Grant, len(gs)) },
				func() []backend.Grant {
					out := slices.Clone(gs)
					for i := range out {
						out[i].Epoch--
					}
					return out
				},
			)
		},
	})
}

func (m *misbehaving) Release(ctx context.Context, session, consumer string, refs []backend.Ref) error {
	return told(ctx, m, about("Release", consumer, named(refs)...), func(ctx context.Context) error { return m.be.Release(ctx, session, consumer, refs) })
}

func (m *misbehaving) Owned(ctx context.Context, session, consumer string) ([]backend.Ref, error) {
	return through(ctx, m, about("Owned", consumer), answer[[]backend.Ref]{
		well: func(ctx context.Context) ([]backend.Ref, error) { return m.be.Owned(ctx, session, consumer) },
		wrongly: func(refs []backend.Ref, nth int) []backend.Ref {
			return turn(nth,
				func() []backend.Ref { return nil },
				func() []backend.Ref { return append(slices.Clone(refs), backend.Ref{Resource: ghost, Epoch: 1}) },
				func() []backend.Ref { return append(slices.Clone(refs), refs...) },
				func() []backend.Ref { return make([]backend.Ref, len(refs)) },
				func() []backend.Ref {
					out := slices.Clone(refs)
					for i := range out {
						out[i].Epoch--
					}
					return out
				},
			)
		},
	})
}

func (m *misbehaving) OpenFeed(ctx context.Context, infos []backend.ConsumerInfo) (backend.Feed, error) {
	return through(ctx, m, aboutAll("OpenFeed", infos), answer[backend.Feed]{
		well: func(ctx context.Context) (backend.Feed, error) {
			f, err := m.be.OpenFeed(ctx, infos)
			if err != nil {
				return nil, err
			}
			m.tally.lend("feeds")
			return &misbehavingFeed{m: m, f: f, infos: infos}, nil
		},
		wrongly: func(f backend.Feed, _ int) backend.Feed {
			f.Close()
			return nil
		},
		discard: func(f backend.Feed) { f.Close() },
	})
}

func (m *misbehaving) Fetch(ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
	r := about("Fetch", req.Consumer.Name)
	for _, it := range req.Items {
		r.resources = append(r.resources, it.Resource)
	}
	return through(ctx, m, r, answer[[]backend.Fetched]{
		well: func(ctx context.Context) ([]backend.Fetched, error) { return m.be.Fetch(ctx, req) },
		wrongly: func(fs []backend.Fetched, nth int) []backend.Fetched {
			each := func(change func(*backend.Fetched)) []backend.Fetched {
				for i := range fs {
					change(&fs[i])
				}
				return fs
			}
			return turn(nth,
				func() []backend.Fetched { slices.Reverse(fs); return fs },
				func() []backend.Fetched { return fs[1:] },
				func() []backend.Fetched { return append(fs, fs...) },
				func() []backend.Fetched { return each(func(f *backend.Fetched) { f.Resource = ghost }) },
				func() []backend.Fetched { return make([]backend.Fetched, len(fs)) },
				func() []backend.Fetched { return each(func(f *backend.Fetched) { f.Cut = nil }) },
				func() []backend.Fetched { return each(func(f *backend.Fetched) { f.Next = nil }) },
				func() []backend.Fetched { return nil },
			)
		},
	})
}

func (m *misbehaving) FetchParked(ctx context.Context, req backend.ParkedRequest) (backend.Parked, error) {
	r := about("FetchParked", req.Consumer.Name, req.Resources...)
	if len(req.Resources) == 0 && !slices.Contains(req.Exclude, poison) { // it is for all
		r.resources = []string{poison}
	}
	return through(ctx, m, r, answer[backend.Parked]{
		well: func(ctx context.Context) (backend.Parked, error) { return m.be.FetchParked(ctx, req) },
		wrongly: func(p backend.Parked, nth int) backend.Parked {
			return turn(nth,
				func() backend.Parked { return backend.Parked{} },
				func() backend.Parked { return backend.Parked{More: true} },
				func() backend.Parked {
					p.Messages, p.Next = append(slices.Clone(p.Messages), p.Messages...), 0
					return p
				},
				func() backend.Parked {
					p.Messages, p.Next = append(p.Messages, backend.ParkedMessage{Resource: ghost, Last: true}), 0
					return p
				},
			)
		},
	})
}

func (m *misbehaving) Commit(ctx context.Context, session, consumer string, ps []backend.Progress) ([]string, error) {
	r := about("Commit", consumer)
	for _, p := range ps {
		r.resources = append(r.resources, p.Resource)
	}
	return through(ctx, m, r, answer[[]string]{
		well: func(ctx context.Context) ([]string, error) { return m.be.Commit(ctx, session, consumer, ps) },
		wrongly: func(fenced []string, nth int) []string {
			return turn(nth,
				func() []string { return append(fenced, ghost, ghost) },
				func() []string { return append(fenced, "", ghost, poison) },
			)
		},
	})
}

func (m *misbehaving) Maintain(ctx context.Context, infos []backend.ConsumerInfo) (operate.MaintainReport, error) {
	return through(ctx, m, aboutAll("Maintain", infos), answer[operate.MaintainReport]{
		well: func(ctx context.Context) (operate.MaintainReport, error) { return m.be.Maintain(ctx, infos) },
		wrongly: func(operate.MaintainReport, int) operate.MaintainReport {
			return operate.MaintainReport{DeadLettersDropped: -1, SessionsForgotten: 1 << 40}
		},
	})
}

// Retire, Renew and StartOnce are there whatever the backend has: what needs them is skipped
// without.

func (m *misbehaving) Retire(ctx context.Context, session, consumer string, refs []backend.Ref) error {
	return told(ctx, m, about("Retire", consumer, named(refs)...), func(ctx context.Context) error {
		return m.be.Capabilities().Streams.Retire(ctx, session, consumer, refs)
	})
}

// Capabilities are those of the backend, misbehaving.
func (m *misbehaving) Capabilities() backend.Capabilities { return standIn(m, m.be.Capabilities()) }

func (m *misbehaving) Renew(ctx context.Context, session string, c backend.ConsumerInfo, refs []backend.Ref) ([]string, error) {
	return through(ctx, m, about("Renew", c.Name, named(refs)...), answer[[]string]{
		well: func(ctx context.Context) ([]string, error) {
			return m.be.Capabilities().Rows.Renew(ctx, session, c, refs)
		},
		wrongly: func(lost []string, nth int) []string {
			return turn(nth,
				func() []string { return append(lost, ghost, ghost) },
				func() []string { return append(lost, "", ghost, poison) },
			)
		},
	})
}

func (m *misbehaving) StartOnce(ctx context.Context, session, consumer string, ref backend.Ref, key, message string) (backend.OnceState, error) {
	return through(ctx, m, about("StartOnce", consumer, ref.Resource), answer[backend.OnceState]{
		well: func(ctx context.Context) (backend.OnceState, error) {
			return m.be.Capabilities().Ledger.StartOnce(ctx, session, consumer, ref, key, message)
		},
		wrongly: func(_ backend.OnceState, nth int) backend.OnceState { return backend.OnceState([]int{-1, 99}[nth%2]) },
	})
}

type misbehavingSession struct {
	m         *misbehaving
	s         backend.Session
	consumers []string
}

func (s *misbehavingSession) Alarm() <-chan struct{} { return nil }

func (s *misbehavingSession) Heartbeat(ctx context.Context) error {
	return told(ctx, s.m, request{op: "Heartbeat", consumers: s.consumers}, s.s.Heartbeat)
}

func (s *misbehavingSession) Close(ctx context.Context) error {
	return told(ctx, s.m, request{op: "Close", consumers: s.consumers}, s.s.Close)
}

type misbehavingFeed struct {
	m     *misbehaving
	f     backend.Feed
	infos []backend.ConsumerInfo
	again *backend.News // to be told twice
	once  sync.Once
}

func (f *misbehavingFeed) Next(ctx context.Context) (backend.News, error) {
	return through(ctx, f.m, aboutAll("Feed.Next", f.infos), answer[backend.News]{
		well: f.f.Next,
		wrongly: func(n backend.News, nth int) backend.News {
			n.Topics = append(n.Topics, "", ghost, ghost)
			n.Resources = map[string][]string{ghost: {ghost}, victim: {ghost, ""}, "": nil}
			n.Ownership, n.Parked = nth%2 == 0, nth%3 == 0
			return n
		},
		again: func(ctx context.Context) (backend.News, error) { // news that was taken is not there again
			if n := f.again; n != nil {
				f.again = nil
				return *n, nil
			}
			n, err := f.f.Next(ctx)
			if err == nil {
				f.again = &n
			}
			return n, err
		},
		flooding: func(ctx context.Context) (backend.News, error) {
			soon, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			n, err := f.f.Next(soon)
			if err != nil && ctx.Err() == nil {
				return backend.News{}, nil
			}
			return n, err
		},
	})
}

func (f *misbehavingFeed) Close() {
	f.once.Do(func() { f.m.tally.giveBack("feeds") })
	f.f.Close()
}

func (m *misbehaving) Begin(ctx context.Context) (backend.Tx, error) {
	return through(ctx, m, request{op: "Begin"}, answer[backend.Tx]{
		well: func(ctx context.Context) (backend.Tx, error) {
			tx, err := m.be.Capabilities().Tx.Begin(ctx)
			if err != nil {
				return nil, err
			}
			m.tally.lend("transactions")
			return &misbehavingTx{m: m, tx: tx}, nil
		},
		wrongly: func(tx backend.Tx, _ int) backend.Tx {
			tx.Rollback(context.WithoutCancel(ctx))
			return nil
		},
		discard: func(tx backend.Tx) { tx.Rollback(context.WithoutCancel(ctx)) },
	})
}

type misbehavingTx struct {
	m    *misbehaving
	tx   backend.Tx
	once sync.Once
	sent bool
	err  error
}

func (t *misbehavingTx) Handle() any { return t.tx.Handle() }

func (t *misbehavingTx) Intact() error { return t.tx.Intact() }

func (t *misbehavingTx) Lost() bool { return t.tx.Lost() }

func (t *misbehavingTx) Once(ctx context.Context, consumer, key string) (bool, error) {
	return t.tx.Once(ctx, consumer, key)
}

// Commit is sent to the server once: what is executed twice finds no transaction there.
func (t *misbehavingTx) Commit(ctx context.Context, session, consumer string, p backend.Progress) error {
	t.end()
	err := told(ctx, t.m, about("Tx.Commit", consumer, p.Resource), func(ctx context.Context) error {
		if !t.sent {
			t.sent, t.err = true, t.tx.Commit(ctx, session, consumer, p)
		}
		return t.err
	})
	if !t.sent { // the server does it when the connection breaks
		t.tx.Rollback(context.WithoutCancel(ctx))
	}
	return err
}

func (t *misbehavingTx) Rollback(ctx context.Context) error {
	t.end()
	err := told(ctx, t.m, request{op: "Tx.Rollback"}, t.tx.Rollback)
	if err != nil {
		t.tx.Rollback(context.WithoutCancel(ctx))
	}
	return err
}

func (t *misbehavingTx) end() { t.once.Do(func() { t.m.tally.giveBack("transactions") }) }

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

// tooMany is how many calls of one kind within a second nothing explains but a loop without
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
