package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/childproc"
)

// Pooler is a running PgBouncer that hands out connections of one server per transaction.
type Pooler struct {
	dir  string
	lock *os.File
	port int
	proc *os.Process
	done <-chan struct{}
}

// StartPooler starts a PgBouncer in transaction mode in front of s, for all its
// databases, and stops it with the test. Settings are lines of its configuration,
// "name = value"; what is given wins.
func StartPooler(t testing.TB, s *Server, settings ...string) *Pooler {
	t.Helper()
	p, err := launchPooler(s, settings)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("PgBouncer log:\n%s", childproc.Tail(p.logPath(), 0))
		}
		if err := p.close(); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return p
}

// DSN is the connection string of a database of the server, through the pooler.
func (p *Pooler) DSN(db string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", p.Addr(), db)
}

// Addr is the pooler's host:port.
func (p *Pooler) Addr() string { return fmt.Sprintf("127.0.0.1:%d", p.port) }

// Through is dsn, of a database on s, by way of the pooler.
func (p *Pooler) Through(s *Server, dsn string) string {
	return strings.Replace(dsn, s.Addr(), p.Addr(), 1)
}

func launchPooler(s *Server, settings []string) (_ *Pooler, err error) {
	bin, err := pgbouncer()
	if err != nil {
		return nil, err
	}
	p := &Pooler{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.dir, p.lock, err = childproc.NewDir("", dirPrefix, s.cred); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		if p.port, err = childproc.FreePort(); err != nil {
			return nil, err
		}
		err = p.start(bin, s, settings)
		if err == nil || try == 5 || !strings.Contains(childproc.Tail(p.logPath(), 0), "ddress already in use") {
			return p, err
		}
	}
}

func (p *Pooler) start(bin string, s *Server, settings []string) error {
	users := filepath.Join(p.dir, "users")
	config := strings.Join(slices.Concat([]string{
		"[databases]",
		fmt.Sprintf("* = host=127.0.0.1 port=%d", s.port),
		"[pgbouncer]",
		"listen_addr = 127.0.0.1", "listen_port = " + strconv.Itoa(p.port), "unix_socket_dir =",
		"auth_type = trust", "auth_file = " + users, "admin_users = postgres",
		"pool_mode = transaction", "default_pool_size = 10", "max_client_conn = 1000",
		"server_idle_timeout = 5", "logfile = " + p.logPath(),
	}, settings, []string{""}), "\n")
	file := filepath.Join(p.dir, "pgbouncer.ini")
	// It has no secret in it, and is read by another user when the tests run as root.
	for name, text := range map[string]string{file: config, users: "\"postgres\" \"\"\n"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	cmd := command(p.dir, s.cred, bin, "-q", file)
	done, err := childproc.Spawn(cmd, syscall.SIGQUIT)
	if err != nil {
		return err
	}
	p.proc, p.done = cmd.Process, done
	for deadline := time.Now().Add(startTimeout); !p.ready(); {
		select {
		case <-done:
			p.proc = nil
			return fmt.Errorf("PgBouncer did not start:\n%s", childproc.Tail(p.logPath(), 0))
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("PgBouncer was not ready within %v:\n%s", startTimeout, childproc.Tail(p.logPath(), 0))
		}
	}
	return nil
}

func (p *Pooler) ready() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, p.DSN("postgres"))
	if err != nil {
		return false
	}
	return c.Close(ctx) == nil
}

// close ends the pooler at once and removes its files.
func (p *Pooler) close() error {
	if p.proc != nil {
		_ = p.proc.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(stopTimeout):
			return fmt.Errorf("PgBouncer did not stop within %v", stopTimeout)
		}
	}
	if p.lock != nil {
		p.lock.Close()
	}
	if p.dir == "" {
		return nil
	}
	return os.RemoveAll(p.dir)
}

func (p *Pooler) logPath() string { return filepath.Join(p.dir, "log") }

func pgbouncer() (string, error) {
	for _, path := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if found, err := exec.LookPath(path); err == nil {
			return found, nil
		}
	}
	return "", errors.New("no PgBouncer on this machine: apt-get install pgbouncer")
}

var poolerVersion = regexp.MustCompile(`PgBouncer (\d+)\.(\d+)`)

// PoolerPrepares reports whether the PgBouncer of this machine can keep prepared
// statements in transaction mode (max_prepared_statements, since 1.21).
func PoolerPrepares(t testing.TB) bool {
	t.Helper()
	bin, err := pgbouncer()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	out, err := exec.Command(bin, "--version").Output()
	m := poolerVersion.FindSubmatch(out)
	if m == nil {
		t.Fatalf("pgtest: %s --version says %q, %v", bin, out, err)
	}
	major, _ := strconv.Atoi(string(m[1]))
	minor, _ := strconv.Atoi(string(m[2]))
	return major > 1 || minor >= 21
}
