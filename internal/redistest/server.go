package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/childproc"
)

// Server is a running or stopped Redis server. Its methods are for one goroutine at a
// time. What goes wrong in them ends the test; on a server made by Launch it panics.
type Server struct {
	bin     string
	dir     string // holds configuration, data, log and lock
	lock    *os.File
	port    int
	config  []string // lines of redis.conf
	cluster bool
	fail    func(error)

	proc   *os.Process // nil while stopped
	exited <-chan struct{}
	paused []int
}

// Option configures a server, or every node of a cluster.
type Option func(*Server)

// Config sets a parameter of redis.conf, with its value as that file has it; "" is the
// empty value.
func Config(name, value string) Option {
	if value == "" {
		value = `""`
	}
	return func(s *Server) { s.config = append(s.config, name+" "+value) }
}

// A node of a cluster listens for the others, too, this far above its own port.
const busOffset = 10000

const (
	startTimeout = time.Minute
	stopTimeout  = time.Minute
	callTimeout  = 5 * time.Second
)

// Launch starts a server outside of a test. Close it.
func Launch(opts ...Option) (*Server, error) {
	s, err := launch(opts)
	if err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	return s, nil
}

func launch(opts []Option) (_ *Server, err error) {
	s := &Server{fail: func(err error) { panic(err) }}
	if s.bin, err = binary(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if s.dir, s.lock, err = childproc.NewDir("", "leasegen-redis-", nil); err != nil {
		return nil, err
	}
	if err = os.WriteFile(filepath.Join(s.dir, "users.acl"), nil, 0o600); err != nil {
		return nil, err
	}
	for _, o := range opts {
		o(s)
	}
	var offsets []int
	if s.cluster {
		offsets = []int{busOffset}
	}
	for try := 1; ; try++ {
		if s.port, err = childproc.FreePort(offsets...); err != nil {
			return nil, err
		}
		err = s.start()
		if err == nil || try == 5 || !strings.Contains(s.logTail(0), "ddress already in use") {
			return s, err
		}
	}
}

// Addr is the server's host:port.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// URL is the server's redis:// address, as user default.
func (s *Server) URL() string { return "redis://" + s.Addr() + "/0" }

// PID is the id of the server's process, 0 while it is stopped.
func (s *Server) PID() int {
	if s.proc == nil {
		return 0
	}
	return s.proc.Pid
}

// Stop asks the server to end with SIGTERM and waits for it. A master waits for its
// replicas first, as long as shutdown-timeout says.
func (s *Server) Stop() {
	s.Resume()
	if s.proc == nil {
		return
	}
	if err := s.proc.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.fail(fmt.Errorf("redistest: stop: %w", err))
	}
	select {
	case <-s.exited:
		s.proc = nil
	case <-time.After(stopTimeout):
		s.fail(fmt.Errorf("redistest: the server did not stop within %v", stopTimeout))
	}
}

// Kill ends the server with SIGKILL, paused or not. What it had answered to is in its
// append-only file: only a crash of the machine would lose that.
func (s *Server) Kill() {
	if s.proc == nil {
		return
	}
	childproc.Signal(childproc.Freeze(s.proc.Pid), syscall.SIGKILL)
	<-s.exited
	s.proc, s.paused = nil, nil
}

// Start starts a server that was stopped or killed, on the same port and data, and
// returns when it has loaded them. Options given change its configuration from now on.
func (s *Server) Start(opts ...Option) {
	for _, o := range opts {
		o(s)
	}
	// Something else may hold its port for a moment.
	deadline := time.Now().Add(startTimeout)
	for s.proc == nil {
		err := s.start()
		if err != nil && time.Now().After(deadline) {
			s.fail(fmt.Errorf("redistest: %w", err))
		}
	}
}

// Restart stops the server in good order and starts it again.
func (s *Server) Restart(opts ...Option) {
	s.Stop()
	s.Start(opts...)
}

// Pause freezes the server with SIGSTOP: connections stay open and nothing answers.
func (s *Server) Pause() {
	if s.proc == nil {
		s.fail(errors.New("redistest: pause: the server is stopped"))
	}
	s.paused = childproc.Freeze(s.proc.Pid)
}

// Resume ends Pause.
func (s *Server) Resume() {
	childproc.Signal(s.paused, syscall.SIGCONT)
	s.paused = nil
}

// Close ends the server at once and removes its files.
func (s *Server) Close() {
	s.Kill()
	if s.lock != nil {
		s.lock.Close()
	}
	if s.dir != "" {
		if err := os.RemoveAll(s.dir); err != nil {
			s.fail(fmt.Errorf("redistest: %w", err))
		}
	}
}

// answers reports whether the server is neither stopped nor paused.
func (s *Server) answers() bool { return s.proc != nil && s.paused == nil }

// start runs the server once and returns when it has loaded its data.
func (s *Server) start() error {
	conf := filepath.Join(s.dir, "redis.conf")
	if err := os.WriteFile(conf, []byte(s.configuration()), 0o600); err != nil {
		return err
	}
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.bin, conf)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdout, cmd.Stderr = log, log
	exited, err := childproc.Spawn(cmd, syscall.SIGKILL)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(startTimeout)
	for !s.ready(cmd.Process.Pid) {
		select {
		case <-exited:
			return fmt.Errorf("redis-server did not start:\n%s", s.logTail(0))
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			<-exited
			return fmt.Errorf("redis-server was not ready within %v:\n%s", startTimeout, s.logTail(0))
		}
	}
	s.proc, s.exited = cmd.Process, exited
	return nil
}

// configuration is redis.conf. Of two lines for one parameter the last wins.
func (s *Server) configuration() string {
	lines := []string{
		"bind 127.0.0.1", "port " + strconv.Itoa(s.port), "protected-mode yes",
		"daemonize no", "dir " + strconv.Quote(s.dir), `logfile ""`, "aclfile " + strconv.Quote(filepath.Join(s.dir, "users.acl")),
		`save ""`, "appendonly yes", "appendfsync everysec",
		// Replicas are not kept waiting for more of them to come.
		"repl-diskless-sync yes", "repl-diskless-sync-delay 0",
	}
	return strings.Join(append(lines, s.config...), "\n") + "\n"
}

// ready asks for the process id, too: another server may have taken the port.
func (s *Server) ready(pid int) bool {
	conn, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var info string
	err = s.admin(ctx, func(c *redis.Client) (err error) {
		info, err = c.Info(ctx).Result()
		return err
	})
	return err == nil && field(info, "process_id") == strconv.Itoa(pid) && field(info, "loading") == "0"
}

// admin runs commands on a connection of its own, each tried once.
func (s *Server) admin(ctx context.Context, do func(*redis.Client) error) error {
	c := redis.NewClient(&redis.Options{
		Addr: s.Addr(), PoolSize: 1, MaxRetries: -1, DisableIdentity: true, Protocol: 2,
		DialerRetries: 1, DialTimeout: callTimeout, ReadTimeout: callTimeout, ContextTimeoutEnabled: true,
	})
	defer c.Close()
	return do(c)
}

func (s *Server) logPath() string { return filepath.Join(s.dir, "log") }

// logTail is the server's log from an offset on, at most its last 100 lines.
func (s *Server) logTail(from int64) string { return childproc.Tail(s.logPath(), from) }

// logOnFailure shows what the server logs from now until the test ends, if it fails.
func (s *Server) logOnFailure(t testing.TB) {
	var from int64
	if st, err := os.Stat(s.logPath()); err == nil {
		from = st.Size()
	}
	t.Cleanup(func() {
		if _, err := os.Stat(s.logPath()); !t.Failed() || err != nil {
			return // all is well, or the test has closed the server itself
		}
		if log := s.logTail(from); log != "" {
			t.Logf("log of Redis at %s:\n%s", s.Addr(), log)
		}
	})
}

// field is one line's value in an answer of INFO or CLUSTER INFO.
func field(info, name string) string {
	for line := range strings.Lines(info) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && k == name {
			return v
		}
	}
	return ""
}
