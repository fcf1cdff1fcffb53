package leaseredis_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/childproc"
	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// part is what a process of its own takes part in.
type part struct {
	Addrs     []string
	Cluster   bool
	Namespace string
	TTL       time.Duration
	Consumer  backend.ConsumerInfo
	Max       int
}

func (p part) client() redis.UniversalClient {
	if p.Cluster {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: p.Addrs, ReadTimeout: time.Second})
	}
	return redis.NewClient(&redis.Options{Addr: p.Addrs[0]})
}

// TestProcess is no test but such a process: it owns what it can until it is killed.
func TestProcess(t *testing.T) {
	var p part
	if os.Getenv("LEASEGEN_TEST_PART") == "" {
		t.Skip("it is started by others")
	}
	kit.OK(t, json.Unmarshal([]byte(os.Getenv("LEASEGEN_TEST_PART")), &p))
	be := on(p.client(), p.Namespace, leaseredis.WithLogger(discard))
	hinted(t, be)
	spec := backend.SessionSpec{ID: kit.ID(), TTL: p.TTL, Host: "host", PID: os.Getpid(), Consumers: []string{p.Consumer.Name}}
	s := kit.Must[backend.Session](t)(be.OpenSession(t.Context(), spec))
	if p.Max > 0 && len(kit.Acting(t, be, spec.ID, p.Consumer).Acquires(p.Max)) == 0 {
		t.Fatal("nothing was to be had")
	}
	os.Stdout.WriteString("\nowner " + spec.ID + "\n")
	for err := error(nil); !errors.Is(err, backend.ErrSessionLost); err = s.Heartbeat(t.Context()) {
		select {
		case <-time.After(p.TTL / 3):
		case <-s.Alarm():
		}
	}
	os.Stdout.WriteString("\nlost\n")
}

// start runs such a process until the test ends, and returns it with its session.
func (p part) start(t *testing.T) (*os.Process, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestProcess$", "-test.v")
	cmd.Env = append(os.Environ(), "LEASEGEN_TEST_PART="+string(kit.Must[[]byte](t)(json.Marshal(p))))
	out := kit.Must[interface{ Read([]byte) (int, error) }](t)(cmd.StdoutPipe())
	kit.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if session, is := strings.CutPrefix(lines.Text(), "owner "); is {
			go func() {
				for lines.Scan() {
				}
			}()
			return cmd.Process, session
		}
		t.Log(lines.Text())
	}
	t.Fatal("the process ended before it owned anything")
	return nil, ""
}

// watched is a namespace of a server, or of a cluster, whose sessions are looked at from outside.
type watched struct {
	t         testing.TB
	c         redis.UniversalClient
	namespace string
	tags      int
}

// watchedOn is one on a server. A test that waits for a death starts its own: a look that takes two seconds, behind the commands of
// other tests, ends the link, and what that has seen is forgotten.
func watchedOn(t testing.TB, s *redistest.Server) *watched {
	return &watched{t, s.Client(t), redistest.Namespace(t), 1}
}

func (w *watched) key(tag int, name string) string {
	return "{" + w.namespace + strconv.Itoa(tag) + "}:" + name
}

// conn is the connection that a session has noted under a tag.
func (w *watched) conn(tag int, session string) string {
	return w.c.HGet(context.Background(), w.key(tag, "s:"+session), "conn").Val()
}

// linked waits until a session has noted a connection under every tag, other than the ones given.
func (w *watched) linked(session string, except ...string) string {
	w.t.Helper()
	kit.Eventually(w.t, "the session tells of its connections", func() bool {
		for tag := range w.tags {
			if c := w.conn(tag, session); c == "" || slices.Contains(except, c) {
				return false
			}
		}
		return true
	})
	return w.conn(0, session)
}

func (w *watched) dead(session string) bool {
	for tag := range w.tags {
		if w.c.HExists(context.Background(), w.key(tag, "s:"+session), "ended").Val() {
			return true
		}
	}
	return false
}

// join opens a session and waits until it can be watched.
func (w *watched) join(be *leaseredis.Backend, info backend.ConsumerInfo, ttl time.Duration) *kit.Actor {
	w.t.Helper()
	a := kit.Join(w.t, be, info, ttl)
	w.linked(a.ID)
	return a
}

// hinted lets the sessions of a backend hear when others come and go, as those of the runtime do.
func hinted(t testing.TB, be *leaseredis.Backend) {
	t.Helper()
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{grouped}))
	t.Cleanup(feed.Close)
}

// alive keeps a session alive until the test ends, as the runtime does.
func alive(t *testing.T, a *kit.Actor, ttl time.Duration) {
	ctx, stop := context.WithCancel(context.Background())
	var beating sync.WaitGroup
	beating.Go(func() {
		for ctx.Err() == nil {
			_ = a.Session.Heartbeat(ctx)
			select {
			case <-time.After(ttl / 3):
			case <-a.Session.Alarm():
				time.Sleep(50 * time.Millisecond)
			case <-ctx.Done():
			}
		}
	})
	t.Cleanup(func() { stop(); beating.Wait() })
}

// killConn ends the connection that a session has noted, at the server.
func killConn(t testing.TB, c *redis.Client, conn string) {
	t.Helper()
	_, id, _ := strings.Cut(conn, "/")
	kit.OK(t, c.Do(t.Context(), "CLIENT", "KILL", "ID", id).Err())
}

// A process that is killed is found by the end of its connection, in a fraction of its TTL.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	for _, grace := range []time.Duration{0, 500 * time.Millisecond} {
		s := redistest.Start(t)
		w := watchedOn(t, s)
		info := topical
		info.Grace = grace
		var seen sights
		be := on(through(t, s.Addr(), seen.open), w.namespace)
		hinted(t, be)
		kit.OK(t, be.Register(t.Context(), info, kit.Topics(100)))
		witness := w.join(be, info, time.Hour)
		successor := w.join(be, info, time.Hour)
		ttl := 10 * time.Minute
		if grace > 0 {
			ttl = 6 * time.Second
		}
		process, dead := part{[]string{s.Addr()}, false, w.namespace, ttl, info, 100}.start(t)
		w.linked(dead)
		w.sees(&seen, witness.ID, dead)
		w.sees(&seen, successor.ID, dead)
		kit.Equal(t, "a living process is dead", w.dead(dead), false)
		expires := w.c.ZScore(t.Context(), w.key(0, "sessions"), dead).Val()
		bare := pace.Beside(t, func(ctx context.Context) error { return w.c.Exists(ctx, w.key(0, "meta")).Err() })
		kit.OK(t, process.Kill())
		killed := time.Now()
		kit.Eventually(t, "it is found", func() bool { return w.dead(dead) })
		bare.Within(t, "finding a killed process", time.Since(killed), time.Second)
		if grace > 0 { // what it may have believed is waited for
			kit.Equal(t, "free", survey(t, be, info).Free, 0)
			kit.Equal(t, "acquired too early", len(successor.Acquires(100)), 0)
		}
		kit.Eventually(t, "its leases are taken over, long before its TTL", func() bool { return len(successor.Acquires(100)) == 100 })
		if early := time.Until(time.UnixMicro(int64(expires)).Add(grace)); grace > 0 && early > 10*time.Millisecond {
			t.Errorf("they were taken %v too early", early)
		}
		t.Logf("taken over within %v", time.Since(killed).Round(time.Millisecond))
		kit.Equal(t, "suspicion", w.c.HGet(t.Context(), w.key(0, "l:topical:")+kit.Topics(1)[0], "su").Val(), "1")
	}
}

// On a cluster a process is found by the servers that have its leases, after a failover too.
func TestKilledProcessOnCluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it starts six servers")
	}
	cluster := redistest.StartCluster(t)
	var seen sights
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), Dialer: changing(seen.open)})
	t.Cleanup(func() { c.Close() })
	w := &watched{t, c, redistest.Namespace(t), 8}
	be := on(w.c, w.namespace, leaseredis.WithLogger(discard))
	hinted(t, be)
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(100)))
	const ttl = 30 * time.Second
	successor := w.join(be, topical, ttl)
	alive(t, successor, ttl)
	p := part{cluster.Addrs(), true, w.namespace, ttl, topical, 100}
	for round := range 2 {
		process, dead := p.start(t)
		w.linked(dead)
		w.sees(&seen, successor.ID, dead)
		if round == 1 {
			// A note on the server before is no proof on the one that took its place, until it is noted there.
			before := map[int]string{}
			old := cluster.MasterOf(t, w.key(0, "meta"))
			for tag := range w.tags {
				if cluster.MasterOf(t, w.key(tag, "meta")) == old {
					before[tag] = w.conn(tag, dead)
				}
			}
			old.Kill()
			cluster.Failover(t, cluster.ReplicaOf(t, w.key(0, "meta")), "TAKEOVER")
			kit.Eventually(t, "it tells the new server of its connection", func() bool {
				for tag, conn := range before {
					if got := w.conn(tag, dead); got == "" || got == conn {
						return false
					}
				}
				return true
			})
			w.linked(successor.ID)
			w.sees(&seen, successor.ID, dead)
			kit.Equal(t, "a living process is dead", w.dead(dead) || w.dead(successor.ID), false)
			time.Sleep(ttl / 3) // so long a process that was cut off itself does not judge
		}
		bare := pace.Beside(t, func(ctx context.Context) error { return w.c.Exists(ctx, w.key(0, "meta")).Err() })
		kit.OK(t, process.Kill())
		killed := time.Now()
		got := 0
		kit.Eventually(t, "its leases are taken over, long before its TTL", func() bool { got += len(successor.Acquires(100)); return got == 100 })
		t.Logf("round %d: taken over within %v", round, time.Since(killed).Round(time.Millisecond))
		bare.Within(t, "taking over", time.Since(killed), ttl/3)
		bare.Stop()
		kit.OK(t, be.Release(t.Context(), successor.ID, topical.Name, kit.Must[[]backend.Ref](t)(be.Owned(t.Context(), successor.ID, topical.Name))))
	}
}

// A process that is frozen keeps its connection: its TTL decides.
func TestFrozenProcess(t *testing.T) {
	t.Parallel()
	w := watchedOn(t, redistest.Shared(t))
	be := on(w.c, w.namespace)
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(3)))
	successor := w.join(be, topical, time.Hour)
	const ttl = 3 * time.Second
	process, frozen := part{[]string{redistest.Shared(t).Addr()}, false, w.namespace, ttl, topical, 3}.start(t)
	w.linked(frozen)
	childproc.Freeze(process.Pid)
	expires := time.UnixMicro(int64(w.c.ZScore(t.Context(), w.key(0, "sessions"), frozen).Val()))
	kit.Eventually(t, "its leases are taken over", func() bool { return len(successor.Acquires(3)) == 3 })
	if early := time.Until(expires); early > 10*time.Millisecond {
		t.Errorf("they were taken %v before its TTL was over", early)
	}
}

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
	kit.OK(t, far.Session.Heartbeat(t.Context()))
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

// A machine that wakes up has processes that were frozen together: the first to look does not judge those that still sleep.
func TestAProcessThatWasFrozenDoesNotJudge(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	be := on(w.c, w.namespace)
	kit.OK(t, be.Check(t.Context(), nil))
	p := part{[]string{s.Addr()}, false, w.namespace, time.Minute, grouped, 0}
	judge, judges := p.start(t)
	sleeper, sleeps := p.start(t)
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

const (
	watchEvery = 310 * time.Millisecond // a session looks at its neighbours
	ringEvery  = 5 * time.Second        // and at the latest which these are
)

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
	kit.Lost(t, "heartbeat", a.Session.Heartbeat(t.Context()))
}

// rewriting changes what is sent, as a proxy might that has connections of its own.
type rewriting struct {
	net.Conn
	from, to []byte
}

func (r rewriting) Write(b []byte) (int, error) {
	if _, err := r.Conn.Write(bytes.ReplaceAll(b, r.from, r.to)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Where ids of connections are no proof, or may not be asked for, the TTL decides, and status and log say so.
func TestWhereTheTTLDecides(t *testing.T) {
	t.Parallel()
	rules := func(namespace string, without ...string) []string {
		return slices.DeleteFunc(leaseredis.ACL(namespace), func(r string) bool { return slices.Contains(without, r) })
	}
	for name, connect := range map[string]func(t *testing.T, s *redistest.Server, ns string) redis.UniversalClient{
		"no right to list": func(t *testing.T, s *redistest.Server, ns string) redis.UniversalClient {
			return s.User(t, "nolist", rules(ns, "+client|list")...)
		},
		"no rights": func(t *testing.T, s *redistest.Server, ns string) redis.UniversalClient {
			return s.User(t, "none", rules(ns, "+client|list", "+client|id", "+client|setname", "+info")...)
		},
		"proxy with other names": func(t *testing.T, s *redistest.Server, _ string) redis.UniversalClient {
			return behind(t, s, "leasegen-", "someones-")
		},
		"proxy with other ids": func(t *testing.T, s *redistest.Server, _ string) redis.UniversalClient {
			return behind(t, s, "client\r\n$2\r\nid\r\n", "client\r\n$8\r\ngetredir\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			w := watchedOn(t, s)
			var log logBook
			be := on(connect(t, s, w.namespace), w.namespace, log.option())
			kit.OK(t, be.Check(t.Context(), nil))
			able := on(w.c, w.namespace, leaseredis.WithLogger(discard))
			watcher := w.join(able, grouped, time.Minute)
			const ttl = 10 * time.Second
			a := kit.Join(t, be, grouped, ttl)
			kit.Eventually(t, "the log says so", func() bool { return log.count("when its TTL is over") == 1 })
			detection := map[string]string{}
			for _, m := range kit.Must[[]operate.MemberStatus](t)(able.Members(t.Context(), grouped.Name)) {
				detection[m.Session] = m.Detection
			}
			kit.Equal(t, "detection of one that can be watched", detection[watcher.ID], "connection")
			kit.Equal(t, "detection", detection[a.ID], "ttl")
			expires := time.UnixMicro(int64(w.c.ZScore(t.Context(), w.key(0, "sessions"), a.ID).Val()))
			kit.Eventually(t, "its TTL is over", func() bool {
				_ = watcher.Acquires(1)
				return w.dead(a.ID)
			})
			if early := time.Until(expires); early > 10*time.Millisecond {
				t.Errorf("it was ended %v too early", early)
			}
		})
	}
}

// listing is a connection through one of several proxies, each of which shows its own clients alone.
type listing struct {
	net.Conn
	admin *redis.Client
	own   *sync.Map // addresses of the proxy's connections
}

func (l listing) Write(b []byte) (int, error) {
	words := strings.Fields(string(b))
	if len(words) < 9 || words[2] != "CLIENT" || words[4] != "LIST" {
		return l.Conn.Write(b)
	}
	shown := map[string]bool{}
	for line := range strings.Lines(l.admin.ClientList(context.Background()).Val()) {
		f := strings.Fields(line)
		_, own := l.own.Load(strings.TrimPrefix(f[1], "addr="))
		shown[strings.TrimPrefix(f[0], "id=")] = own
	}
	args := []string{"CLIENT", "LIST", "ID"}
	for i := 8; i < len(words); i += 2 {
		if shown[words[i]] {
			args = append(args, words[i])
		}
	}
	request := "*" + strconv.Itoa(len(args)) + "\r\n"
	for _, a := range args {
		request += "$" + strconv.Itoa(len(a)) + "\r\n" + a + "\r\n"
	}
	if _, err := l.Conn.Write([]byte(request)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Of a process behind another proxy, which does not show its connection to this one, the TTL decides. The log says so.
func TestSeveralProxiesEndNobody(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	const ttl = 9 * time.Second
	var log logBook
	var all []*kit.Actor
	for range 2 {
		admin, own := s.Client(t), &sync.Map{}
		be := on(through(t, s.Addr(), func(c net.Conn) net.Conn {
			own.Store(c.LocalAddr().String(), true)
			return listing{c, admin, own}
		}), w.namespace, log.option())
		hinted(t, be)
		for range 2 {
			a := w.join(be, grouped, ttl)
			alive(t, a, ttl)
			all = append(all, a)
		}
	}
	status := on(w.c, w.namespace, leaseredis.WithLogger(discard))
	kit.Eventually(t, "the log and the status say so, for all behind one of the two", func() bool {
		by := map[string]string{}
		for _, m := range kit.Must[[]operate.MemberStatus](t)(status.Members(t.Context(), grouped.Name)) {
			by[m.Session] = m.Detection
		}
		ttl := func(a *kit.Actor) bool { return by[a.ID] == "ttl" }
		return log.count("as behind several proxies") > 0 && (ttl(all[0]) && ttl(all[1]) || ttl(all[2]) && ttl(all[3]))
	})
	for _, a := range all {
		kit.Equal(t, "it was ended", w.dead(a.ID), false)
	}
	kit.Equal(t, "deaths", log.count("a session has died"), 0)
}

// behind is a client whose connections replace what is sent.
func behind(t testing.TB, s *redistest.Server, from, to string) redis.UniversalClient {
	return through(t, s.Addr(), func(c net.Conn) net.Conn { return rewriting{c, []byte(from), []byte(to)} })
}

// When the right is taken away, what was noted is no proof any more.
func TestARightThatIsTakenAway(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	var seen sights
	be := on(through(t, s.Addr(), seen.open), w.namespace, leaseredis.WithLogger(discard))
	hinted(t, be)
	near := w.join(be, grouped, time.Minute)
	a := w.join(on(s.User(t, "app", leaseredis.ACL(w.namespace)...), w.namespace, leaseredis.WithLogger(discard)), grouped, time.Minute)
	w.sees(&seen, near.ID, a.ID)
	before := w.conn(0, a.ID)
	kit.OK(t, w.c.Do(t.Context(), "ACL", "SETUSER", "app", "-client|list").Err())
	killConn(t, s.Client(t), before)
	kit.Eventually(t, "it is taken back", func() bool { return w.conn(0, a.ID) == "" })
	time.Sleep(time.Second)
	kit.Equal(t, "it is dead", w.dead(a.ID), false)
	kit.OK(t, a.Session.Heartbeat(t.Context()))
}

// refusing is a connection to a server that answers BUSY to CLIENT, or to scripts, while it is to.
type refusing struct {
	net.Conn              // to the server
	replies, far net.Conn // ends of the pipe that replies go through
	client, eval *atomic.Bool
}

func refuses(c net.Conn, client, eval *atomic.Bool) net.Conn {
	near, far := net.Pipe()
	go func() { _, _ = io.Copy(far, c); far.Close() }()
	return refusing{c, near, far, client, eval}
}

func (r refusing) Write(b []byte) (int, error) {
	words := bytes.ToLower(b)
	if !(r.client.Load() && bytes.Contains(words, []byte("client"))) && !(r.eval.Load() && bytes.Contains(words, []byte("eval"))) {
		return r.Conn.Write(b)
	}
	go func() {
		for range bytes.Count(b, []byte("\r\n*")) + 1 {
			_, _ = r.far.Write([]byte("-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n"))
		}
	}()
	return len(b), nil
}

func (r refusing) Read(b []byte) (int, error)         { return r.replies.Read(b) }
func (r refusing) SetReadDeadline(at time.Time) error { return r.replies.SetReadDeadline(at) }
func (r refusing) SetDeadline(at time.Time) error {
	return errors.Join(r.replies.SetReadDeadline(at), r.Conn.SetWriteDeadline(at))
}
func (r refusing) Close() error { r.replies.Close(); return r.Conn.Close() }

// through is a client whose connections are changed.
func through(t testing.TB, addr string, change func(net.Conn) net.Conn) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr, Dialer: changing(change)})
	t.Cleanup(func() { c.Close() })
	return c
}

// changing dials connections that are changed.
func changing(change func(net.Conn) net.Conn) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return change(c), nil
	}
}

// A server that answers BUSY for a while has not said that its connections are no proof: who is refused keeps the one that it noted,
// and finds deaths soon after.
func TestABusyServerEndsNobody(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	be := on(w.c, w.namespace, leaseredis.WithLogger(discard))
	var busy atomic.Bool
	var log logBook
	var seen sights
	refused := on(through(t, s.Addr(), func(c net.Conn) net.Conn { return refuses(seen.open(c), &busy, &busy) }), w.namespace, log.option())
	hinted(t, be)
	hinted(t, refused)
	const ttl = 9 * time.Second
	witness := w.join(be, grouped, time.Hour)
	a := w.join(refused, grouped, ttl)
	alive(t, a, ttl)
	p := faultproxy.Start(t, s.Addr())
	c := redis.NewClient(&redis.Options{Addr: p.Addr()})
	t.Cleanup(func() { c.Close() })
	doomed := w.join(on(c, w.namespace, leaseredis.WithLogger(discard)), grouped, time.Hour)
	w.sees(&seen, a.ID, doomed.ID, witness.ID)
	busy.Store(true)
	time.Sleep(2 * time.Second)
	kit.Equal(t, "it was ended", w.dead(a.ID), false)
	busy.Store(false)
	kit.OK(t, witness.Session.Close(t.Context()))
	kit.OK(t, a.Session.Heartbeat(t.Context()))
	bare := pace.Beside(t, func(ctx context.Context) error { return w.c.Exists(ctx, w.key(0, "meta")).Err() })
	p.Cut()
	cut := time.Now()
	kit.Eventually(t, "it finds another", func() bool { return w.dead(doomed.ID) })
	bare.Within(t, "finding it", time.Since(cut), 5*time.Second)
	kit.Equal(t, "it was ended", w.dead(a.ID), false)
	kit.Equal(t, "warnings", log.count("when its TTL is over"), 0)
}

// The note of a connection that has ended is taken back as soon as the server lets that, also when no other can be made.
func TestAConnectionIsTakenBackWhenTheServerIs(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	var client, eval atomic.Bool
	a := w.join(on(through(t, s.Addr(), func(c net.Conn) net.Conn { return refuses(c, &client, &eval) }), w.namespace,
		leaseredis.WithLogger(discard)), grouped, time.Minute)
	before := w.conn(0, a.ID)
	client.Store(true)
	eval.Store(true)
	killConn(t, s.Client(t), before)
	time.Sleep(time.Second)
	kit.Equal(t, "connection noted while scripts are refused", w.conn(0, a.ID), before)
	eval.Store(false)
	kit.Eventually(t, "it is taken back", func() bool { return w.conn(0, a.ID) == "" })
	client.Store(false)
	w.linked(a.ID, before)
}

// When a part of a cluster refuses, under one tag of two, the connection stands under the other, and is not replaced all the time.
func TestATagThatIsDown(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	w.tags = 2
	down := kit.Must[string](t)(w.c.ScriptLoad(t.Context(), "return redis.error_reply('CLUSTERDOWN Hash slot not served')").Result())
	second := w.key(1, "")
	command := func(sha string) []byte {
		return []byte(sha + "\r\n$1\r\n2\r\n$" + strconv.Itoa(len(second+"meta")) + "\r\n" + second)
	}
	var refused atomic.Bool
	c := through(t, s.Addr(), func(c net.Conn) net.Conn {
		if refused.Load() {
			return rewriting{c, command(leaseredis.ShaOf("ring")), command(down)}
		}
		return c
	})
	var seen sights
	be := on(through(t, s.Addr(), seen.open), w.namespace, leaseredis.WithLogger(discard), leaseredis.WithTags(2))
	hinted(t, be)
	near := w.join(be, grouped, time.Minute)
	a := w.join(on(c, w.namespace, leaseredis.WithLogger(discard), leaseredis.WithTags(2)), grouped, time.Minute)
	alive(t, a, time.Minute)
	w.sees(&seen, near.ID, a.ID)
	before := w.conn(0, a.ID)
	refused.Store(true)
	killConn(t, s.Client(t), before)
	kit.Eventually(t, "it has another connection", func() bool { c := w.conn(0, a.ID); return c != "" && c != before })
	noted := w.conn(0, a.ID)
	time.Sleep(1500 * time.Millisecond)
	kit.Equal(t, "connection", w.conn(0, a.ID), noted)
	kit.Equal(t, "connection under the tag that is down", w.conn(1, a.ID), "")
	kit.Equal(t, "it was ended", w.dead(a.ID), false)
	refused.Store(false)
	killConn(t, s.Client(t), noted)
	w.linked(a.ID, noted)
	kit.Equal(t, "it was ended", w.dead(a.ID), false)
}

// Each death is found, also of neighbours in the ring, and sessions that end leave no key.
func TestManyDeaths(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	p := faultproxy.Start(t, s.Addr())
	c := redis.NewClient(&redis.Options{Addr: p.Addr()})
	t.Cleanup(func() { c.Close() })
	var seen sights
	near, far := on(through(t, s.Addr(), seen.open), w.namespace, leaseredis.WithLogger(discard)), on(c, w.namespace, leaseredis.WithLogger(slog.New(slog.DiscardHandler)))
	hinted(t, near)
	var alive, doomed []string
	for i := range 15 {
		if i%3 == 0 {
			alive = append(alive, w.join(near, grouped, time.Hour).ID)
		} else {
			doomed = append(doomed, w.join(far, grouped, time.Hour).ID)
		}
	}
	for _, id := range alive {
		w.sees(&seen, id, doomed...)
	}
	p.Cut()
	cut := time.Now()
	kit.Eventually(t, "all deaths are found", func() bool { return !slices.ContainsFunc(doomed, func(id string) bool { return !w.dead(id) }) })
	t.Logf("10 of 15 sessions were found dead within %v", time.Since(cut).Round(time.Millisecond))
	kit.Equal(t, "the living are dead", slices.ContainsFunc(alive, w.dead), false)
	kit.Equal(t, "members of the ring", w.c.ZCard(t.Context(), w.key(0, "ring")).Val(), int64(len(alive)))
}

// One process alone finds the deaths of many, one after the other, without taking the time that this needs for one in which it was frozen.
func TestOneFindsManyDeaths(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	p := faultproxy.Start(t, s.Addr())
	c := redis.NewClient(&redis.Options{Addr: p.Addr()})
	t.Cleanup(func() { c.Close() })
	var seen sights
	near, far := on(through(t, s.Addr(), seen.open), w.namespace, leaseredis.WithLogger(discard)), on(c, w.namespace, leaseredis.WithLogger(discard))
	hinted(t, near)
	alive := w.join(near, grouped, time.Hour).ID
	var doomed []string
	for range 20 {
		doomed = append(doomed, w.join(far, grouped, time.Hour).ID)
	}
	w.sees(&seen, alive, doomed...)
	bare := pace.Beside(t, func(ctx context.Context) error { return w.c.Exists(ctx, w.key(0, "meta")).Err() })
	p.Cut()
	cut := time.Now()
	kit.Eventually(t, "all deaths are found", func() bool { return !slices.ContainsFunc(doomed, func(id string) bool { return !w.dead(id) }) })
	bare.Within(t, "finding 20 deaths", time.Since(cut), 5*time.Second)
	t.Logf("20 sessions were found dead within %v", time.Since(cut).Round(time.Millisecond))
	kit.Equal(t, "the living one is dead", w.dead(alive), false)
}

// Looking writes no key, and is one command however much is held; who is alone hardly looks.
func TestCostOfWatching(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	be := on(w.c, w.namespace, leaseredis.WithLogger(discard))
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(1000)))
	w.join(be, topical, time.Hour).Acquires(1000)
	time.Sleep(time.Second)
	cost := func() (rate float64) {
		before, began := infoNumber(t, s.Client(t), "stats", "total_commands_processed"), time.Now()
		time.Sleep(6 * time.Second)
		return float64(infoNumber(t, s.Client(t), "stats", "total_commands_processed")-before) / time.Since(began).Seconds()
	}
	alone := cost()
	const others = 4
	for range others {
		w.join(be, topical, time.Hour)
	}
	time.Sleep(time.Second)
	many := cost() / (others + 1)
	t.Logf("alone %.1f commands a second, of %d sessions each %.1f", alone, others+1, many)
	if alone > 4 || many > 7 { // those of scripts and of this test are counted
		t.Errorf("watching costs %.1f commands a second alone, and %.1f beside others", alone, many)
	}
}

// sentCommands counts what clients send to a server in that time, by command or script, without what scripts do.
func sentCommands(t testing.TB, s *redistest.Server, during time.Duration) map[string]int {
	t.Helper()
	names := map[string]string{}
	for name := range leaseredis.ScriptSources() {
		names[leaseredis.ShaOf(name)] = name
	}
	admin := s.Client(t)
	const unseen = "client|list" // MONITOR does not show commands for administrators
	before := commandCalls(t, admin, unseen)
	c := kit.Must[net.Conn](t)(net.Dial("tcp", s.Addr()))
	defer c.Close()
	kit.Must[int](t)(c.Write([]byte("MONITOR\r\n")))
	sent := map[string]int{}
	kit.OK(t, c.SetReadDeadline(time.Now().Add(during)))
	for lines := bufio.NewScanner(c); lines.Scan(); {
		if _, command, ok := strings.Cut(lines.Text(), "] \""); ok && !strings.Contains(lines.Text(), " lua] ") {
			command, rest, _ := strings.Cut(strings.ToLower(command), "\" \"")
			sha, _, _ := strings.Cut(rest, "\"")
			sent[cmp.Or(names[sha], strings.Trim(command, "\""))]++
		}
	}
	sent[unseen] = int(commandCalls(t, admin, unseen) - before)
	return sent
}

// A process at rest sends five commands a second at most, however many stand beside it and whatever they hold.
func TestProcessesAtRestSendLittle(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it watches for seconds")
	}
	const processes, topics, during = 4, 1000, 12 * time.Second
	s := redistest.Start(t)
	var n atomic.Int64
	for range processes {
		be := on(s.Client(t), "x", leaseredis.WithLogger(discard))
		run(t, be, lease.Spec{Name: "c", Per: backend.PerTopic, Topics: []string{"*"}, Handlers: []lease.Handler{noop("kind", &n)}})
	}
	be := on(s.Client(t), "x", leaseredis.WithLogger(discard))
	for i := range topics {
		kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "t" + strconv.Itoa(i), Kind: "kind", Payload: []byte("{}")}}))
	}
	kit.Eventually(t, "all is handled", func() bool { return n.Load() == topics })
	var rate float64
	for tries := 0; (tries == 0 || rate > 5) && tries < 10; tries++ {
		time.Sleep(3 * time.Second) // until what was read is trimmed, and leases are shared out
		sent := sentCommands(t, s, during)
		all := 0
		for _, calls := range sent {
			all += calls
		}
		rate = float64(all) / processes / during.Seconds()
		t.Logf("%.2f commands a second and process: %v", rate, sent)
	}
	if rate > 5 {
		t.Errorf("a process at rest sends %.2f commands a second, want at most 5", rate)
	}
}
