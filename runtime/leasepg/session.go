package leasepg

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// durable makes the transaction wait for the disk whatever the role's default is: a
// granted epoch must survive the server.
func durable(ctx context.Context) step {
	return func(q *leasedb.Queries) error { return q.Durable(ctx) }
}

// hasty lets a transaction that gives leases away or buries a session be seen before it is on disk: the next owner's, which is durable, comes after
// it in the server's log, and so takes it there. If the server crashes before that happens, the lease is still its former owner's:
// that is gone, as after a crash of its own, or finds a lease that only the server knows of, and gives it back again.
func hasty(ctx context.Context) step {
	return func(q *leasedb.Queries) error { return q.Hasty(ctx) }
}

// steady makes the plans of what follows in the transaction independent of statistics.
func steady(ctx context.Context) step {
	return func(q *leasedb.Queries) error { return q.Steady(ctx) }
}

// sessions are those of this process.
type sessions struct {
	*known
	open    sync.Map // id → *session
	beliefs beliefs  // of sessions that were found without their lock
	polls   bool     // no session waits for others on a connection of its own
}

// session is one incarnation of this process. It has a connection of its own, so that no
// handler can starve the heartbeat, and holds an advisory lock on it: the lock is gone when
// the process is, at once (see watch.go). Advisory locks of consumers are held on it too
// (locks.go).
type session struct {
	ss   *sessions
	spec backend.SessionSpec

	turn    chan struct{} // has room for the one who uses what follows
	conn    *pgx.Conn     // nil until needed
	opened  bool          // the row is there
	history string        // of the server that it was opened on
	links   int           // connections so far
	key     int64         // of the lock that conn holds; 0 without
	pid     uint32        // of conn's backend
	locked  map[string]bool

	mu     sync.Mutex
	led    map[string]leadership // consumers with an advisory lock that the session leads
	listen context.CancelFunc
	unlink context.CancelFunc // ends the opening of a connection; nil before the first

	wanting   atomic.Int32 // callers that wait for their turn
	called    atomic.Int64 // when the runtime asked for a heartbeat last, since born
	born      time.Time
	opening   time.Time    // until when it is to be open; zero: no time is set
	returned  atomic.Int64 // when a broken connection was replaced last, since born; 0: none was
	apart     atomic.Int64 // when the connection broke, since born; 0: it has been replaced
	waits     atomic.Bool  // something waits for the locks of others
	ended     atomic.Bool
	closing   atomic.Bool // ended by Close, which still needs the connection: it has the locks
	estranged atomic.Bool // the server has another history by now
	abandoned atomic.Bool
	alarm     chan struct{}
	stop      context.CancelFunc // of watch and of a waiter
	watched   chan struct{}      // closed when watch has returned
	waited    chan struct{}      // and when the waiter has
}

// OpenSession starts a new incarnation of this process.
func (ss *sessions) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	if spec.ID == "" || spec.TTL <= 0 {
		return nil, fmt.Errorf("leasepg: open session: id %q with ttl %v: both must be set", spec.ID, spec.TTL)
	}
	if err := backend.CheckNames(spec.Consumers...); err != nil {
		return nil, err
	}
	spec.Consumers = append([]string{}, spec.Consumers...)
	s := &session{
		ss: ss, spec: spec, turn: make(chan struct{}, 1), locked: map[string]bool{}, led: map[string]leadership{},
		born: time.Now(), alarm: make(chan struct{}, 1), watched: make(chan struct{}), waited: make(chan struct{}),
	}
	if before := ss.session(spec.Replaces); before != nil {
		before.ended.Store(true)
		before.abandon() // with its locks
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.opening, _ = ctx.Deadline()
	ss.open.Store(spec.ID, s)
	if err := s.use(ctx, func(context.Context, *pgx.Conn) error { return nil }); err != nil {
		s.abandon()
		close(s.watched)
		close(s.waited)
		return nil, ss.fail("open session", err)
	}
	if ss.pooled.Load() {
		close(s.watched)
	} else {
		go s.watch(watching)
	}
	go s.rehearse(watching)
	if ss.pooled.Load() || ss.polls {
		close(s.waited)
	} else {
		go (&waiter{s: s}).wait(watching)
	}
	return s, nil
}

// Heartbeat extends the session. One row is written; none when the session
// lives by its lock.
func (s *session) Heartbeat(ctx context.Context) error {
	s.called.Store(int64(time.Since(s.born)))
	if s.ended.Load() {
		return backend.ErrSessionLost
	}
	err := s.use(ctx, func(ctx context.Context, c *pgx.Conn) error {
		var live bool
		if s.estranged.Load() {
			s.end()
			return backend.ErrSessionLost
		}
		expected := s.ss.expect(ctx, s.spec.ID)
		beat := []step{durable(ctx), expected, func(q *leasedb.Queries) error {
			n, err := q.Heartbeat(ctx, s.spec.ID)
			live = n == 1
			return err
		}}
		if s.spec.Advisory {
			beat = []step{expected, func(q *leasedb.Queries) (err error) {
				live, err = q.SessionHeld(ctx, s.spec.ID)
				return err
			}}
		}
		err := s.ss.pipeline(ctx, c, beat...)
		if errors.Is(err, backend.ErrSessionLost) {
			s.ss.estrangeNamed(err, s.spec.ID)
			s.end()
		}
		if err != nil {
			return err
		}
		if !live {
			s.end()
			return backend.ErrSessionLost
		}
		return nil
	})
	return s.ss.fail("heartbeat", err)
}

// Close ends the session and frees its leases, and the locks with them: the others are notified when both are free. A lock is gone
// a moment before the transaction ends. A process that takes it then finds the row of the lease locked, and gives it back.
func (s *session) Close(ctx context.Context) error {
	s.stop()
	select {
	case <-s.watched:
	case <-ctx.Done():
	}
	s.closing.Store(true)
	ended := s.ended.Swap(true)
	err := s.use(ctx, func(ctx context.Context, c *pgx.Conn) error {
		steps := append([]step{hasty(ctx)}, s.ss.closing(ctx, s.spec.ID, s.spec.Consumers)...)
		if s.pid != c.PgConn().PID() && s.leadsByLock() { // its locks are the former connection's, which the server may still have
			if err := s.ss.pipeline(ctx, c, steps...); err != nil {
				return err
			}
			if err := s.ss.queries(c).EndHolders(ctx, leasedb.EndHoldersParams{Key: s.key, Pid: int32(s.pid)}); err != nil {
				return err
			}
			return s.ss.pipeline(ctx, c, s.ss.notify(ctx, wakeOwnership))
		}
		var keys []int64
		for consumer := range s.locked {
			keys = append(keys, s.ss.lockKey(consumer))
		}
		if len(keys) > 0 {
			steps = append(steps, func(q *leasedb.Queries) error { return q.Unlock(ctx, keys) })
		}
		return s.ss.pipeline(ctx, c, append(steps, s.ss.notify(ctx, wakeOwnership))...)
	})
	if err != nil && !ended {
		s.ended.Store(false) // may be tried again
	}
	s.abandon()
	select { // so that a process that ends now leaves no connection behind
	case <-s.waited:
	case <-ctx.Done():
	}
	return s.ss.fail("close session", err)
}

// leadsByLock reports whether the session leads a consumer by its lock.
func (s *session) leadsByLock() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.led {
		if l.locked {
			return true
		}
	}
	return false
}

// closing are steps that end a session and free its leases.
func (ss *sessions) closing(ctx context.Context, id string, consumers []string) []step {
	leases := leasedb.FreeSessionLeasesParams{Consumers: consumers, Session: id}
	return []step{
		func(q *leasedb.Queries) error { _, err := q.CloseSession(ctx, id); return err },
		func(q *leasedb.Queries) error {
			_, err := q.LockSessionLeases(ctx, leasedb.LockSessionLeasesParams(leases))
			return err
		},
		func(q *leasedb.Queries) error { _, err := q.FreeSessionLeases(ctx, leases); return err },
	}
}

// Alarm is ready when the connection broke or the session has ended, so that the runtime
// need not wait for the next heartbeat to learn what is left of its leases.
func (s *session) Alarm() <-chan struct{} {
	if s.ss.pooled.Load() {
		return nil // watch does not run
	}
	return s.alarm
}

func (s *session) raise() {
	select {
	case s.alarm <- struct{}{}:
	default:
	}
}

// use runs f on the session's connection when its turn has come. f does not end with the
// caller's context: pgx closes the connection of a statement that was cancelled, and with it
// go the locks. It has a time of its own, after which the connection counts as broken, and so has opening one.
func (s *session) use(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	if err := s.await(ctx); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		err := s.run(context.WithoutCancel(ctx), f)
		if s.abandoned.Load() || s.ended.Load() && !s.closing.Load() { // while this waited for its turn
			s.drop()
		}
		<-s.turn
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

const longest = 10 * time.Second

// patience is how long the session waits for the server before it gives a connection up.
func (s *session) patience() time.Duration {
	return min(max(s.spec.TTL/3, 250*time.Millisecond), longest)
}

// linking is how long a server may take to give the session a connection: longer than an answer, since to begin again would cost a slow
// server as much once more, and so short that one more try comes before others cease to believe in the session. The first connection has the
// time of the caller.
func (s *session) linking() time.Duration {
	if !s.opened {
		if s.opening.IsZero() {
			return linkMost
		}
		return min(time.Until(s.opening), linkMost)
	}
	left := s.spec.TTL - s.patience()
	if apart := s.apart.Load(); apart > 0 {
		left -= time.Since(s.born) - time.Duration(apart)
	}
	return min(max(left, s.patience()), longest)
}

// await waits for the caller's turn.
func (s *session) await(ctx context.Context) error {
	s.wanting.Add(1)
	defer s.wanting.Add(-1)
	s.mu.Lock()
	if s.listen != nil {
		s.listen()
	}
	s.mu.Unlock()
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run calls f with a connection, which it opens when there is none. A connection that had
// broken since its last use costs a new one alone: work that runs here is safe to repeat.
func (s *session) run(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	for {
		fresh := s.conn == nil
		if fresh {
			if err := s.link(ctx); err != nil {
				return err
			}
		}
		late, err := s.call(ctx, f)
		if err == nil || s.conn == nil { // nil: f has ended the session
			return err
		}
		broken := s.conn.IsClosed() || late
		if broken {
			s.drop()
		}
		if fresh || !broken || late {
			return err
		}
	}
}

// call is one call of f with the connection, and tells whether the session has lost its patience with that.
func (s *session) call(ctx context.Context, f func(context.Context, *pgx.Conn) error) (late bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	err = f(ctx, s.conn)
	return ctx.Err() != nil, err
}

// link opens the connection, takes the session's lock on it, and only then says so in the
// session's row. Each connection has a lock of its own: the server may still hold that of
// the one before, which was cut off.
func (s *session) link(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.linking())
	defer cancel()
	s.mu.Lock()
	s.unlink = cancel
	s.mu.Unlock()
	if s.abandoned.Load() && !s.closing.Load() {
		return backend.ErrSessionLost
	}
	c, err := s.ss.connect(ctx)
	if err != nil {
		return err
	}
	if err := s.join(ctx, c); err != nil {
		closeConn(c)
		s.locked = map[string]bool{}
		if errors.Is(err, backend.ErrSessionLost) {
			s.end()
		}
		return err
	}
	s.conn = c
	s.apart.Store(0)
	return nil
}

func (s *session) join(ctx context.Context, c *pgx.Conn) (err error) {
	if s.opened && (s.key == 0 || s.ended.Load()) {
		return nil // behind a pooler there is no lock to report; at the end none is needed
	}
	if err := s.ss.detectPooler(ctx, c); err != nil {
		return err
	}
	s.links++
	before, pid, key, shown := s.key, s.pid, int64(0), false
	if s.ss.pooled.Load() {
		if s.spec.Advisory {
			return errPooledLock
		}
	} else {
		key = sessionKey(s.spec.ID, s.links)
		var held bool
		if held, shown, err = s.appear(ctx, c, key, s.opened); err != nil {
			return err
		}
		if !held {
			return fmt.Errorf("the advisory lock %d of the session is held by someone else", key)
		}
	}
	s.key, s.pid = key, c.PgConn().PID()
	defer func() {
		if err != nil && s.opened { // the former connection is still the one that may have locks
			s.key, s.pid = before, pid
		}
	}()
	var live bool
	if !s.opened {
		topics, err := json.Marshal(s.spec.Topics)
		if err != nil {
			return err
		}
		steps := append([]step{durable(ctx),
			func(q *leasedb.Queries) (err error) { s.history, err = q.History(ctx); return err }}, s.replace(ctx)...)
		err = s.ss.pipeline(ctx, c, append(steps,
			func(q *leasedb.Queries) error {
				n, err := q.OpenSession(ctx, leasedb.OpenSessionParams{
					ID: s.spec.ID, Host: s.spec.Host, Pid: int32(s.spec.PID), Consumers: s.spec.Consumers, Topics: string(topics),
					Ttl: s.spec.TTL, Advisory: s.spec.Advisory, LockKey: key,
				})
				live = n == 1
				return err
			},
			s.ss.notify(ctx, wakeOwnership))...)
		if err == nil && !live {
			return backend.ErrSessionLost // it has ended, or was replaced before this arrived
		}
		s.opened = err == nil
		return err
	}
	err = s.ss.pipeline(ctx, c, durable(ctx), s.ss.expect(ctx, s.spec.ID), func(q *leasedb.Queries) error {
		n, err := q.RejoinSession(ctx, leasedb.RejoinSessionParams{ID: s.spec.ID, LockKey: key})
		live = n == 1
		return err
	}, func(q *leasedb.Queries) error {
		return q.HideSign(ctx, leasedb.HideSignParams{ID: s.spec.ID, Shown: shown}) // until this is committed the row is locked
	})
	if errors.Is(err, backend.ErrSessionLost) {
		s.ss.estrangeNamed(err, s.spec.ID)
	}
	if err != nil {
		return err
	}
	if !live {
		return backend.ErrSessionLost
	}
	s.comeBack()
	return s.leadAgain(ctx, c, before, pid)
}

// appear takes the lock with a key if it is to be had. A session that comes back shows before all else that its process lives.
func (s *session) appear(ctx context.Context, c *pgx.Conn, key int64, back bool) (held, shown bool, err error) {
	steps := []step{s.guard(ctx)}
	if back {
		steps = append(steps, func(q *leasedb.Queries) (err error) { shown, err = q.ShowSign(ctx, s.spec.ID); return err })
	}
	steps = append(steps, func(q *leasedb.Queries) (err error) { held, err = q.TryLock(ctx, key); return err })
	err = s.ss.pipeline(ctx, c, steps...)
	return held, shown, err
}

// replace ends the session that this one stands in for, and frees what it held.
func (s *session) replace(ctx context.Context) []step {
	before := s.spec.Replaces
	if before == "" {
		return nil
	}
	return []step{
		func(q *leasedb.Queries) error {
			return q.EndReplaced(ctx, leasedb.EndReplacedParams{
				ID: before, Host: s.spec.Host, Pid: int32(s.spec.PID), Consumers: s.spec.Consumers, Ttl: s.spec.TTL,
			})
		},
		func(q *leasedb.Queries) error { _, err := q.LockReplacedLeases(ctx, before); return err },
		func(q *leasedb.Queries) error { _, err := q.FreeReplacedLeases(ctx, before); return err },
	}
}

// guard has the server end the connection of a frozen or unreachable process after the TTL.
func (s *session) guard(ctx context.Context) step {
	ttl := min(max(s.spec.TTL.Milliseconds(), 1000), math.MaxInt32) // a second is the least TTL of a consumer
	return func(q *leasedb.Queries) error {
		return q.GuardConnection(ctx, leasedb.GuardConnectionParams{TtlMs: ttl, KeepaliveS: int32(max(ttl/3000, 1))})
	}
}

// sessionKey is the lock of a session's nth connection: as random as the session's id.
func sessionKey(id string, n int) int64 {
	sum := sha256.Sum256([]byte("leasegen/session/" + id + "/" + strconv.Itoa(n)))
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// drop gives the connection up. It is called by who has the turn.
func (s *session) drop() {
	if s.conn != nil {
		closeConn(s.conn)
		s.conn = nil
		s.apart.CompareAndSwap(0, int64(time.Since(s.born)))
		s.locked = map[string]bool{}
		s.raise()
	}
}

// end is for a session that was found dead: it lets go of all locks. It is called by who has
// the turn.
func (s *session) end() {
	s.ended.Store(true)
	s.ss.open.CompareAndDelete(s.spec.ID, s)
	s.stop()
	s.drop()
	s.raise()
}

// abandon lets go of the connection, now or at the end of its present use.
func (s *session) abandon() {
	s.ss.open.CompareAndDelete(s.spec.ID, s)
	s.stop()
	s.abandoned.Store(true)
	s.mu.Lock()
	if s.unlink != nil && !s.closing.Load() { // Close may still need what it opens
		s.unlink()
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.await(ctx) == nil {
		s.drop()
		<-s.turn
	}
}
