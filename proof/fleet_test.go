package proof

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// fleet is the replicas of one consumer, each a process of its own.
type fleet struct {
	t        *testing.T
	mode     mode
	replicas []*process

	mu     sync.Mutex
	events []event
	errors bytes.Buffer // what replicas wrote to standard error
}

// process is one replica; when killed it is started again under the same name.
type process struct {
	name    string
	dsn     string
	cmd     *exec.Cmd
	stdin   io.Closer
	ended   chan struct{}
	stopped bool // by SIGSTOP
}

// event is one line that a replica told.
type event struct {
	replica  string
	what     string
	resource string
	epoch    int64
	detail   string
	at       time.Time
}

// startFleet starts one replica for each DSN, and waits until each has a session: a
// replica that finds no server when it starts ends, as it should.
func startFleet(t *testing.T, m mode, dsns ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, mode: m}
	t.Cleanup(f.end)
	for i, dsn := range dsns {
		p := &process{name: fmt.Sprintf("replica-%d", i+1), dsn: dsn}
		f.start(p)
		f.replicas = append(f.replicas, p)
	}
	eventually(t, time.Minute, "all replicas have a session", func() bool { return f.count(is("session")) >= len(dsns) })
	return f
}

func (f *fleet) start(p *process) {
	f.t.Helper()
	self, err := os.Executable()
	if err != nil {
		f.t.Fatal(err)
	}
	p.cmd = exec.Command(self)
	p.cmd.Env = append(os.Environ(), envMode+"="+string(f.mode), envDSN+"="+p.dsn, envName+"="+p.name)
	// In a group of its own a frozen replica, too, hears of the controller's end.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	p.cmd.Stderr = lockedWriter{f}
	if err := p.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	p.stdin, p.ended, p.stopped = stdin, make(chan struct{}), false
	cmd, ended := p.cmd, p.ended
	go func() {
		for s := bufio.NewScanner(stdout); s.Scan(); {
			f.record(p.name, s.Text())
		}
		_ = cmd.Wait()
		close(ended)
	}()
}

func (f *fleet) record(replica, line string) {
	w := strings.Fields(line)
	e := event{replica: replica, at: time.Now()}
	switch len(w) {
	case 4:
		e.detail = w[3]
		fallthrough
	case 3:
		e.epoch, _ = strconv.ParseInt(w[2], 10, 64)
		fallthrough
	case 2:
		e.what, e.resource = w[0], w[1]
	default:
		e.what = line
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, e)
}

// find returns the first event from index from on that match accepts, or -1.
func (f *fleet) find(from int, match func(event) bool) (int, event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := from; i < len(f.events); i++ {
		if match(f.events[i]) {
			return i, f.events[i]
		}
	}
	return -1, event{}
}

func (f *fleet) count(match func(event) bool) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events {
		if match(e) {
			n++
		}
	}
	return n
}

func (f *fleet) marker() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.events)
}

func is(what string) func(event) bool { return func(e event) bool { return e.what == what } }

func takenOver(e event) bool { return e.what == "acquired" && e.detail == "crashed" }

// kill ends a replica with SIGKILL and starts it again.
func (f *fleet) kill(p *process) {
	f.t.Helper()
	f.alive(p)
	f.signal(p, syscall.SIGKILL)
	<-p.ended
	f.start(p)
}

func (f *fleet) freeze(p *process) {
	f.t.Helper()
	f.alive(p)
	f.signal(p, syscall.SIGSTOP)
	p.stopped = true
}

func (f *fleet) thaw(p *process) {
	f.t.Helper()
	f.signal(p, syscall.SIGCONT)
	p.stopped = false
}

func (f *fleet) signal(p *process, s syscall.Signal) {
	f.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		f.t.Fatalf("%v to %s: %v", s, p.name, err)
	}
}

// alive fails the test if a replica has ended by itself.
func (f *fleet) alive(p *process) {
	f.t.Helper()
	select {
	case <-p.ended:
		f.t.Fatalf("%s ended by itself: %v\n%s", p.name, p.cmd.ProcessState, f.stderr())
	default:
	}
}

// stop ends all replicas in good order.
func (f *fleet) stop() {
	f.t.Helper()
	for _, p := range f.replicas {
		f.alive(p)
		f.signal(p, syscall.SIGTERM)
	}
	for _, p := range f.replicas {
		select {
		case <-p.ended:
			if !p.cmd.ProcessState.Success() {
				f.t.Errorf("%s: %v\n%s", p.name, p.cmd.ProcessState, f.stderr())
			}
		case <-time.After(time.Minute):
			f.t.Fatalf("%s did not end within a minute of SIGTERM\n%s", p.name, f.stderr())
		}
	}
}

// end leaves no process behind, however the test ended.
func (f *fleet) end() {
	for _, p := range f.replicas {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.ended
		p.stdin.Close()
	}
	if f.t.Failed() {
		f.t.Logf("replicas said:\n%s", f.stderr())
	}
}

func (f *fleet) stderr() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(f.errors.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

type lockedWriter struct{ f *fleet }

func (w lockedWriter) Write(b []byte) (int, error) {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	return w.f.errors.Write(b)
}
