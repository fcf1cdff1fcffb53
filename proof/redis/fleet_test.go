package redisproof

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// fleet is the replicas of one consumer, each a process of its own.
type fleet struct {
	t        *testing.T
	replicas []*process

	mu     sync.Mutex
	events []event
	errors bytes.Buffer // what replicas wrote to standard error
}

// process is one replica; when killed it is started again with the same settings.
type process struct {
	settings settings
	cmd      *exec.Cmd
	pid      atomic.Int64 // of the present incarnation
	stdin    io.Closer
	ended    chan struct{}
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

// startFleet starts a replica for each of the settings and waits until all have a session.
func startFleet(t *testing.T, all ...settings) *fleet {
	t.Helper()
	f := &fleet{t: t}
	t.Cleanup(f.end)
	for _, s := range all {
		p := &process{settings: s}
		f.replicas = append(f.replicas, p)
		f.start(p)
	}
	eventually(t, time.Minute, "all replicas have a session", func() bool { return f.count(is("session")) >= len(all) })
	return f
}

func (f *fleet) start(p *process) {
	f.t.Helper()
	self, err := os.Executable()
	if err != nil {
		f.t.Fatal(err)
	}
	told, err := json.Marshal(p.settings)
	if err != nil {
		f.t.Fatal(err)
	}
	p.cmd = exec.Command(self)
	p.cmd.Env = append(os.Environ(), envReplica+"="+string(told))
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
	p.stdin, p.ended = stdin, make(chan struct{})
	p.pid.Store(int64(p.cmd.Process.Pid))
	cmd, ended, name := p.cmd, p.ended, p.settings.Name
	go func() {
		for s := bufio.NewScanner(stdout); s.Scan(); {
			f.record(name, s.Text())
		}
		_ = cmd.Wait()
		close(ended)
	}()
}

func (f *fleet) record(replica, line string) {
	w := append(strings.Fields(line), "", "", "", "")
	e := event{replica: replica, what: w[0], resource: w[1], detail: w[3], at: time.Now()}
	e.epoch, _ = strconv.ParseInt(w[2], 10, 64)
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
	f.restart(p)
}

// restart waits for a replica's end and starts it again.
func (f *fleet) restart(p *process) {
	f.t.Helper()
	<-p.ended
	p.stdin.Close()
	f.start(p)
}

// gone reports whether a replica has ended.
func (p *process) gone() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (f *fleet) signal(p *process, s syscall.Signal) {
	f.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		f.t.Fatalf("%v to %s: %v", s, p.settings.Name, err)
	}
}

func (f *fleet) freeze(p *process) { f.t.Helper(); f.alive(p); f.signal(p, syscall.SIGSTOP) }

func (f *fleet) thaw(p *process) { f.t.Helper(); f.signal(p, syscall.SIGCONT) }

// alive fails the test if a replica has ended by itself.
func (f *fleet) alive(p *process) {
	f.t.Helper()
	if p.gone() {
		f.t.Fatalf("%s ended by itself: %v\n%s", p.settings.Name, p.cmd.ProcessState, f.stderr())
	}
}

// join starts one replica more and waits until it owns something.
func (f *fleet) join(s settings) *process {
	f.t.Helper()
	from := f.marker()
	p := &process{settings: s}
	f.replicas = append(f.replicas, p)
	f.start(p)
	acquired := func(e event) bool { return e.replica == s.Name && e.what == "acquired" }
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if i, _ := f.find(from, acquired); i >= 0 {
			return p
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("%s acquired nothing within a minute\n%s", s.Name, f.stderr())
		}
	}
}

// leave ends a replica that joined, in good order.
func (f *fleet) leave(p *process) {
	f.t.Helper()
	f.alive(p)
	f.signal(p, syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		f.t.Fatalf("%s did not end within a minute of SIGTERM\n%s", p.settings.Name, f.stderr())
	}
	p.stdin.Close()
	f.replicas = slices.DeleteFunc(f.replicas, func(x *process) bool { return x == p })
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
				f.t.Errorf("%s: %v\n%s", p.settings.Name, p.cmd.ProcessState, f.stderr())
			}
		case <-time.After(time.Minute):
			f.t.Fatalf("%s did not end within a minute of SIGTERM\n%s", p.settings.Name, f.stderr())
		}
	}
}

// end leaves no process behind, however the test ended.
func (f *fleet) end() {
	for _, p := range f.replicas {
		if p.ended == nil {
			continue // it could not be started
		}
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

// names are the settings of n replicas.
func names(s settings, n int) []settings {
	all := make([]settings, n)
	for i := range all {
		all[i] = s
		all[i].Name = fmt.Sprintf("replica-%d", i+1)
	}
	return all
}
