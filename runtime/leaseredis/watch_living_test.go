package leaseredis_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/childproc"
	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/part"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// A session whose connection alone ends goes on over another one. PROOF_ROUNDS=100 makes 10,000 rounds.
func TestReconnects(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	admin := s.Client(t)
	be := on(w.c, w.namespace, leaseredis.WithLogger(discard))
	hinted(t, be)
	const ttl = time.Minute
	var all []*kit.Actor
	for range 8 {
		a := w.join(be, grouped, ttl)
		alive(t, a, ttl)
		all = append(all, a)
	}
	judge := w.join(be, grouped, ttl) // it never loses its own
	alive(t, judge, ttl)
	n := pace.Rounds(200, 10_000)
	began := time.Now()
	for i := range n {
		a := all[i%len(all)]
		before := w.linked(a.ID)
		killConn(t, admin, before)
		if i%4 == 0 { // others are often between two looks
			w.linked(a.ID, before)
		}
	}
	for _, a := range append(all, judge) {
		w.linked(a.ID)
		if w.dead(a.ID) {
			t.Errorf("session %s was ended, and lives", a.ID)
		}
		kit.OK(t, a.Session.Heartbeat(t.Context()))
	}
	t.Logf("%d connections ended in %v", n, time.Since(began).Round(time.Millisecond))
}

// A process that reconnects slowly says over its other connection that the one which ended is no proof.
func TestASlowReconnectIsNoDeath(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	var seen sights
	be := on(through(t, s.Addr(), seen.open), w.namespace, leaseredis.WithLogger(discard))
	hinted(t, be)
	near := w.join(be, grouped, time.Minute)
	var slow atomic.Bool
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if slow.Load() {
			time.Sleep(1500 * time.Millisecond)
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}})
	t.Cleanup(func() { c.Close() })
	far := w.join(on(c, w.namespace, leaseredis.WithLogger(discard)), grouped, time.Minute)
	kit.OK(t, far.Heartbeat())
	w.sees(&seen, near.ID, far.ID)
	slow.Store(true)
	before := w.conn(0, far.ID)
	killConn(t, s.Client(t), before)
	w.linked(far.ID, before)
	kit.Equal(t, "it was ended", w.dead(far.ID), false)
}

// A process all of whose connections end is given the time to come back: three times what it took the others to connect.
func TestAProcessIsGivenTheTimeToReconnect(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	var seen sights
	slow := func(addr string) *leaseredis.Backend {
		c := through(t, addr, func(c net.Conn) net.Conn { time.Sleep(300 * time.Millisecond); return seen.open(c) })
		return on(c, w.namespace, leaseredis.WithLogger(discard))
	}
	near := w.join(slow(s.Addr()), grouped, time.Minute)
	p := faultproxy.Start(t, s.Addr())
	be := slow(p.Addr())
	hinted(t, be)
	a := w.join(be, grouped, time.Minute)
	w.sees(&seen, near.ID, a.ID)
	for range 5 {
		before := w.conn(0, a.ID)
		p.Cut()
		p.Heal()
		w.linked(a.ID, before)
		kit.Equal(t, "it was ended", w.dead(a.ID), false)
		time.Sleep(watchEvery)
	}
	// One that does not come back is ended.
	w.sees(&seen, near.ID, a.ID) // its last connection
	p.Cut()
	kit.Eventually(t, "it is found", func() bool { return w.dead(a.ID) })
}

// After a restart of the server, its connections are those of another run: that no one has them is no proof.
func TestServerRestartKillsNobody(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]func(*redistest.Server){
		"restart": func(s *redistest.Server) { s.Restart() },
		"kill":    func(s *redistest.Server) { s.Kill(); s.Start() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, redistest.Config("appendfsync", "always"))
			w := watchedOn(t, s)
			be := on(w.c, w.namespace, leaseredis.WithLogger(discard))
			kit.OK(t, be.Register(t.Context(), topical, kit.Topics(3)))
			const ttl = time.Minute
			p := faultproxy.Start(t, s.Addr())
			c := redis.NewClient(&redis.Options{Addr: p.Addr()})
			t.Cleanup(func() { c.Close() })
			far := w.join(on(c, w.namespace, leaseredis.WithLogger(discard)), topical, ttl)
			kit.Equal(t, "acquired", len(far.Acquires(3)), 3)
			p.BlackHole() // it cannot be back first
			restart(s)
			// One that was never cut off judges at once.
			near := w.join(be, topical, ttl)
			time.Sleep(2 * time.Second)
			kit.Equal(t, "a process that is cut off is dead", w.dead(far.ID), false)
			kit.Equal(t, "taken from it", len(near.Acquires(9)), 0)
			before := w.conn(0, far.ID)
			p.Cut() // what hangs in the hole
			p.Heal()
			w.linked(far.ID, before)
			kit.OK(t, far.Session.Heartbeat(t.Context()))
		})
	}
}

// A process that the server hears, and that hears no answer, gives up requests. Its connections stay open, for as long as it believes in its
// leases: to the others their end would be its own. With the last belief they end.
func TestWhoHearsNoAnswerIsNotDead(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	const ttl = 3 * time.Second
	var seen sights
	near := w.join(on(through(t, s.Addr(), seen.open), w.namespace, leaseredis.WithLogger(discard)), grouped, ttl)
	alive(t, near, ttl)
	p := faultproxy.Start(t, s.Addr())
	c := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1, ReadTimeout: 500 * time.Millisecond, DialTimeout: 500 * time.Millisecond,
		Dialer: changing(seen.open)})
	t.Cleanup(func() { c.Close() })
	far := w.join(on(c, w.namespace, leaseredis.WithLogger(discard)), grouped, time.Hour)
	alive(t, far, ttl)
	for _, heals := range []bool{true, false} {
		w.sees(&seen, near.ID, far.ID)
		w.sees(&seen, far.ID, near.ID)
		_, id, _ := strings.Cut(w.linked(far.ID), "/")
		p.Deafen()
		time.Sleep(ttl)
		kit.Equal(t, "a process that hears no answer is dead", w.dead(far.ID), false)
		if heals {
			p.Heal()
			kit.Eventually(t, "it is back", func() bool { return far.Session.Heartbeat(t.Context()) == nil })
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := far.Be.OpenSession(ctx, backend.SessionSpec{ID: kit.ID(), TTL: ttl, Replaces: far.ID, Consumers: []string{grouped.Name}})
		kit.Equal(t, "it opens the next session", err == nil, false)
		kit.Eventually(t, "its connection ends", func() bool {
			return s.Client(t).Do(t.Context(), "CLIENT", "LIST", "ID", id).Val() == ""
		})
	}
}

// A process that lost its connection itself leaves the others the time to come back, too.
func TestAProcessThatWasCutOffDoesNotJudge(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	const ttl = time.Minute
	cut := w.join(on(s.Client(t), w.namespace, leaseredis.WithLogger(discard)), grouped, ttl)
	alive(t, cut, ttl)
	p := faultproxy.Start(t, s.Addr())
	c := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1})
	t.Cleanup(func() { c.Close() })
	far := w.join(on(c, w.namespace, leaseredis.WithLogger(discard)), grouped, ttl)
	conns := []string{w.conn(0, cut.ID), w.conn(0, far.ID)}
	p.Cut()
	killConn(t, s.Client(t), conns[0])
	w.linked(cut.ID, conns[0])
	time.Sleep(2 * time.Second)
	kit.Equal(t, "the other is dead", w.dead(far.ID), false)
	p.Heal()
	w.linked(far.ID, conns[1])
	kit.OK(t, far.Session.Heartbeat(t.Context()))
	// One that was not finds it by its connection.
	var seen sights
	third := w.join(on(through(t, s.Addr(), seen.open), w.namespace, leaseredis.WithLogger(discard)), grouped, ttl)
	w.sees(&seen, third.ID, far.ID)
	p.Cut()
	kit.Eventually(t, "it is dead", func() bool { return w.dead(far.ID) })
	p.Heal()
	kit.Eventually(t, "it learns that it is lost", func() bool { return errors.Is(far.Session.Heartbeat(t.Context()), backend.ErrSessionLost) })
}

// When a machine wakes up, all its processes were frozen: the first to look does not judge the others, which may not have run since.
func TestAProcessThatWasFrozenDoesNotJudge(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	be := on(w.c, w.namespace)
	kit.OK(t, be.Check(t.Context(), nil))
	p := taking{[]string{s.Addr()}, false, w.namespace, time.Minute, grouped, 0}
	judge, judges := part.Start(t, p)
	sleeper, sleeps := part.Start(t, p)
	w.linked(judges)
	before := w.linked(sleeps)
	time.Sleep(2 * watchEvery)
	childproc.Freeze(sleeper.Pid)
	childproc.Freeze(judge.Pid)
	killConn(t, s.Client(t), before)
	time.Sleep(2 * time.Second)
	kit.OK(t, judge.Signal(syscall.SIGCONT))
	time.Sleep(2 * time.Second)
	kit.Equal(t, "the one that sleeps is dead", w.dead(sleeps), false)
	kit.OK(t, sleeper.Signal(syscall.SIGCONT))
	w.linked(sleeps, before)
	kit.Equal(t, "the one that slept is dead", w.dead(sleeps), false)
}

// The script that ends a session does so only while that has noted no other connection than the one which is gone, and only on
// behalf of a session that lives.
func TestASessionIsNotEndedByAnOldConnection(t *testing.T) {
	t.Parallel()
	w := watchedOn(t, redistest.Shared(t))
	be := on(w.c, w.namespace)
	judge, a := w.join(be, grouped, time.Minute), w.join(be, grouped, time.Minute)
	conn := w.conn(0, a.ID)
	bury := func(judge, conn string) error {
		return w.c.Eval(t.Context(), leaseredis.ScriptSources()["bury"], []string{w.key(0, "meta"), w.key(0, "none")}, judge, a.ID, conn).Err()
	}
	kit.OK(t, bury(judge.ID, conn+"0"))
	kit.Equal(t, "ended by another connection", w.dead(a.ID), false)
	kit.OK(t, w.c.HDel(t.Context(), w.key(0, "s:"+a.ID), "conn").Err())
	kit.OK(t, bury(judge.ID, ""))
	kit.Equal(t, "ended without any", w.dead(a.ID), false)
	kit.OK(t, w.c.HSet(t.Context(), w.key(0, "s:"+a.ID), "conn", conn).Err())
	if err := bury("stranger", conn); err == nil {
		t.Error("a session that does not live was let to judge")
	}
	kit.Equal(t, "ended by a stranger", w.dead(a.ID), false)
	kit.OK(t, bury(judge.ID, conn))
	kit.Equal(t, "ended", w.dead(a.ID), true)
	kit.Lost(t, "heartbeat", a.Heartbeat())
}
