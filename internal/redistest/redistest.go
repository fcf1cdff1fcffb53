// Package redistest gives tests private Redis servers and clusters: their own
// directory, their own port on 127.0.0.1, an append-only file. They share no server or
// directory of the machine, and they end with the test process, even when that is killed.
//
// Most tests want a namespace of their own on the server that the test binary shares:
//
//	func TestMain(m *testing.M) { redistest.Main(m) }
//
//	func TestX(t *testing.T) {
//		client := redistest.Shared(t).Client(t) // or SharedCluster(t)
//		namespace := redistest.Namespace(t)
//
// Tests that stop, kill or freeze a server start their own with Start or StartCluster.
//
// The redis-server in PATH is used, 6.2 or newer; the environment variable
// LEASEGEN_REDIS_SERVER names another.
package redistest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/childproc"
)

var shared = childproc.Shared{Package: "redistest"}

var (
	server = childproc.Once(&shared, func() (*Server, error) { return Launch(forTests(func(s *Server) { s.patient = true })...) })
	// None of its nodes ends: one that does not answer for seconds waits for a busy machine, and a replica in its place
	// would cost leases and messages.
	cluster = childproc.Once(&shared, func() (*Cluster, error) { return LaunchCluster(forTests(Config("cluster-node-timeout", "60000"))...) })
)

// Main runs the tests of a package and then stops the servers they shared. Call it from TestMain with its *testing.M, or
// with what another package's Wrap made of it; the exit code is the tests'.
func Main(m childproc.Tests) { Wrap(m).Run() }

// Wrap is Main for a TestMain that hands its tests to another package's Main.
func Wrap(m childproc.Tests) childproc.Runner { return shared.Wrap(m) }

// Shared returns the server that the tests of this binary share, starting it first
// if need be. Do not stop it, and keep to a Namespace. If the test fails, what the
// server logged in between is shown.
func Shared(t testing.TB) *Server {
	t.Helper()
	s := server(t)
	s.LogOnFailure(t)
	return s
}

// SharedCluster returns the cluster that the tests of this binary share, starting it
// first if need be. Do not stop its nodes, and keep to a Namespace. A test that moves
// slots or fails masters over starts a cluster of its own with StartCluster.
func SharedCluster(t testing.TB) *Cluster {
	t.Helper()
	c := cluster(t)
	c.logOnFailure(t)
	return c
}

// Namespace is a name that no other test of this binary gets: a few lower-case letters
// of the test's own name, then a number.
func Namespace(t testing.TB) string {
	letters := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return -1
	}, strings.TrimPrefix(t.Name(), "Test"))
	return fmt.Sprintf("t%s%d", letters[:min(len(letters), 12)], shared.Number())
}

// Start starts a server of the test's own and stops it when the test ends. If the
// test failed, the server's log is shown.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	s, err := Launch(forTests(opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	s.Fail = func(err error) { t.Helper(); t.Fatal(err) }
	t.Cleanup(s.Close)
	s.LogOnFailure(t)
	return s
}

// Client is a client of the server as user default, closed when the test ends.
func (s *Server) Client(t testing.TB) *redis.Client {
	t.Helper()
	o := &redis.Options{Addr: s.Addr()}
	if s.patient {
		o.ReadTimeout = 20 * time.Second
	}
	return closing(t, redis.NewClient(o))
}

// User creates, or replaces, a user with only what the rules grant ("~app:*", "+get",
// in the language of ACL SETUSER) and returns a client that logs in as that user; name
// and password are in the client's Options. The user outlasts restarts.
func (s *Server) User(t testing.TB, name string, rules ...string) *redis.Client {
	t.Helper()
	if err := s.setUser(context.Background(), name, rules); err != nil {
		t.Fatal(err)
	}
	return closing(t, redis.NewClient(&redis.Options{Addr: s.Addr(), Username: name, Password: password(name)}))
}

func (s *Server) setUser(ctx context.Context, name string, rules []string) error {
	return s.admin(ctx, func(c *redis.Client) error {
		rules = append([]string{"reset", "on", ">" + password(name)}, rules...)
		if err := c.ACLSetUser(ctx, name, rules...).Err(); err != nil {
			return fmt.Errorf("redistest: ACL SETUSER %s: %w", name, err)
		}
		return c.Do(ctx, "ACL", "SAVE").Err()
	})
}

func password(user string) string { return "password-of-" + user }

// closing closes a client when the test ends.
func closing[C interface{ Close() error }](t testing.TB, c C) C {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil && err != redis.ErrClosed {
			t.Errorf("redistest: close client: %v", err)
		}
	})
	return c
}
