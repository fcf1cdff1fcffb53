package leasepg

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// How a process that died is found within half a second, whatever the TTL: every session
// holds an advisory lock on its connection, which the server gives up when the connection
// ends, and every session looks, on that same connection, whether the locks of the next two
// in the ring of live sessions are still held. Looking writes nothing.
//
// A lock that is gone proves death only on a server whose locks go back to when it was taken
// (incarnation() in the migrations); after a restart the TTL decides. Who has just lost a
// connection itself does not judge. Whoever was declared dead by mistake, in the moment
// between two connections, is fenced and opens a new session.
const (
	watchEvery = 400 * time.Millisecond
	// A connection that broke under a process that lives is back within this time.
	watchAgain = 30 * time.Millisecond
)

// watch looks after the other sessions, and keeps the server from taking this one for
// frozen, until ctx ends or the runtime has stopped asking for heartbeats.
func (s *session) watch(ctx context.Context) {
	defer close(s.watched)
	every := min(watchEvery, s.spec.TTL/4)
	again := time.Duration(0)
	for s.rest(ctx, again) {
		if time.Since(s.born)-time.Duration(s.called.Load()) > s.spec.TTL {
			// Nobody believes in this session any more: its locks must not live on.
			if s.await(ctx) == nil {
				s.end()
				<-s.turn
			}
			return
		}
		buried, err := s.bury(ctx)
		switch {
		case buried > 0:
			again = 0 // who comes after them in the ring may have died with them
		case err == nil:
			again = every - every/20 + rand.N(every/10+1)
		case ctx.Err() != nil || errors.Is(err, backend.ErrSessionLost):
			return
		default: // the runtime tells of it when it asks for a heartbeat
			again = min(max(2*again, watchAgain), every)
		}
	}
}

// rest waits for d, or until the connection breaks: then it is to be replaced at once.
func (s *session) rest(ctx context.Context, d time.Duration) bool {
	for end := time.Now().Add(d); ; {
		left := time.Until(end)
		if ctx.Err() != nil || left <= 0 {
			return ctx.Err() == nil
		}
		if s.await(ctx) != nil {
			return false
		}
		if s.conn == nil {
			<-s.turn
			select {
			case <-time.After(left):
			case <-ctx.Done():
			}
			continue
		}
		wait, cancel := context.WithTimeout(ctx, left)
		s.mu.Lock()
		s.listen = cancel
		s.mu.Unlock()
		if s.wanting.Load() == 0 {
			// Nothing is notified here: it returns when time is over, when somebody wants
			// the connection, or when that has broken.
			_ = s.conn.PgConn().WaitForNotification(wait)
		}
		s.mu.Lock()
		s.listen = nil
		s.mu.Unlock()
		cancel()
		broken := s.conn.IsClosed()
		if broken {
			s.drop()
		}
		<-s.turn
		if broken {
			return true
		}
	}
}

// bury buries sessions that have ended, and returns how many. Who was cut off itself leaves
// the others the time to come back, too: what broke may have been the network before the
// server.
func (s *session) bury(ctx context.Context) (buried int, err error) {
	var (
		suspects []string
		early    bool
	)
	err = s.use(ctx, func(ctx context.Context, c *pgx.Conn) (err error) {
		suspects, err = s.ss.queries(c).WatchSessions(ctx, s.spec.ID)
		early = !s.back.IsZero() && time.Since(s.back) < s.patience()
		return err
	})
	if err != nil || len(suspects) == 0 {
		return 0, err
	}
	for _, id := range suspects {
		if id == s.spec.ID {
			if err := s.await(ctx); err != nil {
				return 0, err
			}
			s.end()
			<-s.turn
			return 0, backend.ErrSessionLost
		}
	}
	if early {
		return 0, nil
	}
	time.Sleep(watchAgain)
	var found int // not buried itself: f may still run when use has returned
	err = s.use(ctx, func(ctx context.Context, c *pgx.Conn) error {
		var dead []leasedb.BurySessionsRow
		err := s.ss.pipeline(ctx, c, durable(ctx),
			func(q *leasedb.Queries) (err error) {
				dead, err = q.BurySessions(ctx, suspects)
				return err
			},
			func(q *leasedb.Queries) error {
				return q.NotifyIfBuried(ctx, leasedb.NotifyIfBuriedParams{Channel: s.ss.schema.name, Payload: wakeOwnership})
			})
		if err != nil {
			return err
		}
		for _, d := range dead {
			reason := "its connection ended"
			if d.Expired {
				reason = "it sent no heartbeat"
			}
			s.ss.log.Warn("leasepg: a session has died, its leases are free", "session", d.ID, "host", d.Host, "pid", d.Pid, "reason", reason)
		}
		found = len(dead)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return found, nil
}
