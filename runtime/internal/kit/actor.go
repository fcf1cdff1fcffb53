package kit

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Actor is a session on one handle, as a process has it, and what the process does with it: each method makes one
// call of the backend, which may not fail. A heartbeat that got no answer is sent again.
type Actor struct {
	T       testing.TB
	Be      backend.Backend
	ID      string
	Session backend.Session
	Info    backend.ConsumerInfo // the consumer that it acts for
	Seq     int64                // of the last progress that was numbered
}

// Join opens a session for a consumer, and others beside it, that is closed with the test.
func Join(t testing.TB, be backend.Backend, info backend.ConsumerInfo, ttl time.Duration, others ...backend.ConsumerInfo) *Actor {
	t.Helper()
	return Open(t, be, backend.SessionSpec{TTL: ttl}, info, others...)
}

// Open is Join with more of the session's properties.
func Open(t testing.TB, be backend.Backend, spec backend.SessionSpec, info backend.ConsumerInfo, others ...backend.ConsumerInfo) *Actor {
	t.Helper()
	spec.Host, spec.PID = "host", 7
	for _, c := range append([]backend.ConsumerInfo{info}, others...) {
		spec.Consumers = append(spec.Consumers, c.Name)
	}
	var s backend.Session
	OK(t, answered(t, func() (err error) {
		spec.ID = ID()
		s, err = be.OpenSession(context.Background(), spec)
		return err
	}))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Close(ctx)
	})
	return &Actor{T: t, Be: be, ID: spec.ID, Session: s, Info: info}
}

// Heartbeat sends a heartbeat of a session, which gives a server a fraction of its TTL to answer, and another
// in place of one that got no answer in time, as processes do.
func Heartbeat(t testing.TB, s backend.Session) error {
	return answered(t, func() error { return s.Heartbeat(t.Context()) })
}

// answered calls until the answer comes in time.
func answered(t testing.TB, call func() error) error {
	for end := time.Now().Add(Patience(t)); ; {
		if err := call(); !Late(err) || time.Now().After(end) {
			return err
		}
		time.Sleep(pause)
	}
}

// pause is between a call that got no answer in time and the next.
const pause = 10 * time.Millisecond

// Late says that a server did not answer in time, as one on a busy machine may not.
func Late(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// Run runs a consumer or a group, and again where a server was late when it began, as what supervises processes does.
func Run(ctx context.Context, c interface{ Run(context.Context) error }) error {
	for {
		if err := c.Run(ctx); !Late(err) || ctx.Err() != nil {
			return err
		}
		time.Sleep(pause)
	}
}

// Acting is an actor with a session that a test has opened in its own way, by its id alone.
func Acting(t testing.TB, be backend.Backend, id string, info backend.ConsumerInfo) *Actor {
	return &Actor{T: t, Be: be, ID: id, Info: info}
}

// Sole registers a consumer of one resource and takes it.
func Sole(t testing.TB, be backend.Backend, c backend.ConsumerInfo, topics ...string) (*Actor, backend.Grant) {
	t.Helper()
	a := Join(t, be, c, time.Hour)
	OK(t, be.Register(context.Background(), c, topics))
	return a, a.Takes()
}

// Heartbeat sends a heartbeat: nil, or why the session is not extended.
func (a *Actor) Heartbeat() error { return Heartbeat(a.T, a.Session) }

// As is the same session, acting for another of its consumers.
func (a *Actor) As(c backend.ConsumerInfo) *Actor {
	other := *a
	other.Info = c
	return &other
}

// Registers resources: topics, or of a stream those given, none and not all when there are none.
func (a *Actor) Registers(resources ...string) *Actor {
	a.T.Helper()
	switch a.Info.Per {
	case backend.PerTopic:
	case backend.PerStream:
		resources = append([]string{}, resources...)
	default:
		resources = []string{backend.Whole}
	}
	OK(a.T, a.Be.Register(context.Background(), a.Info, resources))
	return a
}

// Request asks for up to n leases.
func (a *Actor) Request(n int) backend.AcquireRequest {
	return backend.AcquireRequest{Session: a.ID, Consumer: a.Info, Max: n, Attempt: ID()}
}

// Acquires takes up to n leases.
func (a *Actor) Acquires(n int) []backend.Grant {
	a.T.Helper()
	return Must[[]backend.Grant](a.T)(a.Be.Acquire(context.Background(), a.Request(n)))
}

// Takes acquires the one resource that is free.
func (a *Actor) Takes() backend.Grant {
	a.T.Helper()
	gs := a.Acquires(1)
	if len(gs) != 1 {
		a.T.Fatalf("acquired %d leases, want 1", len(gs))
	}
	return gs[0]
}

// TakesOver waits until a resource becomes free, and takes it.
func (a *Actor) TakesOver() backend.Grant {
	a.T.Helper()
	var gs []backend.Grant
	Eventually(a.T, "a lease to take over", func() bool {
		gs = a.Acquires(1)
		return len(gs) == 1
	})
	return gs[0]
}

// Releases gives leases back.
func (a *Actor) Releases(refs ...backend.Ref) {
	a.T.Helper()
	OK(a.T, a.Be.Release(context.Background(), a.ID, a.Info.Name, refs))
}

// Fenced stores progress and returns the resources whose part was refused.
func (a *Actor) Fenced(ps ...backend.Progress) []string {
	a.T.Helper()
	return Must[[]string](a.T)(a.Be.Commit(context.Background(), a.ID, a.Info.Name, ps))
}

// Commits stores progress that must not be fenced.
func (a *Actor) Commits(ps ...backend.Progress) {
	a.T.Helper()
	if fenced := a.Fenced(ps...); len(fenced) > 0 {
		a.T.Fatalf("fenced: %v", fenced)
	}
}

// Reads fetches messages of a resource.
func (a *Actor) Reads(resource string, from backend.Cursor, limit int) backend.Fetched {
	a.T.Helper()
	return Fetch(a.T, a.Be, a.Info, resource, from, limit)
}

// Due are the parked messages that may be handled again.
func (a *Actor) Due() backend.Parked {
	a.T.Helper()
	return Must[backend.Parked](a.T)(a.Be.FetchParked(context.Background(), backend.ParkedRequest{
		Session: a.ID, Consumer: a.Info, Limit: 1000, MaxPayload: Roomy,
	}))
}

// Surveys counts resources and members.
func (a *Actor) Surveys() backend.Survey {
	a.T.Helper()
	s := Must[[]backend.Survey](a.T)(a.Be.Survey(context.Background(), []string{a.Info.Name}))
	if len(s) != 1 || s[0].Consumer != a.Info.Name {
		a.T.Fatalf("survey of %s: %+v", a.Info.Name, s)
	}
	return s[0]
}

// Operator skips what a backend without an operator cannot show.
func (a *Actor) Operator() operate.Operator {
	a.T.Helper()
	return Operator(a.T, a.Be)
}

// Operator is that of a backend; without one the test is skipped.
func Operator(t testing.TB, be backend.Backend) operate.Operator {
	t.Helper()
	op := be.Capabilities().Operator
	if op == nil {
		t.Skip("the backend has no operator")
	}
	return op
}

// Dead are the dead letters of the consumer.
func (a *Actor) Dead() []operate.DeadLetterInfo {
	a.T.Helper()
	return Must[[]operate.DeadLetterInfo](a.T)(a.Operator().DeadLetters(context.Background(), operate.DeadLetterFilter{Consumer: a.Info.Name}))
}

// Starts asks for the execution of an item under a lease.
func (a *Actor) Starts(g backend.Grant, key, message string, want backend.OnceState) {
	a.T.Helper()
	got, err := a.Be.Capabilities().Ledger.StartOnce(context.Background(), a.ID, a.Info.Name, g.Ref, key, message)
	OK(a.T, err)
	if got != want {
		a.T.Fatalf("start of %s: got state %d, want %d", key, got, want)
	}
}

// Tells stores how executions ended.
func (a *Actor) Tells(g backend.Grant, results ...backend.OnceResult) {
	a.T.Helper()
	a.Seq++
	a.Commits(backend.Progress{Ref: g.Ref, Seq: a.Seq, Once: results})
}

// Retires streams without messages.
func (a *Actor) Retires(refs ...backend.Ref) {
	a.T.Helper()
	OK(a.T, a.Be.Capabilities().Streams.Retire(context.Background(), a.ID, a.Info.Name, refs))
}
