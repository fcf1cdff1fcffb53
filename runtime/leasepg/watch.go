package leasepg

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// How a process that died is found within milliseconds, whatever the TTL. Every session holds an advisory lock on its
// heartbeat connection, which the server gives up when the connection ends. The sessions that live are a ring, by their ids:
// each waits, on a connection of its own (wait.go), for the lock of the one that follows, and is granted it when the kernel of a
// process that died has closed its sockets.
//
// A lock that is free is no proof yet:
//
//   - After a restart of the server, or a crash of one of its processes, no lock is held. A lock proves something only on a
//     server whose locks go back to when it was taken (incarnation() in the migrations); else the TTL decides.
//   - The heartbeat connection of a process that lives may end: an operator, a pooler or the network ended it. Then the
//     connection on which the process itself waits is still there, and it holds a second lock. It is asked: the
//     statement with which it waits is cancelled (Nudge). A process that lives waits again and keeps its second lock, and has as
//     long as it takes to come back; the connection of one that died ends as the server finds that it cannot answer, and that of a
//     frozen one after waitIdle. So no time that somebody chose separates the two.
//   - All connections of a process that lives may end at once. It needs to connect again then. Who would bury it connects, too,
//     and gives it several times what that takes on the server as it is now: on a busy server it takes longer for both. Where the
//     connection that waits has ended without being asked it was not its process that died, mostly: a server process that waits for a lock does
//     not notice. Then the grace is graceAlone.
//   - Who was cut off itself leaves the others the time to come back (see early): what broke may have been the network before the
//     server. It does so before it looks and again before it buries.
//   - Who was frozen judges by nothing from before: what is buried is looked at again in the same statement, under the lock of
//     the session's row, and must still have the key whose lock was found free. Keys are never used again.
//
// Where there is no connection to wait on, because the application has chosen so or the server is full, a session looks at
// the ring every watchEvery on its heartbeat connection. A process that was declared dead by mistake is fenced and opens a new session.
const (
	watchEvery = 400 * time.Millisecond
	// A connection that broke under a process that lives is back within this time, mostly.
	watchAgain = 30 * time.Millisecond

	// What a session has to come back that was asked in vain: graceTimes what connecting takes, and at least graceLeast.
	graceLeast = 15 * time.Millisecond
	graceTimes = 3
	// The least for one that has lost its lock and had no second one when that was seen.
	graceAlone = 250 * time.Millisecond
)

// watch looks after the session's connection until ctx ends or the runtime has stopped asking for heartbeats, and after the
// other sessions while nothing waits for them.
func (s *session) watch(ctx context.Context) {
	defer close(s.watched)
	every := min(watchEvery, s.spec.TTL/4)
	again := time.Duration(0)
	ring := watcher{s: s, use: s.use}
	for s.rest(ctx, again) {
		if time.Since(s.born)-time.Duration(s.called.Load()) > s.spec.TTL {
			// Nobody believes in this session any more: its locks must not live on.
			s.endFor(ctx)
			return
		}
		var look time.Duration
		var err error
		if s.waits.Load() {
			err = s.use(ctx, func(context.Context, *pgx.Conn) error { return nil }) // is there a connection?
		} else {
			_, look, err = ring.look(ctx, aim{})
		}
		switch {
		case err == nil && look > 0:
			again = look
		case err == nil:
			again = every - every/20 + rand.N(every/10+1)
		case ctx.Err() != nil || errors.Is(err, backend.ErrSessionLost):
			return
		default: // the runtime tells of it when it asks for a heartbeat
			again = min(max(2*again, watchAgain), every)
		}
	}
}

// endFor ends the session when its connection is free.
func (s *session) endFor(ctx context.Context) {
	if s.await(ctx) == nil {
		s.end()
		<-s.turn
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

// early is how much longer the session must not judge others, because it has been cut off lately, or is so now.
func (s *session) early() time.Duration {
	if s.apart.Load() {
		return s.patience()
	}
	if back := s.returned.Load(); back > 0 {
		return s.patience() - (time.Since(s.born) - time.Duration(back))
	}
	return 0
}

// comeBack notes that a broken connection was replaced.
func (s *session) comeBack() { s.returned.Store(int64(time.Since(s.born))) }

// watcher looks at the sessions that follow one in the ring, and buries those that have ended. It belongs to one goroutine.
type watcher struct {
	s   *session
	use func(context.Context, func(context.Context, *pgx.Conn) error) error // runs a function with a connection

	seen   map[string]sighting // of the sessions around
	nudged int                 // looks in a row at sessions that had lost their lock and held the second
}

// sighting is what was seen of a session.
type sighting struct {
	key      int64
	answered bool      // the second lock was held when the first was gone: if it is free by now, it was asked in vain
	gone     time.Time // since when the lock with the key has been free; zero: it is held
}

// aim is what to wait for before looking: the lock with a key, or nothing but the time.
type aim struct {
	key  int64
	most time.Duration // 0: look at once
}

// look waits for what is aimed at, looks around, and does what is to be done. It returns what to wait for next; or, where some
// session is suspect, how soon to look again.
func (w *watcher) look(ctx context.Context, at aim) (next aim, again time.Duration, err error) {
	var around []leasedb.LookAroundRow
	id := w.s.spec.ID
	err = w.use(ctx, func(ctx context.Context, c *pgx.Conn) error {
		var steps []step
		if at.most > 0 {
			steps = append(steps,
				func(q *leasedb.Queries) error {
					return q.Aim(ctx, leasedb.AimParams{Ms: max(at.most.Milliseconds(), 1), Key: at.key})
				},
				func(q *leasedb.Queries) error {
					if at.key == 0 {
						return q.WaitForNudge(ctx)
					}
					return q.WaitForLock(ctx)
				})
		}
		var found []leasedb.LookAroundRow // f may still run when use has returned
		err := w.s.ss.pipeline(ctx, c, append(steps, func(q *leasedb.Queries) (err error) {
			found, err = q.LookAround(ctx, id)
			return err
		})...)
		if err == nil {
			around = found
		}
		return err
	})
	if err != nil {
		return aim{}, 0, err
	}
	self := slices.IndexFunc(around, func(r leasedb.LookAroundRow) bool { return r.ID == id })
	if self < 0 {
		w.s.endFor(ctx)
		return aim{}, 0, backend.ErrSessionLost
	}
	around = slices.Delete(around, self, self+1)
	slices.SortFunc(around, func(a, b leasedb.LookAroundRow) int { // in the order of the ring
		return cmp.Or(cmp.Compare(rank(a.ID, id), rank(b.ID, id)), cmp.Compare(a.ID, b.ID))
	})
	w.note(around)
	if again, err = w.judge(ctx, around); again > 0 || err != nil {
		return aim{}, again, err
	}
	w.nudged = 0
	return aimAt(around), 0, nil
}

// note keeps what is seen of the sessions around, and forgets the others.
func (w *watcher) note(around []leasedb.LookAroundRow) {
	seen := make(map[string]sighting, len(around))
	for _, r := range around {
		was := w.seen[r.ID]
		if r.Key != was.key {
			was = sighting{}
		}
		is := sighting{key: r.Key, answered: r.Gone && (r.Answers || was.answered)}
		switch {
		case r.Gone && !was.gone.IsZero():
			is.gone = was.gone
		case r.Gone:
			is.gone = time.Now()
		}
		seen[r.ID] = is
	}
	w.seen = seen
}

// rank is 0 for ids that follow one before the ring begins again.
func rank(id, after string) int {
	if id > after {
		return 0
	}
	return 1
}

const (
	waitMost = 5 * time.Second // the oldest snapshot that a statement which waits holds
	waitLess = time.Second     // while the lock of the next in the ring proves nothing
)

// aimAt is what to wait for when all is well around.
func aimAt(around []leasedb.LookAroundRow) aim {
	if len(around) == 0 {
		return aim{0, waitMost}
	}
	next := around[0]
	most := waitMost
	for _, r := range around {
		most = min(most, seconds(r.Remaining)+5*time.Millisecond)
	}
	switch {
	case next.Proves:
		return aim{next.Key, max(most, time.Millisecond)}
	case next.Key != 0:
		return aim{0, max(min(most, waitLess), time.Millisecond)}
	}
	return aim{0, max(most, time.Millisecond)} // behind a pooler the TTL decides
}

// judge does what is to be done about sessions around that have lost their lock or have expired, and returns how soon to look
// again: 0 when there are none.
func (w *watcher) judge(ctx context.Context, around []leasedb.LookAroundRow) (again time.Duration, err error) {
	var suspects leasedb.BuryGoneParams
	var answering []string
	var last time.Time // when a suspect lost its lock
	grace := time.Duration(0)
	for _, r := range around {
		switch {
		case r.Remaining < 0:
			suspects.Ids, suspects.Keys = append(suspects.Ids, r.ID), append(suspects.Keys, 0)
		case r.Gone && r.Answers:
			answering = append(answering, r.ID)
		case r.Gone:
			suspects.Ids, suspects.Keys = append(suspects.Ids, r.ID), append(suspects.Keys, r.Key)
			was := w.seen[r.ID]
			if was.gone.After(last) {
				last = was.gone
			}
			if grace = max(grace, graceLeast); !was.answered {
				grace = graceAlone
			}
		}
	}
	if len(suspects.Ids) == 0 && len(answering) == 0 {
		return 0, nil
	}
	if early := w.s.early(); early > 0 {
		return min(early, watchEvery/4), nil
	}
	if len(answering) > 0 {
		err = w.use(ctx, func(ctx context.Context, c *pgx.Conn) error { return w.s.ss.queries(c).Nudge(ctx, answering) })
		if err != nil {
			return 0, err
		}
	}
	if len(suspects.Ids) > 0 {
		found, err := w.bury(ctx, suspects, grace, last)
		if err != nil {
			return 0, err
		}
		if found > 0 {
			return time.Nanosecond, nil // who comes after them in the ring may have died with them
		}
	}
	w.nudged++
	return min(time.Millisecond<<min(w.nudged, 10), watchEvery), nil
}

// bury buries those of the suspects that have expired or have not come back within a grace, and returns how many. The grace
// counts from when the last of them lost its lock; 0: all have expired.
func (w *watcher) bury(ctx context.Context, suspects leasedb.BuryGoneParams, grace time.Duration, gone time.Time) (found int, err error) {
	use := w.use
	if grace > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, longest)
		defer cancel()
		began := time.Now()
		c, err := w.s.ss.connect(ctx)
		if took := time.Since(began); err == nil {
			defer closeConn(c)
			grace = max(grace, graceTimes*took)
			use = func(ctx context.Context, f func(context.Context, *pgx.Conn) error) error { return f(ctx, c) }
		} else {
			grace = max(grace, graceAlone) // they could not come back either
		}
		select {
		case <-time.After(grace - time.Since(gone)):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		if w.s.early() > 0 {
			return 0, nil
		}
	}
	var buried int // f may still run when use has returned
	err = use(ctx, func(ctx context.Context, c *pgx.Conn) error {
		var dead []leasedb.BuryGoneRow
		err := w.s.ss.pipeline(ctx, c, durable(ctx),
			func(q *leasedb.Queries) (err error) {
				dead, err = q.BuryGone(ctx, suspects)
				return err
			},
			func(q *leasedb.Queries) error {
				return q.NotifyIfBuried(ctx, leasedb.NotifyIfBuriedParams{Channel: w.s.ss.schema.name, Payload: wakeOwnership})
			})
		if err != nil {
			return err
		}
		for _, d := range dead {
			reason := "its connection ended"
			if d.Expired {
				reason = "it sent no heartbeat"
			}
			w.s.ss.log.Warn("leasepg: a session has died, its leases are free", "session", d.ID, "host", d.Host, "pid", d.Pid, "reason", reason)
		}
		buried = len(dead)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return buried, nil
}
