package fleet

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long replicas are given to begin.
const patience = 5 * time.Minute

// Fleet is the replicas of a test. Its methods are for one goroutine at a time, but for those that look at events.
// An error in them ends the test.
type Fleet struct {
	Replicas []*Process

	t      testing.TB
	events events
	errors Tail
}

// Replica says what a replica is started with.
type Replica struct {
	Name string
	Env  []string // variables, name=value
}

// Event is one line that a replica told: what happened, to which resource, under which epoch, and a detail. Words that are
// missing at the line's end are empty.
type Event struct {
	Replica  string
	What     string
	Resource string
	Epoch    int64
	Detail   string
	At       time.Time
}

// Is matches events of one kind.
func Is(what string) func(Event) bool { return func(e Event) bool { return e.What == what } }

// TakenOver matches acquisitions from an owner that did not give the lease back.
func TakenOver(e Event) bool { return e.What == "acquired" && e.Detail == "crashed" }

// Start starts replicas and waits until each has a session: one that finds no server when it starts ends, as it should.
// They end with the test; if that fails, what they wrote to standard error is shown.
func Start(t testing.TB, replicas ...Replica) *Fleet {
	t.Helper()
	f := &Fleet{t: t}
	t.Cleanup(f.End)
	for _, r := range replicas {
		f.Add(r)
	}
	for deadline := time.Now().Add(patience); f.Count(Is("session")) < len(replicas); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not all replicas had a session within %v; replicas said:\n%s", patience, f.said())
		}
	}
	return f
}

// Add starts one more replica.
func (f *Fleet) Add(r Replica) *Process {
	f.t.Helper()
	p := NewProcess(r.Name, r.Env, func(line string) { f.events.add(r.Name, line) }, &f.errors)
	f.Replicas = append(f.Replicas, p)
	f.start(p)
	return p
}

// Join starts one more replica and waits until it owns something.
func (f *Fleet) Join(r Replica) *Process {
	f.t.Helper()
	from := f.Marker()
	p := f.Add(r)
	acquired := func(e Event) bool { return e.Replica == r.Name && e.What == "acquired" }
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if i, _ := f.Find(from, acquired); i >= 0 {
			return p
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("%s acquired no lease within %v; replicas said:\n%s", r.Name, patience, f.said())
		}
	}
}

func (f *Fleet) start(p *Process) {
	f.t.Helper()
	if err := p.Start(); err != nil {
		f.t.Fatal(err)
	}
}

// Signal sends a signal to a replica that runs.
func (f *Fleet) Signal(p *Process, s syscall.Signal) {
	f.t.Helper()
	f.Alive(p)
	if err := p.Signal(s); err != nil {
		f.t.Fatal(err)
	}
}

// Kill ends a replica with SIGKILL and starts it again.
func (f *Fleet) Kill(p *Process) {
	f.t.Helper()
	f.Signal(p, syscall.SIGKILL)
	f.Restart(p)
}

// Restart waits for a replica's end and starts it again.
func (f *Fleet) Restart(p *Process) {
	f.t.Helper()
	<-p.Ended()
	f.start(p)
}

// Freeze stops a replica where it stands.
func (f *Fleet) Freeze(p *Process) { f.t.Helper(); f.Signal(p, syscall.SIGSTOP) }

// Thaw lets a frozen replica go on.
func (f *Fleet) Thaw(p *Process) { f.t.Helper(); f.Signal(p, syscall.SIGCONT) }

// Alive fails the test if a replica has ended by itself.
func (f *Fleet) Alive(p *Process) {
	f.t.Helper()
	if p.Gone() {
		f.t.Fatalf("%s ended by itself: %v; replicas said:\n%s", p.Name, p.cmd.ProcessState, f.said())
	}
}

// Leave ends replicas in good order, all at once, and forgets them. The test goes on after a bad exit, so that it also
// judges what the replicas did.
func (f *Fleet) Leave(leaving ...*Process) {
	f.t.Helper()
	for _, p := range leaving {
		f.Signal(p, syscall.SIGTERM)
	}
	for _, p := range leaving {
		if err := p.Left(); err != nil && !p.Gone() {
			f.t.Fatalf("%v; replicas said:\n%s", err, f.said())
		} else if err != nil {
			f.t.Error(err)
		}
	}
	f.Replicas = slices.DeleteFunc(slices.Clone(f.Replicas), func(p *Process) bool { return slices.Contains(leaving, p) })
}

// Stop ends all replicas in good order.
func (f *Fleet) Stop() { f.t.Helper(); f.Leave(slices.Clone(f.Replicas)...) }

// End kills all replicas, however the test ended. After it the fleet has none.
func (f *Fleet) End() {
	for _, p := range f.Replicas {
		p.End()
	}
	f.Replicas = nil
	if said := f.said(); f.t.Failed() && said != "" {
		f.t.Logf("replicas said:\n%s", said)
	}
}

// said is the end of what the replicas wrote to standard error.
func (f *Fleet) said() string { return f.errors.Last(60) }

// Find returns the first event from index from on that match accepts, or -1.
func (f *Fleet) Find(from int, match func(Event) bool) (int, Event) {
	for i, e := range f.Events(from) {
		if match(e) {
			return from + i, e
		}
	}
	return -1, Event{}
}

// Count counts the events that match accepts.
func (f *Fleet) Count(match func(Event) bool) (n int) {
	for _, e := range f.Events(0) {
		if match(e) {
			n++
		}
	}
	return n
}

// Marker is the index of the next event.
func (f *Fleet) Marker() int { return len(f.Events(0)) }

// Events are those from an index on, in the order in which they were reported. They are not to be changed.
func (f *Fleet) Events(from int) []Event {
	f.events.mu.Lock()
	defer f.events.mu.Unlock()
	return slices.Clip(f.events.all[from:])
}

// events are what replicas told.
type events struct {
	mu  sync.Mutex
	all []Event
}

func (s *events) add(replica, line string) {
	w := append(strings.Fields(line), "", "", "", "")
	e := Event{Replica: replica, What: w[0], Resource: w[1], Detail: w[3], At: time.Now()}
	e.Epoch, _ = strconv.ParseInt(w[2], 10, 64)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, e)
}

// Tail collects what several processes write, and shows the last lines.
type Tail struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *Tail) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// Last is the end of the text, at most so many lines.
func (b *Tail) Last(lines int) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := strings.Split(strings.TrimSpace(b.text.String()), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
