package pgtest

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Replica starts a streaming standby of s, made by pg_basebackup, and stops it when the test
// ends. It is asynchronous until MakeSynchronous.
func (s *Server) Replica(t testing.TB) *Server {
	t.Helper()
	r, err := s.replica()
	if err != nil {
		t.Fatal(err)
	}
	r.Fail = func(err error) { t.Helper(); t.Fatal(err) }
	t.Cleanup(r.Close)
	r.LogOnFailure(t)
	return r
}

// MakeSynchronous makes commits on s wait for its replica from now on.
func (s *Server) MakeSynchronous() {
	s.run(s, "ALTER SYSTEM SET synchronous_standby_names = '*'", nil)
	s.run(s, "SELECT pg_reload_conf()::text", new(string))
	s.await("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
}

func (s *Server) replica() (*Server, error) {
	r := &Server{bin: s.bin, cred: s.cred, config: slices.Clone(s.config), disk: s.disk, wal: s.wal}
	err := r.launch(func() error {
		return r.fill("pg_basebackup", "--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--wal-method=stream", "--dbname="+s.DSN("postgres"))
	})
	if err != nil {
		return nil, fmt.Errorf("pgtest: replica: %w", err)
	}
	return r, nil
}

// Detach cuts a replica off from its primary, once it has all that was written there until
// now: what is written from now on it never gets.
func (s *Server) Detach(primary *Server) {
	var end string
	s.run(primary, "SELECT pg_current_wal_lsn()::text", &end)
	s.await("SELECT pg_last_wal_replay_lsn() >= '" + end + "'")
	s.run(s, "ALTER SYSTEM SET primary_conninfo = ''", nil)
	s.run(s, "SELECT pg_reload_conf()::text", new(string))
	s.await("SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")
}

// Promote makes a replica a primary, with a timeline of its own.
func (s *Server) Promote() {
	var done bool
	s.run(s, "SELECT pg_promote(true, 60)", &done)
	if !done {
		s.Fail(fmt.Errorf("pgtest: the replica in %s was not promoted", filepath.Base(s.Dir)))
	}
}

func (s *Server) await(condition string) {
	for deadline := time.Now().Add(effectTimeout); ; time.Sleep(5 * time.Millisecond) {
		var met bool
		if s.run(s, condition, &met); met {
			return
		}
		if time.Now().After(deadline) {
			s.Fail(fmt.Errorf("pgtest: within %v not: %s", effectTimeout, condition))
		}
	}
}

// run executes one statement on a server, and scans its value if one is wanted.
func (s *Server) run(on *Server, sql string, into any) {
	err := on.admin(func(ctx context.Context, c *pgx.Conn) error {
		if into == nil {
			_, err := c.Exec(ctx, sql)
			return err
		}
		return c.QueryRow(ctx, sql).Scan(into)
	})
	if err != nil {
		s.Fail(fmt.Errorf("pgtest: %s: %w", sql, err))
	}
}
