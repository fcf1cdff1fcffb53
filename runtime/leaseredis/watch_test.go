package leaseredis_test

import (
	"bufio"
	"cmp"
	"context"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
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
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

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
		process, dead := part.Start(t, taking{[]string{s.Addr()}, false, w.namespace, ttl, info, 100})
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
	p := taking{cluster.Addrs(), true, w.namespace, ttl, topical, 100}
	for round := range 2 {
		process, dead := part.Start(t, p)
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
	process, frozen := part.Start(t, taking{[]string{redistest.Shared(t).Addr()}, false, w.namespace, ttl, topical, 3})
	w.linked(frozen)
	childproc.Freeze(process.Pid)
	expires := time.UnixMicro(int64(w.c.ZScore(t.Context(), w.key(0, "sessions"), frozen).Val()))
	kit.Eventually(t, "its leases are taken over", func() bool { return len(successor.Acquires(3)) == 3 })
	if early := time.Until(expires); early > 10*time.Millisecond {
		t.Errorf("they were taken %v before its TTL was over", early)
	}
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
