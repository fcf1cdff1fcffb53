// Package pgtest gives tests private PostgreSQL servers: their own data directory and
// their own port on 127.0.0.1. They share no server or directory of the machine, and they end
// with the test process, even when that is killed.
//
// Most tests want a fresh database on the server that the test binary shares. That one
// does without fsync, which only matters when a machine dies, not when a process does:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
//	func TestX(t *testing.T) {
//		pool, err := pgxpool.New(t.Context(), pgtest.DB(t))
//
// Tests that stop, kill, freeze or measure a server start their own with Start, which
// runs with fsync on; see OnDisk and WALOnDisk for tests that need a disk.
//
// The newest PostgreSQL found, 14 or later, is used; the environment variable
// LEASEGEN_PG_BIN names another directory of binaries. LEASEGEN_PG_TEMPLATES, where it is set, names one to keep new data
// directories in: see initdb.
package pgtest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/childproc"
)

var shared = childproc.Shared{Package: "pgtest"}

var server = childproc.Once(&shared, func() (*Server, error) {
	// PL/pgSQL is loaded once, not by each connection.
	return Launch(Config("max_connections", "500"), Config("fsync", "off"), Config("shared_preload_libraries", "plpgsql"), lasting)
})

// lasting: the server outlasts the tests, and so do connections that make databases. Starting one costs as much as what it does.
func lasting(s *Server) { s.idle = make(chan *pgx.Conn, 2) }

// Main runs the tests of a package and then stops the server they shared. Call it from TestMain with its *testing.M, or with
// what another package's Wrap made of it; the exit code is the tests'.
func Main(m childproc.Tests) { Wrap(m).Run() }

// Wrap is Main for a TestMain that hands its tests to another package's Main.
func Wrap(m childproc.Tests) childproc.Runner { return shared.Wrap(m) }

// Shared returns the server that the tests of this binary share, starting it first
// if need be. Do not stop it.
func Shared(t testing.TB) *Server { t.Helper(); return server(t) }

// DB creates an empty database on the shared server and returns its DSN. The
// database is dropped when the test ends; if the test failed, what the server
// logged in between is shown.
func DB(t testing.TB) string {
	t.Helper()
	return Shared(t).fresh(t, emptyTemplate)
}

// DBLike is Server.DBLike on the shared server.
func DBLike(t testing.TB, name string, prepare func(dsn string) error) string {
	t.Helper()
	return Shared(t).DBLike(t, name, prepare)
}

// DBLike creates a copy of a database that prepare fills for the first test that asks for one of that name: copying it
// costs less than filling each. The copy is dropped when the test ends.
func (s *Server) DBLike(t testing.TB, name string, prepare func(dsn string) error) string {
	t.Helper()
	if err := s.prepared(name, prepare); err != nil {
		t.Fatal(err)
	}
	return s.fresh(t, name)
}

func (s *Server) fresh(t testing.TB, template string) string {
	t.Helper()
	s.LogOnFailure(t)
	return s.database(t, fmt.Sprintf("%s_%d", identifier(t.Name()), shared.Number()), template)
}

// prepared makes a template once. All connections to it have to be closed when prepare returns.
func (s *Server) prepared(name string, prepare func(dsn string) error) error {
	once, _ := s.templates.LoadOrStore(name, sync.OnceValue(func() error {
		if err := s.createDatabase(name, emptyTemplate); err != nil {
			return err
		}
		if err := prepare(s.DSN(name)); err != nil {
			return fmt.Errorf("pgtest: prepare database %s: %w", name, err)
		}
		return nil
	}))
	return once.(func() error)()
}

// Start starts a server of the test's own and stops it when the test ends. If the
// test failed, the server's log is shown.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	s, err := Launch(opts...)
	if err != nil {
		t.Fatal(err)
	}
	s.Fail = func(err error) { t.Helper(); t.Fatal(err) }
	t.Cleanup(s.Close)
	s.LogOnFailure(t)
	return s
}

// DB creates an empty database on s and returns its DSN. It goes when the server goes.
func (s *Server) DB(name string) string {
	if err := s.createDatabase(name, emptyTemplate); err != nil {
		s.Fail(err)
	}
	return s.DSN(name)
}

func (s *Server) database(t testing.TB, name, template string) string {
	t.Helper()
	if err := s.createDatabase(name, template); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := s.admin(func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Exec(ctx, `DROP DATABASE IF EXISTS `+pgx.Identifier{name}.Sanitize()+` WITH (FORCE)`)
			return err
		})
		if err != nil {
			t.Errorf("pgtest: drop database %s: %v", name, err)
		}
	})
	return s.DSN(name)
}

// emptyTemplate is never connected to, so parallel tests do not get in each other's way.
const emptyTemplate = "template0"

func (s *Server) createDatabase(name, template string) error {
	err := s.admin(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, `CREATE DATABASE `+pgx.Identifier{name}.Sanitize()+` TEMPLATE `+pgx.Identifier{template}.Sanitize()+s.copying)
		return err
	})
	if err != nil {
		return fmt.Errorf("pgtest: create database %s: %w", name, err)
	}
	return nil
}

func (s *Server) admin(do func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var c *pgx.Conn
	select {
	case c = <-s.idle:
	default:
		var err error
		if c, err = pgx.Connect(ctx, s.DSN("postgres")); err != nil {
			return err
		}
	}
	err := do(ctx, c)
	if err == nil {
		select {
		case s.idle <- c:
			return nil
		default:
		}
	}
	c.Close(ctx)
	return err
}

// identifier makes a database name of a test name.
func identifier(test string) string {
	id := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '_'
	}, test)
	return id[:min(len(id), 48)]
}
