package leasepg

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// connect opens a connection outside the pool, to the pool's server.
func (b *Backend) connect(ctx context.Context) (*pgx.Conn, error) {
	c := b.pool.Config().ConnConfig // a copy
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "leasegen" // to be told apart in pg_stat_activity
	}
	return pgx.ConnectConfig(ctx, c)
}

func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c.Close(ctx)
}

// OpenSession starts a new incarnation of this process.
func (b *Backend) OpenSession(ctx context.Context, spec lease.SessionSpec) (lease.Session, error) {
	if spec.ID == "" || spec.TTL <= 0 {
		return nil, fmt.Errorf("leasepg: open session: id %q with ttl %v: both must be set", spec.ID, spec.TTL)
	}
	s := &session{b: b, id: spec.ID, ttl: spec.TTL, consumers: append([]string{}, spec.Consumers...)}
	b.ttl.Store(int64(spec.TTL))
	err := s.onConn(ctx, func(c *pgx.Conn) error {
		return b.pipeline(ctx, c, durable(ctx),
			func(q *leasedb.Queries) error {
				return q.OpenSession(ctx, leasedb.OpenSessionParams{
					ID: spec.ID, Host: spec.Host, Pid: int32(spec.PID), Consumers: s.consumers, Ttl: spec.TTL,
				})
			},
			b.notify(ctx, wakeOwnership))
	})
	if err != nil {
		s.disconnect()
		return nil, b.fail("open session", err)
	}
	return s, nil
}

// durable makes the transaction wait for the disk whatever the role's default is: a
// granted epoch must survive the server.
func durable(ctx context.Context) step {
	return func(q *leasedb.Queries) error { return q.Durable(ctx) }
}

type session struct {
	b         *Backend
	id        string
	ttl       time.Duration
	consumers []string

	mu   sync.Mutex
	conn *pgx.Conn // its own: no handler can starve the heartbeat
}

// Heartbeat extends the session. One row is written, and nothing else.
func (s *session) Heartbeat(ctx context.Context) error {
	// A call that hangs must leave time for another try within the TTL.
	ctx, cancel := context.WithTimeout(ctx, s.ttl/3)
	defer cancel()
	var rows int64
	err := s.onConn(ctx, func(c *pgx.Conn) error {
		return s.b.pipeline(ctx, c, durable(ctx), func(q *leasedb.Queries) (err error) {
			rows, err = q.Heartbeat(ctx, s.id)
			return err
		})
	})
	if err != nil {
		return s.b.fail("heartbeat", err)
	}
	if rows == 0 {
		return lease.ErrSessionLost
	}
	return nil
}

// Close ends the session and frees its leases.
func (s *session) Close(ctx context.Context) error {
	err := s.onConn(ctx, func(c *pgx.Conn) error {
		return s.b.pipeline(ctx, c, durable(ctx),
			func(q *leasedb.Queries) error { _, err := q.CloseSession(ctx, s.id); return err },
			func(q *leasedb.Queries) error {
				_, err := q.LockSessionLeases(ctx, leasedb.LockSessionLeasesParams{Consumers: s.consumers, Session: s.id})
				return err
			},
			func(q *leasedb.Queries) error {
				_, err := q.FreeSessionLeases(ctx, leasedb.FreeSessionLeasesParams{Consumers: s.consumers, Session: s.id})
				return err
			},
			s.b.notify(ctx, wakeOwnership))
	})
	s.disconnect()
	return s.b.fail("close session", err)
}

// onConn runs f on the session's connection, which it opens when there is none and
// gives up after any failure that may have broken it. A connection that had broken
// since its last use costs nothing but a new one: what runs here is safe to repeat.
func (s *session) onConn(ctx context.Context, f func(*pgx.Conn) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		used := s.conn != nil
		if !used {
			c, err := s.b.connect(ctx)
			if err != nil {
				return err
			}
			s.conn = c
		}
		err := f(s.conn)
		if err == nil {
			return nil
		}
		broken := s.conn.IsClosed()
		if broken || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			closeConn(s.conn)
			s.conn = nil
		}
		if !used || !broken || ctx.Err() != nil {
			return err
		}
	}
}

func (s *session) disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		closeConn(s.conn)
		s.conn = nil
	}
}
