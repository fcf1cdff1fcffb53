package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/childproc"
)

// Server is a running or stopped Redis server. Its methods are for one goroutine at a
// time. An error in them ends the test; on a server made by Launch it panics.
type Server struct {
	*childproc.Server
	bin     string
	config  []string // lines of redis.conf
	cluster bool
	patient bool // its clients wait long for an answer: many tests share it
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

// forTests are options of servers that last no longer than tests: a fork that writes the append-only file anew would take a core for seconds.
func forTests(more ...Option) []Option {
	return append([]Option{Config("auto-aof-rewrite-percentage", "0")}, more...)
}

// A node of a cluster listens for the others, too, this far above its own port.
const busOffset = 10000

const callTimeout = 5 * time.Second

// Launch starts a server outside of a test. Close it.
func Launch(opts ...Option) (*Server, error) {
	s, err := launch(opts)
	if err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	return s, nil
}

func launch(opts []Option) (_ *Server, err error) {
	s := &Server{}
	if s.bin, err = binary(); err != nil {
		return nil, err
	}
	for _, o := range opts {
		o(s)
	}
	s.Server, err = childproc.NewServer(childproc.Spec{
		Name: "Redis", Prefix: "leasegen-redis-", Command: s.redis, Ready: s.ready, AtEnd: syscall.SIGKILL,
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err = os.WriteFile(filepath.Join(s.Dir, "users.acl"), nil, 0o600); err != nil {
		return nil, err
	}
	var offsets []int
	if s.cluster {
		offsets = []int{busOffset}
	}
	return s, s.Launch(offsets...)
}

// URL is the server's redis:// address, as user default.
func (s *Server) URL() string { return "redis://" + s.Addr() + "/0" }

// Stop asks the server to end with SIGTERM and waits for it. A master waits for its
// replicas first, as long as shutdown-timeout says.
func (s *Server) Stop() { s.End(syscall.SIGTERM) }

// Start starts a server that was stopped or killed, on the same port and data, and
// returns when it has loaded them. Options given change its configuration from now on.
func (s *Server) Start(opts ...Option) {
	for _, o := range opts {
		o(s)
	}
	s.Server.Start()
}

// Restart stops the server in good order and starts it again.
func (s *Server) Restart(opts ...Option) {
	s.Stop()
	s.Start(opts...)
}

// Close kills the server, and what it has forked, and removes its files.
func (s *Server) Close() {
	s.Kill()
	s.Server.Close()
}

// redis is the server's process, for one start.
func (s *Server) redis() (*exec.Cmd, error) {
	conf := filepath.Join(s.Dir, "redis.conf")
	cmd := exec.Command(s.bin, conf)
	cmd.Dir = s.Dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	return cmd, os.WriteFile(conf, []byte(s.configuration()), 0o600)
}

// configuration is redis.conf. Of two lines for one parameter the last wins.
func (s *Server) configuration() string {
	lines := []string{
		"bind 127.0.0.1", "port " + strconv.Itoa(s.Port), "protected-mode yes",
		"daemonize no", "dir " + strconv.Quote(s.Dir), `logfile ""`, "aclfile " + strconv.Quote(filepath.Join(s.Dir, "users.acl")),
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

// field is one line's value in an answer of INFO or CLUSTER INFO.
func field(info, name string) string {
	for line := range strings.Lines(info) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && k == name {
			return v
		}
	}
	return ""
}
