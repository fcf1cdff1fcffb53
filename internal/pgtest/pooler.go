package pgtest

import (
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

	"github.com/leasegen/leasegen/internal/childproc"
)

// Pooler is a running PgBouncer that hands out connections of one server per transaction.
type Pooler struct{ *childproc.Server }

// StartPooler starts a PgBouncer in transaction mode in front of s, for all its
// databases, and stops it with the test. Settings are lines of its configuration,
// "name = value"; what is given wins.
func StartPooler(t testing.TB, s *Server, settings ...string) *Pooler {
	t.Helper()
	p, err := launchPooler(s, settings)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	p.Fail = func(err error) { t.Helper(); t.Fatal(err) }
	t.Cleanup(p.Close)
	p.LogOnFailure(t)
	return p
}

// DSN is the connection string of a database of the server, through the pooler.
func (p *Pooler) DSN(db string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", p.Addr(), db)
}

// Through is dsn, of a database on s, by way of the pooler.
func (p *Pooler) Through(s *Server, dsn string) string {
	return strings.Replace(dsn, s.Addr(), p.Addr(), 1)
}

func launchPooler(s *Server, settings []string) (*Pooler, error) {
	bin, err := pgbouncer()
	if err != nil {
		return nil, err
	}
	p := &Pooler{}
	p.Server, err = childproc.NewServer(childproc.Spec{
		Name: "PgBouncer", Prefix: dirPrefix, Owner: s.cred,
		AtEnd: syscall.SIGKILL, // before 1.19 it dumps core at SIGQUIT
		Command: func() (*exec.Cmd, error) {
			file, err := p.configure(s, settings)
			return command(p.Dir, s.cred, bin, file), err
		},
		Ready: func(int) bool { return connects(p.DSN("postgres")) },
	})
	if err != nil {
		return nil, err
	}
	if err := p.Launch(); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// configure writes the pooler's files and returns the path of its configuration.
func (p *Pooler) configure(s *Server, settings []string) (string, error) {
	users := filepath.Join(p.Dir, "users")
	config := strings.Join(slices.Concat([]string{
		"[databases]",
		fmt.Sprintf("* = host=127.0.0.1 port=%d", s.Port),
		"[pgbouncer]",
		"listen_addr = 127.0.0.1", "listen_port = " + strconv.Itoa(p.Port), "unix_socket_dir =",
		"auth_type = trust", "auth_file = " + users, "admin_users = postgres",
		"pool_mode = transaction", "default_pool_size = 10", "max_client_conn = 1000",
		"server_idle_timeout = 5",
	}, settings, []string{""}), "\n")
	file := filepath.Join(p.Dir, "pgbouncer.ini")
	// It has no secret in it, and is read by another user when the tests run as root.
	for name, text := range map[string]string{file: config, users: "\"postgres\" \"\"\n"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	return file, nil
}

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
