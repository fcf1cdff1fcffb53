package leasepg

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
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
//   - All connections of a process that lives may end at once. It needs to come back then: to connect and to show its sign, a shared
//     lock that its new connection takes before all else. Joining the others, durably, may then take any time. A process that would bury it
//     does the same several times in a row, or twice where that is slow, and gives it five times as long on the server as it is now. It gives
//     it graceMore where that is slow, or where something other than a death is likely: the server counts the connections that an operator or an error
//     ended, and those whose process died are not among them (see ends); or several sessions are missing at once. The count may come
//     a moment after the lock is free: the statement that buries looks at it again. Connections that the network resets count as an
//     error's, mostly, and ones that a proxy ends in order look like a death. Where the connection that waits has ended without being
//     asked it was not its process that died, mostly: a server process that waits for a lock does not notice. Then the grace is
//     graceAlone. Where it has answered for a while its process had tried to connect in vain, and rests between two tries: for as long
//     it has more time. No grace is longer than the TTL: a process that has not come back by then has ceased to believe in its session.
//   - A process that was cut off itself leaves the others the time to come back (see early): what broke may have been the network before the
//     server. It judges by what a look has shown just now: between two looks its connection is watched, or too short a time idle to be ended.
//   - A process that was frozen uses no finding from before: a session is looked at again before its end in the same statement, under the lock of
//     the session's row, and must still have the key whose lock was found free. Keys are never used again.
//
// Where there is no connection to wait on, because the application has chosen so or the server is full, a session looks at
// the ring every watchEvery on its heartbeat connection. A process that was declared dead by mistake is fenced and opens a new session.
const (
	watchEvery = 400 * time.Millisecond
	restMost   = 2 * time.Second       // after a look that took long
	watchAgain = 10 * time.Millisecond // after the first try to connect; then after twice as long each time

	// A session that was asked in vain has this time to show its sign: as long as doing that graceTimes in a row takes, and watchAgain, for
	// one try may fail. It has graceMore, or as long again, where its connections alone may have been ended; and graceMore where a try takes
	// longer than graceCalm: then it may wait for a processor.
	graceMore  = 50 * time.Millisecond
	graceTimes = 5
	graceCalm  = 15 * time.Millisecond
	// The least for one that has lost its lock and had no second one when that was seen: its next try to connect, and some time for it.
	graceAlone = watchEvery + 100*time.Millisecond
)

// watch looks after the session's connection until ctx ends or the runtime has stopped asking for heartbeats, and after the
// other sessions while no connection waits for them.
func (s *session) watch(ctx context.Context) {
	defer close(s.watched)
	every := min(watchEvery, s.spec.TTL/4)
	var again, failed time.Duration
	ring := watcher{s: s, use: s.use}
	defer ring.settle()
	for s.rest(ctx, again) {
		apart := s.apart.Load()
		if since := time.Since(s.born); since-time.Duration(s.called.Load()) > s.spec.TTL ||
			apart > 0 && since-time.Duration(apart) > s.spec.TTL {
			// No process believes in this session any more, or its lock has been gone for long: what else it holds must not live on.
			s.endFor(ctx)
			return
		}
		var look, took time.Duration
		var err error
		if s.waits.Load() {
			err = s.use(ctx, func(context.Context, *pgx.Conn) error { return nil }) // is there a connection?
		} else {
			began := time.Now()
			_, look, err = ring.look(ctx, aim{})
			took = time.Since(began)
		}
		if err == nil {
			failed = 0
		}
		switch {
		case err == nil && look > 0:
			again = look
		case err == nil:
			again = restAfter(took, every)
		case ctx.Err() != nil || errors.Is(err, backend.ErrSessionLost):
			return
		default: // the runtime reports it when it asks for a heartbeat
			failed = min(max(2*failed, watchAgain), every)
			again = failed
		}
	}
}

// restAfter is how long a session rests after a look: about as long as every, so that the processes do not all look at once. After one that
// took longer it rests as long as that, up to restMost, so that a slow server has other things to do.
func restAfter(took, every time.Duration) time.Duration {
	return max(every-every/20+rand.N(every/10+1), min(took, restMost))
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
			// There is no notification here: it returns when time is over, when somebody wants
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
	if s.apart.Load() > 0 {
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
	nudged int                 // looks in a row at sessions that had lost their lock or had expired

	doomed leasedb.BuryGoneParams // who is to be buried at a time if they have not come back
	doom   time.Time

	probing chan returns // what coming back takes; nil: it is not being measured
	takes   returns      // when it was measured last, with probed
	probed  time.Time
}

// returns is what coming back takes: graceTimes in a row, or as often the slower of two; the slowest of them, and when they began.
type returns struct {
	all, slowest time.Duration
	began        time.Time
}

// often is graceTimes the slowest, but no longer than a try may last.
func (r returns) often() time.Duration { return min(graceTimes*r.slowest, longest) }

// beliefs are until when processes may believe in sessions that have lost their lock. The sessions of this process share them: one of
// them may end while it watches another one, and the next need not give that a TTL of its own.
type beliefs struct {
	mu  sync.Mutex
	end map[int64]time.Time // by the lock's key
}

const beliefKept = time.Hour

// until is the end of belief in a session whose lock with a key was found free, now or before. ttl is how long it may last.
func (b *beliefs) until(key int64, ttl time.Duration) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(b.end, func(_ int64, end time.Time) bool { return now.Sub(end) > beliefKept })
	if _, known := b.end[key]; !known {
		if b.end == nil {
			b.end = map[int64]time.Time{}
		}
		b.end[key] = now.Add(ttl)
	}
	return b.end[key]
}

// sighting is what was seen of a session.
type sighting struct {
	key      int64
	answered bool      // the second lock was held when the first was gone: if it is free by now, it was asked in vain
	lost     time.Time // since when the lock with the key has been free; zero: it is held
	over     time.Time // until when its process may believe in the session that has lost it
	alone    time.Time // since when the second one has been, too, and there was no sign
	passed   bool      // another one was asked to judge
	ends     int64     // how many connections to the database an operator or an error had ended when its lock was held last; -1: not known
	broken   bool      // it may be its connections that were ended, and not its process
}

// grace is how long the session has to come back, from when it was alone.
func (s sighting) grace(takes returns) time.Duration {
	grace := takes.all + watchAgain
	switch {
	case s.broken:
		grace += max(graceMore, takes.all) // all that lost theirs connect at once: on a slow machine they take turns
	case takes.slowest > graceCalm, takes.began.Before(s.lost): // others may have taken over since: the machine is busier
		grace += graceMore
	}
	if !s.answered {
		grace = max(grace, graceAlone)
	}
	if tried := s.alone.Sub(s.lost); tried > watchAgain {
		grace += min(tried, watchEvery) // it rests for as long as it has tried at most
	}
	return grace
}

// still is what no more connections may have been ended than for the session to be buried; -1: it does not depend on that.
func (s sighting) still() int64 {
	if s.broken {
		return -1
	}
	return s.ends
}

// aim is what to wait for before looking: the lock with a key, or the time alone.
type aim struct {
	key  int64
	most time.Duration // 0: look at once
}

// look waits for what is aimed at, looks around, and does what is to be done. It returns what to wait for next; or, where some
// session is suspect, how soon to look again.
func (w *watcher) look(ctx context.Context, at aim) (next aim, again time.Duration, err error) {
	if err := w.execute(ctx); err != nil {
		return aim{}, 0, err
	}
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
	ends := around[self].Ends
	around = slices.Delete(around, self, self+1)
	slices.SortFunc(around, func(a, b leasedb.LookAroundRow) int { // in the order of the ring
		return cmp.Or(cmp.Compare(rank(a.ID, id), rank(b.ID, id)), cmp.Compare(a.ID, b.ID))
	})
	w.note(around, ends)
	if again, err = w.judge(ctx, around); again > 0 || err != nil {
		return aim{}, again, err
	}
	w.nudged = 0
	return aimAt(around), 0, nil
}

// note keeps what is seen of the sessions around, and forgets the others.
func (w *watcher) note(around []leasedb.LookAroundRow, ends int64) {
	now, seen := time.Now(), make(map[string]sighting, len(around))
	missing := 0
	for _, r := range around {
		if r.Gone {
			missing++
		}
	}
	for _, r := range around {
		was := w.seen[r.ID]
		if r.Key != was.key {
			was = sighting{ends: -1}
		}
		is := sighting{key: r.Key, ends: ends}
		if r.Gone {
			is = was
			is.key, is.answered = r.Key, was.answered || r.Answers
			is.broken = was.broken || ends < 0 || ends != was.ends || missing > 1
			if is.lost.IsZero() {
				is.lost, is.alone, is.over = now, now, w.s.ss.beliefs.until(r.Key, seconds(r.Remaining))
			}
			if r.Answers || r.Comes {
				is.alone = now
			}
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
	waitLess = time.Second     // while the lock of the next in the ring is no proof
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
	var expired, alone, answering []leasedb.LookAroundRow
	coming := false
	for _, r := range around {
		switch {
		case r.Remaining < 0:
			expired = append(expired, r)
		case r.Gone && r.Comes:
			coming = true
		case r.Gone && r.Answers:
			answering = append(answering, r)
		case r.Gone:
			alone = append(alone, r)
		}
	}
	if len(expired)+len(alone)+len(answering) == 0 && !coming {
		return 0, nil
	}
	if early := w.s.early(); early > 0 {
		return min(early, watchEvery/4), w.passOn(ctx, slices.Concat(alone, answering))
	}
	w.nudged++
	again = min(time.Millisecond<<min(w.nudged, 10), watchEvery)
	dead := leasedb.BuryGoneParams{Ends: -1}
	for _, r := range expired {
		dead.Ids, dead.Keys = append(dead.Ids, r.ID), append(dead.Keys, 0)
	}
	takes, known := w.returning(ctx, len(alone)+len(answering) > 0)
	for _, r := range alone {
		is := w.seen[r.ID]
		left, ends := time.Until(is.over), int64(-1)
		if grace := is.grace(takes) - time.Since(is.alone); known && grace < left {
			left, ends = grace, is.still()
		}
		if left > 0 {
			if left <= again {
				again, w.doom = left, time.Now().Add(left)
				w.doomed = leasedb.BuryGoneParams{Ids: []string{r.ID}, Keys: []int64{r.Key}, Ends: ends}
			}
			continue
		}
		dead.Ids, dead.Keys, dead.Ends = append(dead.Ids, r.ID), append(dead.Keys, r.Key), ends
	}
	if len(dead.Ids) > 0 {
		found, err := w.bury(ctx, dead)
		if err != nil {
			return 0, err
		}
		if found > 0 {
			w.nudged = 0
			return time.Nanosecond, nil // who comes after them in the ring may have died with them
		}
	}
	if len(answering) > 0 {
		var ids []string
		for _, r := range answering {
			ids = append(ids, r.ID)
		}
		err = w.use(ctx, func(ctx context.Context, c *pgx.Conn) error { return w.s.ss.queries(c).Nudge(ctx, ids) })
	}
	return again, err
}

// execute buries a session whose time has come since the last look. The statement that does it looks again.
func (w *watcher) execute(ctx context.Context) error {
	doomed := w.doomed
	w.doomed = leasedb.BuryGoneParams{}
	if len(doomed.Ids) == 0 || time.Now().Before(w.doom) || w.s.early() > 0 {
		return nil
	}
	_, err := w.bury(ctx, doomed)
	return err
}

// passOn asks the session before this one to judge suspects in its place, each once: it would look that far by itself only when
// it has waited for long.
func (w *watcher) passOn(ctx context.Context, suspects []leasedb.LookAroundRow) error {
	ask := false
	for _, r := range suspects {
		is := w.seen[r.ID]
		ask = ask || !is.passed
		is.passed = true
		w.seen[r.ID] = is
	}
	if !ask {
		return nil
	}
	return w.use(ctx, func(ctx context.Context, c *pgx.Conn) error { return w.s.ss.queries(c).NudgeBefore(ctx, w.s.spec.ID) })
}

// probeAgain is how long it is believed what coming back takes.
const probeAgain = time.Second

// returning tells what it takes now to connect to the server and to show a sign, graceTimes in a row, if that is known; where it is
// wanted it is found out. One time that was quick by chance does not decide. Where connecting is slow two do: each takes the server's time
// from the session that comes back. It goes on beside the looks, so that the connection with which these are made is neither idle nor
// unwatched for long.
func (w *watcher) returning(ctx context.Context, wanted bool) (takes returns, known bool) {
	if w.probing != nil {
		select {
		case w.takes = <-w.probing:
			w.probing, w.probed = nil, time.Now()
		default:
			return returns{}, false
		}
	}
	if !wanted {
		return returns{}, false
	}
	if !w.probed.IsZero() && time.Since(w.probed) < max(probeAgain, w.takes.all)+watchEvery {
		return w.takes, true
	}
	probing := make(chan returns, 1)
	w.probing = probing
	go func() {
		ctx, cancel := context.WithTimeout(ctx, longest)
		defer cancel()
		takes := returns{began: time.Now()}
		for n := 1; n <= graceTimes; n++ {
			began := time.Now()
			err := w.s.tryOut(ctx)
			took := time.Since(began)
			takes.all, takes.slowest = takes.all+took, max(takes.slowest, took)
			if err != nil {
				takes.all = max(takes.all, graceTimes*graceAlone, takes.often()) // they could not come back either
				break
			}
			if n == 2 && takes.slowest > graceCalm {
				takes.all = max(takes.all, takes.often())
				break
			}
		}
		probing <- takes
	}()
	return returns{}, false
}

// tryOut does what a session does first that comes back.
func (s *session) tryOut(ctx context.Context) error {
	c, err := s.ss.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(c)
	if err := s.ss.detectPooler(ctx, c); err != nil {
		return err
	}
	_, _, err = s.appear(ctx, c, sessionKey(s.spec.ID, 0), true) // the lock of no connection
	return err
}

// pause waits for d, or until it is known what coming back takes.
func (w *watcher) pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case w.takes = <-w.probing:
		w.probing, w.probed = nil, time.Now()
	case <-ctx.Done():
	}
}

// settle waits for what returning leaves behind. The context has ended.
func (w *watcher) settle() {
	if w.probing != nil {
		<-w.probing
	}
}

// bury buries those of the sessions that have expired or have not come back, and returns how many.
func (w *watcher) bury(ctx context.Context, suspects leasedb.BuryGoneParams) (found int, err error) {
	var buried int // f may still run when use has returned
	err = w.use(ctx, func(ctx context.Context, c *pgx.Conn) error {
		var dead []leasedb.BuryGoneRow
		err := w.s.ss.pipeline(ctx, c, hasty(ctx), // who is granted the leases waits for the disk
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
