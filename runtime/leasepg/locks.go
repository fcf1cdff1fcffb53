package leasepg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

var errPooledLock = errors.New("lock=advisory needs a connection that stays with its process, and this one goes through a transaction pooler: " +
	"give leasegen a direct connection to the server, or use lock=session")

// lockKey is the advisory lock of a consumer. Locks belong to the whole database, consumers to
// a schema of it: in one of another name they have keys of their own.
func (b *Backend) lockKey(consumer string) int64 {
	if b.schema.name != defaultSchema {
		consumer = b.schema.name + "\x00" + consumer
	}
	return lease.LockKey(consumer)
}

// session returns a session that lives in this process.
func (b *Backend) session(id string) *session {
	if s, ok := b.sessions.Load(id); ok {
		return s.(*session)
	}
	return nil
}

// acquireAdvisory takes the lease of a consumer by its advisory lock. The lock comes first:
// who holds it knows that no other owner by that lock is left, and bumps the epoch in the
// same session. A lock that brings no lease is given back.
func (b *Backend) acquireAdvisory(ctx context.Context, req lease.AcquireRequest) (grants []lease.Grant, err error) {
	s := b.session(req.Session)
	if s == nil {
		return nil, lease.ErrSessionLost
	}
	name, key := req.Consumer.Name, b.lockKey(req.Consumer.Name)
	result := make(chan []lease.Grant, 1)
	err = s.use(ctx, func(ctx context.Context, c *pgx.Conn) error {
		if s.key == 0 {
			return errPooledLock
		}
		if !s.locked[name] { // locks of one session pile up: it takes each once
			held, err := b.queries(c).TryLock(ctx, key)
			if err != nil {
				return err
			}
			if !held {
				return b.tellSquatter(ctx, c, name, key)
			}
			s.locked[name] = true
		}
		granted, err := b.acquire(ctx, c, req)
		if err == nil && len(granted) > 0 {
			s.mu.Lock()
			s.led[name] = granted[0].Epoch
			s.mu.Unlock()
			result <- granted
			return nil
		}
		if errors.Is(err, lease.ErrSessionLost) {
			s.end()
			return err
		}
		if s.leads(name) || c.IsClosed() {
			return err
		}
		return errors.Join(err, s.unlock(ctx, c, name))
	})
	if err != nil {
		return nil, b.fail("acquire the lease of "+name, err)
	}
	select {
	case grants = <-result:
	default:
	}
	return grants, nil
}

// releaseAdvisory frees the lease, then the lock, and then tells the standbys, so that the
// first to come finds both free.
func (s *session) releaseAdvisory(ctx context.Context, p leasedb.ReleaseLeasesParams) error {
	return s.use(ctx, func(ctx context.Context, c *pgx.Conn) error {
		var released int64
		err := s.b.pipeline(ctx, c, durable(ctx), func(q *leasedb.Queries) (err error) {
			released, err = q.ReleaseLeases(ctx, p)
			return err
		})
		if err != nil {
			return err
		}
		s.mu.Lock()
		epoch, led := s.led[p.Consumer]
		for _, e := range p.Epochs {
			if led && e == epoch { // a repeated call finds the lease free and may have left the lock
				released++
			}
		}
		if released > 0 {
			delete(s.led, p.Consumer)
		}
		s.mu.Unlock()
		if released == 0 || !s.locked[p.Consumer] {
			return nil
		}
		if err := s.unlock(ctx, c, p.Consumer); err != nil {
			return err
		}
		return s.b.pipeline(ctx, c, s.b.notify(ctx, wakeOwnership))
	})
}

// unlock gives the lock of a consumer back; if that fails, with the whole connection.
func (s *session) unlock(ctx context.Context, c *pgx.Conn, consumer string) error {
	if err := s.b.queries(c).Unlock(ctx, []int64{s.b.lockKey(consumer)}); err != nil {
		s.drop()
		return err
	}
	delete(s.locked, consumer)
	return nil
}

// leads tells whether the session holds the lease of a consumer by an advisory lock.
func (s *session) leads(consumer string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.led[consumer]
	return ok
}

// leadAgain takes the advisory locks of a new connection that the one before held. Unless all
// are to be had, and the leases have not changed, the session is lost: somebody may lead by now.
func (s *session) leadAgain(ctx context.Context, c *pgx.Conn, before int64) error {
	s.mu.Lock()
	p := leasedb.LeasesUnchangedParams{Session: s.spec.ID}
	var keys []int64
	for consumer, epoch := range s.led {
		p.Consumers, p.Epochs = append(p.Consumers, consumer), append(p.Epochs, epoch)
		keys = append(keys, s.b.lockKey(consumer))
	}
	s.mu.Unlock()
	if len(keys) == 0 {
		return nil
	}
	var held, unchanged bool
	err := s.b.pipeline(ctx, c,
		func(q *leasedb.Queries) error { return q.EndHolders(ctx, before) },
		func(q *leasedb.Queries) (err error) { held, err = q.TryLocks(ctx, keys); return err },
		func(q *leasedb.Queries) (err error) { unchanged, err = q.LeasesUnchanged(ctx, p); return err })
	if err != nil {
		return err
	}
	if !held || !unchanged {
		return lease.ErrSessionLost
	}
	for _, consumer := range p.Consumers {
		s.locked[consumer] = true
	}
	return nil
}

// tellSquatter says, once, that the lock of a consumer is held by a stranger.
func (b *Backend) tellSquatter(ctx context.Context, c *pgx.Conn, consumer string, key int64) error {
	squatters, err := b.queries(c).LockSquatter(ctx, leasedb.LockSquatterParams{Key: key, Consumer: consumer})
	if err != nil {
		return err
	}
	for _, q := range squatters {
		if _, told := b.squatters.LoadOrStore(fmt.Sprint(consumer, " ", q.Pid), true); !told {
			b.log.Error("leasepg: the advisory lock of a consumer is held by a connection that is not one of its processes; nobody leads until it ends",
				"consumer", consumer, "key", key, "pid", q.Pid, "application_name", q.Application, "role", q.Role,
				"fix", fmt.Sprintf("find out who uses the key, or SELECT pg_terminate_backend(%d)", q.Pid))
		}
	}
	return nil
}
