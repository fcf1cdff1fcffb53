package leasepg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

var errPooledLock = errors.New("lock=advisory needs a connection that stays with its process, and this one goes through a transaction pooler: " +
	"give leasegen a direct connection to the server, or use lock=session")

// lockKey is the advisory lock of a consumer. Locks belong to the whole database, consumers to
// a schema of it: in one of another name they have keys of their own.
func (sv *server) lockKey(consumer string) int64 {
	if sv.schema.name != defaultSchema {
		consumer = sv.schema.name + "\x00" + consumer
	}
	return LockKey(consumer)
}

// session returns a session that lives in this process.
func (ss *sessions) session(id string) *session {
	if s, ok := ss.open.Load(id); ok {
		return s.(*session)
	}
	return nil
}

// acquireAdvisory takes the lease of a consumer by its advisory lock. The lock comes first:
// who holds it knows that no other owner by that lock is left, and bumps the epoch in the
// same session. A lock that brings no lease is given back.
func (o *owner) acquireAdvisory(ctx context.Context, req backend.AcquireRequest) (grants []backend.Grant, err error) {
	s := o.session(req.Session)
	if s == nil {
		return nil, backend.ErrSessionLost
	}
	name, key := req.Consumer.Name, o.lockKey(req.Consumer.Name)
	result := make(chan []backend.Grant, 1)
	err = s.use(ctx, func(ctx context.Context, c *pgx.Conn) error {
		if s.key == 0 {
			return errPooledLock
		}
		if !s.locked[name] { // locks of one session pile up: it takes each once
			held, err := o.queries(c).TryLock(ctx, key)
			if err != nil {
				return err
			}
			if held {
				s.locked[name] = true
			} else {
				strangers, err := o.strangers(ctx, c, name, key)
				if err != nil || !strangers {
					return err // a member has it, or has just had it
				}
				// The lease alone decides then: it is free when its owner's session is dead.
				req.Consumer.Lock = backend.LockSession
			}
		}
		granted, err := o.acquire(ctx, c, req)
		if err == nil && len(granted) > 0 {
			s.mu.Lock()
			s.led[name] = leadership{granted[0].Epoch, s.locked[name]}
			s.mu.Unlock()
			result <- granted
			return nil
		}
		if errors.Is(err, backend.ErrSessionLost) {
			s.end()
			return err
		}
		if s.leads(name) || c.IsClosed() {
			return err
		}
		return errors.Join(err, s.unlock(ctx, c, name))
	})
	if err != nil {
		return nil, o.fail("acquire the lease of "+name, err)
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
		err := s.ss.pipeline(ctx, c, hasty(ctx), func(q *leasedb.Queries) (err error) {
			released, err = q.ReleaseLeases(ctx, p)
			return err
		})
		if err != nil {
			return err
		}
		s.mu.Lock()
		leads, led := s.led[p.Consumer]
		for _, e := range p.Epochs {
			if led && e == leads.epoch { // a repeated call finds the lease free and may have left the lock
				released++
			}
		}
		if released > 0 {
			delete(s.led, p.Consumer)
		}
		s.mu.Unlock()
		if released == 0 {
			return nil
		}
		if s.locked[p.Consumer] {
			if err := s.unlock(ctx, c, p.Consumer); err != nil {
				return err
			}
		}
		return s.ss.pipeline(ctx, c, s.ss.notify(ctx, wakeOwnership))
	})
}

// leadership is of a consumer with lock=advisory. locked: by its lock; without it strangers have that.
type leadership struct {
	epoch  int64
	locked bool
}

// unlock gives the lock of a consumer back, if the session has it; if that fails, with the whole connection.
func (s *session) unlock(ctx context.Context, c *pgx.Conn, consumer string) error {
	if !s.locked[consumer] {
		return nil
	}
	if err := s.ss.queries(c).Unlock(ctx, []int64{s.ss.lockKey(consumer)}); err != nil {
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
func (s *session) leadAgain(ctx context.Context, c *pgx.Conn, before int64, pid uint32) error {
	s.mu.Lock()
	p := leasedb.LeasesUnchangedParams{Session: s.spec.ID}
	keys, names := []int64{}, []string(nil)
	for consumer, leads := range s.led {
		p.Consumers, p.Epochs = append(p.Consumers, consumer), append(p.Epochs, leads.epoch)
		if leads.locked {
			keys, names = append(keys, s.ss.lockKey(consumer)), append(names, consumer)
		}
	}
	s.mu.Unlock()
	if len(p.Consumers) == 0 {
		return nil
	}
	var held, unchanged bool
	err := s.ss.pipeline(ctx, c,
		func(q *leasedb.Queries) error {
			return q.EndHolders(ctx, leasedb.EndHoldersParams{Key: before, Pid: int32(pid)})
		},
		func(q *leasedb.Queries) (err error) { held, err = q.TryLocks(ctx, keys); return err },
		func(q *leasedb.Queries) (err error) { unchanged, err = q.LeasesUnchanged(ctx, p); return err })
	if err != nil {
		return err
	}
	if !held || !unchanged {
		return backend.ErrSessionLost
	}
	for _, consumer := range names {
		s.locked[consumer] = true
	}
	return nil
}

// strangers tells whether no member holds the lock of a consumer, and reports each stranger that does once. Every role that may
// connect can take an advisory lock. The connection of a session that has ended is none: the server ends it after the TTL.
func (o *owner) strangers(ctx context.Context, c *pgx.Conn, consumer string, key int64) (bool, error) {
	holders, err := o.queries(c).ConsumerHolders(ctx, leasedb.ConsumerHoldersParams{Key: key, Consumer: consumer})
	if err != nil || len(holders) == 0 {
		return false, err
	}
	for _, h := range holders {
		if h.Member {
			return false, nil
		}
	}
	for _, h := range holders {
		if h.Former {
			continue
		}
		if _, told := o.squatters.LoadOrStore(fmt.Sprint(consumer, " ", h.Pid), true); !told {
			o.log.Error("leasepg: the advisory lock of a consumer is held by a connection that is not one of its processes; its lease decides who leads",
				"consumer", consumer, "key", key, "pid", h.Pid, "application_name", h.Application, "role", h.Role,
				"fix", fmt.Sprintf("find out who uses the key, or SELECT pg_terminate_backend(%d)", h.Pid))
		}
	}
	return true, nil
}

// held adds to an error about a lock that could not be shared in time who has it. All processes calculate its key from its name.
func (o *owner) held(ctx context.Context, err error, name string) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != lockNotAvailable {
		return err
	}
	holders, e := o.queries(o.pool).NamedHolders(ctx, name)
	if e != nil || len(holders) == 0 {
		return err
	}
	h := holders[0]
	return fmt.Errorf("%w: the advisory lock %s is held by pid %d (role %s, application %q); unless that is a process of leasegen, "+
		"find out who uses the key, or SELECT pg_terminate_backend(%d)", err, name, h.Pid, h.Role, h.Application, h.Pid)
}
