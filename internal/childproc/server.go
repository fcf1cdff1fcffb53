package childproc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	startTimeout = 3 * time.Minute // a killed PostgreSQL's connection that had not begun may hold its memory for a minute
	stopTimeout  = time.Minute
	pollEvery    = 5 * time.Millisecond
	portsTried   = 5
)

// Spec says what a server is and how it runs.
type Spec struct {
	Name   string              // in errors
	In     string              // where its directory is made; empty: where temporary files are
	Prefix string              // of the directory's name
	Owner  *syscall.Credential // of the directory; nil: the present user
	// Command makes the process for one start. Its output is the server's log.
	Command func() (*exec.Cmd, error)
	// Ready reports whether the process takes connections; where the server tells its id, also whether it is this one.
	Ready func(pid int) bool
	// AtEnd is what ends the process at once, also when the test process ends.
	AtEnd syscall.Signal
}

// Server is a process that takes connections at a port of 127.0.0.1, and the directory of its files. Its methods are for
// one goroutine at a time. Fail gets the errors of methods that return none.
type Server struct {
	Dir  string
	Port int
	Fail func(error)

	spec   Spec
	dirs   []serverDir
	proc   *os.Process // nil while stopped
	exited <-chan struct{}
	paused []int
}

// serverDir is a directory of a server, and what keeps others from sweeping it away.
type serverDir struct {
	name string
	lock *os.File
}

// NewServer makes the directory of a server that does not run yet. Close removes it. Fail panics until it is set.
func NewServer(spec Spec) (*Server, error) {
	s := &Server{spec: spec, Fail: func(err error) { panic(err) }}
	var err error
	if s.Dir, err = s.newDir(spec.In); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

// DirOnDisk makes the server another directory, in the one for temporary files. Close removes it.
func (s *Server) DirOnDisk() (string, error) { return s.newDir("") }

func (s *Server) newDir(in string) (string, error) {
	name, lock, err := NewDir(in, s.spec.Prefix, s.spec.Owner)
	s.dirs = append(s.dirs, serverDir{name, lock})
	return name, err
}

// Launch starts the server for the first time, on a port that is free. The ports at the given distances from it are free, too.
func (s *Server) Launch(offsets ...int) (err error) {
	for range portsTried {
		if s.Port, err = FreePort(offsets...); err != nil {
			return err
		}
		if err = s.start(); err == nil || !strings.Contains(s.LogTail(0), "ddress already in use") {
			return err
		}
	}
	return err
}

// Addr is the server's host:port.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.Port) }

// PID is the id of the server's process, 0 while it is stopped.
func (s *Server) PID() int {
	if s.proc == nil {
		return 0
	}
	return s.proc.Pid
}

// Answers reports whether the server is neither stopped nor paused.
func (s *Server) Answers() bool { return s.proc != nil && s.paused == nil }

// End sends the server a signal that ends it and waits for its end.
func (s *Server) End(sig syscall.Signal) {
	s.Resume()
	if s.proc == nil {
		return
	}
	if err := s.proc.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.Fail(fmt.Errorf("stop %s: %w", s.spec.Name, err))
	}
	select {
	case <-s.exited:
		s.proc = nil
	case <-time.After(stopTimeout):
		s.Fail(fmt.Errorf("%s did not stop within %v", s.spec.Name, stopTimeout))
	}
}

// Kill ends all processes of the server with SIGKILL, frozen or not. Their files stay as written: only a crash of the
// machine would lose that.
func (s *Server) Kill() {
	if s.proc == nil {
		return
	}
	select {
	case <-s.exited: // by itself: its id may be another's now
	default:
		Signal(Freeze(s.proc.Pid), syscall.SIGKILL)
		<-s.exited
	}
	s.proc, s.paused = nil, nil
}

// Start starts a server that was stopped or killed, on the same port and files, and returns when it takes connections.
func (s *Server) Start() {
	// Processes of a killed server, or others, may hold its port or its shared memory for a moment.
	deadline := time.Now().Add(startTimeout)
	for s.proc == nil {
		if err := s.start(); err != nil && time.Now().After(deadline) {
			s.Fail(err)
		}
	}
}

// Pause freezes all processes of the server with SIGSTOP: connections stay open and no call is answered.
func (s *Server) Pause() {
	if s.proc == nil {
		s.Fail(fmt.Errorf("pause %s: it is stopped", s.spec.Name))
	}
	s.paused = Freeze(s.proc.Pid)
}

// Resume ends Pause.
func (s *Server) Resume() {
	Signal(s.paused, syscall.SIGCONT)
	s.paused = nil
}

// Close ends the server at once and removes its files.
func (s *Server) Close() {
	s.End(s.spec.AtEnd)
	if err := s.remove(); err != nil {
		s.Fail(fmt.Errorf("remove files of %s: %w", s.spec.Name, err))
	}
}

func (s *Server) remove() (err error) {
	for _, d := range s.dirs {
		d.lock.Close()
		err = errors.Join(err, os.RemoveAll(d.name))
	}
	return err
}

// LogPath is the file with what the server's processes printed.
func (s *Server) LogPath() string { return filepath.Join(s.Dir, "log") }

// LogTail is the server's log from an offset on, at most its last 100 lines.
func (s *Server) LogTail(from int64) string { return Tail(s.LogPath(), from) }

// LogOnFailure shows what the server logs from now until the test ends, if that fails.
func (s *Server) LogOnFailure(t testing.TB) {
	var from int64
	if st, err := os.Stat(s.LogPath()); err == nil {
		from = st.Size()
	}
	t.Cleanup(func() {
		if _, err := os.Stat(s.LogPath()); !t.Failed() || err != nil {
			return // all is well, or the test has closed the server itself
		}
		if log := s.LogTail(from); log != "" {
			t.Logf("log of %s at %s:\n%s", s.spec.Name, s.Addr(), log)
		}
	})
}

// start runs the process once.
func (s *Server) start() error {
	cmd, err := s.spec.Command()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(s.LogPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	exited, err := Spawn(cmd, s.spec.AtEnd)
	if err != nil {
		return fmt.Errorf("start %s: %w", s.spec.Name, err)
	}
	deadline := time.Now().Add(startTimeout)
	for !s.spec.Ready(cmd.Process.Pid) {
		select {
		case <-exited:
			return fmt.Errorf("%s did not start:\n%s", s.spec.Name, s.LogTail(0))
		case <-time.After(pollEvery):
		}
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			<-exited
			return fmt.Errorf("%s was not ready within %v:\n%s", s.spec.Name, startTimeout, s.LogTail(0))
		}
	}
	s.proc, s.exited = cmd.Process, exited
	return nil
}
