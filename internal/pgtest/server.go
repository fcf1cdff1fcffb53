package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/childproc"
)

// Server is a running or stopped PostgreSQL server. Its methods are for one
// goroutine at a time. What goes wrong in them ends the test; on a server made by
// Launch it panics.
type Server struct {
	bin    string // directory of the binaries
	dir    string // holds data, log, socket and lock
	lock   *os.File
	port   int
	config []string // name=value
	cred   *syscall.Credential
	fail   func(error)
	// PEM; the server speaks TLS when they are set
	certificate, key []byte

	templates sync.Map // functions that make them once, by name

	proc   *os.Process // nil while stopped
	exited <-chan struct{}
	paused []int
}

// Option configures a server.
type Option func(*Server)

// Config sets a parameter of postgresql.conf.
func Config(name, value string) Option {
	return func(s *Server) { s.config = append(s.config, name+"="+value) }
}

// TLS lets the server speak TLS, too, with a certificate and its key in PEM.
func TLS(certificate, key []byte) Option {
	return func(s *Server) { s.certificate, s.key = certificate, key }
}

// Mode says how Stop stops a server.
type Mode syscall.Signal

const (
	// Smart waits until all clients have disconnected.
	Smart = Mode(syscall.SIGTERM)
	// Fast disconnects clients, rolls back and shuts down in good order.
	Fast = Mode(syscall.SIGINT)
	// Immediate aborts; the next start recovers from the log.
	Immediate = Mode(syscall.SIGQUIT)
)

const (
	startTimeout = time.Minute
	stopTimeout  = time.Minute
)

// Launch starts a server outside of a test. Close it.
func Launch(opts ...Option) (*Server, error) {
	s, err := launch(opts)
	if err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	return s, nil
}

func launch(opts []Option) (_ *Server, err error) {
	s := &Server{fail: func(err error) { panic(err) }}
	if s.bin, err = binaries(); err != nil {
		return nil, err
	}
	if s.cred, err = unprivileged(); err != nil {
		return nil, err
	}
	for _, o := range opts {
		o(s)
	}
	in := ""
	if slices.Contains(s.config, "fsync=off") { // it loses what the machine loses anyway
		in = childproc.Memory()
	}
	if s.dir, s.lock, err = childproc.NewDir(in, dirPrefix, s.cred); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	// --no-sync is about initdb's own files; the server itself runs with fsync on.
	initdb := s.command("initdb", "--no-sync", "--auth=trust", "--username=postgres",
		"--encoding=UTF8", "--locale=C", "--pgdata="+s.data())
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	if err = s.writeTLS(); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		if s.port, err = childproc.FreePort(); err != nil {
			return nil, err
		}
		err = s.start()
		if err == nil || try == 5 || !strings.Contains(s.logTail(0), "could not bind") {
			return s, err
		}
	}
}

// writeTLS puts the certificate and its key where the server finds them by default.
func (s *Server) writeTLS() error {
	if s.certificate == nil {
		return nil
	}
	s.config = append(s.config, "ssl=on")
	for name, pem := range map[string][]byte{"server.crt": s.certificate, "server.key": s.key} {
		path := filepath.Join(s.data(), name)
		if err := os.WriteFile(path, pem, 0o600); err != nil {
			return err
		}
		if s.cred != nil {
			if err := os.Chown(path, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
				return err
			}
		}
	}
	return nil
}

// DSN is the connection string of a database on s, as superuser postgres.
func (s *Server) DSN(db string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", s.Addr(), db)
}

// Addr is the server's host:port.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// Stop stops the server and waits for its end.
func (s *Server) Stop(mode Mode) {
	s.Resume()
	if s.proc == nil {
		return
	}
	if err := s.proc.Signal(syscall.Signal(mode)); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.fail(fmt.Errorf("pgtest: stop: %w", err))
	}
	select {
	case <-s.exited:
		s.proc = nil
	case <-time.After(stopTimeout):
		s.fail(fmt.Errorf("pgtest: the server did not stop within %v", stopTimeout))
	}
}

// Kill kills all processes of the server with SIGKILL, as a power cut would.
func (s *Server) Kill() {
	if s.proc == nil {
		return
	}
	childproc.Signal(childproc.Freeze(s.proc.Pid), syscall.SIGKILL)
	<-s.exited
	s.proc, s.paused = nil, nil
}

// Start starts a server that was stopped or killed, on the same port and data.
// Options given change its configuration from now on.
func (s *Server) Start(opts ...Option) {
	for _, o := range opts {
		o(s)
	}
	// Processes of a killed server may hold its shared memory or port for a moment.
	deadline := time.Now().Add(startTimeout)
	for s.proc == nil {
		err := s.start()
		if err != nil && time.Now().After(deadline) {
			s.fail(fmt.Errorf("pgtest: %w", err))
		}
	}
}

// Restart stops the server in good order and starts it again.
func (s *Server) Restart(opts ...Option) {
	s.Stop(Fast)
	s.Start(opts...)
}

// Pause freezes all processes of the server with SIGSTOP: connections stay open
// and nothing answers.
func (s *Server) Pause() {
	if s.proc == nil {
		s.fail(errors.New("pgtest: pause: the server is stopped"))
	}
	s.paused = childproc.Freeze(s.proc.Pid)
}

// Resume ends Pause.
func (s *Server) Resume() {
	childproc.Signal(s.paused, syscall.SIGCONT)
	s.paused = nil
}

// Close stops the server at once and removes its files.
func (s *Server) Close() {
	if s.proc != nil {
		s.Stop(Immediate)
	}
	if s.lock != nil {
		s.lock.Close()
	}
	if s.dir != "" {
		if err := os.RemoveAll(s.dir); err != nil {
			s.fail(fmt.Errorf("pgtest: %w", err))
		}
	}
}

func (s *Server) data() string    { return filepath.Join(s.dir, "data") }
func (s *Server) logPath() string { return filepath.Join(s.dir, "log") }

func (s *Server) command(name string, args ...string) *exec.Cmd {
	return command(s.dir, s.cred, filepath.Join(s.bin, name), args...)
}

// start runs the server once and returns when it takes connections.
func (s *Server) start() error {
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"-D", s.data(), "-p", strconv.Itoa(s.port), "-k", s.dir}
	// Shared memory in the data directory goes with that when the server is killed.
	for _, c := range append([]string{"listen_addresses=127.0.0.1", "fsync=on", "dynamic_shared_memory_type=mmap"}, s.config...) {
		args = append(args, "-c", c)
	}
	cmd := s.command("postgres", args...)
	cmd.Stdout, cmd.Stderr = log, log
	// Should the test process end, SIGQUIT shuts the server down at once.
	exited, err := childproc.Spawn(cmd, syscall.SIGQUIT)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(startTimeout)
	for !s.ready() {
		select {
		case <-exited:
			return fmt.Errorf("the server did not start:\n%s", s.logTail(0))
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			<-exited
			return fmt.Errorf("the server was not ready within %v:\n%s", startTimeout, s.logTail(0))
		}
	}
	s.proc, s.exited = cmd.Process, exited
	return nil
}

func (s *Server) ready() bool {
	// The last line of this file is the server's own word on its state.
	b, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	if err != nil || !bytes.Contains(b, []byte("\nready")) && !bytes.Contains(b, []byte("\nstandby")) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return false
	}
	return c.Close(ctx) == nil
}

// logTail is the server's log from an offset on, at most its last 100 lines.
func (s *Server) logTail(from int64) string {
	return childproc.Tail(s.logPath(), from)
}
