package redisproof

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/redistest"
)

// roundsEach is how many rounds one site makes: several share what is mostly waiting.
const roundsEach = 25

// mustHold injects n faults under load and checks the history.
func mustHold(t *testing.T, s *site, fault string, n int, round func(*fleet.Fleet)) row {
	t.Helper()
	return inject(t, s, names(s.settings, 3), fault, n, round, func(*fleet.Fleet) bool { return true })
}

// mustHit is mustHold for faults after which others take over. On a busy machine a replica may own
// no lease yet when a fault hits it: that round is made up for.
func mustHit(t *testing.T, s *site, replicas []settings, fault string, n int, round func(*fleet.Fleet)) {
	t.Helper()
	r := inject(t, s, replicas, fault, n, round, func(f *fleet.Fleet) bool { return f.Count(fleet.TakenOver) >= n })
	if r.takeovers < n {
		t.Errorf("%s: %d takeovers from crashed owners in %d rounds: the faults did not hit", fault, r.takeovers, r.rounds)
	}
}

// inject makes n rounds, and up to three times as many until they are enough.
func inject(t *testing.T, s *site, replicas []settings, fault string, n int, round func(*fleet.Fleet), enough func(*fleet.Fleet) bool) row {
	t.Helper()
	begin := time.Now()
	stop := s.load(t, topicCount)
	f := startFleet(t, replicas...)
	s.working(t, topicCount)
	done := 0
	for done < n || !enough(f) && done < 3*n {
		round(f)
		if done++; done%10 == 0 {
			t.Logf("%s: round %d of %d after %v", fault, done, n, time.Since(begin).Round(time.Second))
		}
	}
	stop()
	return s.close(t, f, fault, done, begin)
}

func killRound(f *fleet.Fleet) {
	f.Kill(f.Replicas[rand.IntN(len(f.Replicas))])
	// Sometimes before the leases are taken over, sometimes after.
	time.Sleep(ttl/2 + rand.N(ttl))
}

func freezeRound(f *fleet.Fleet) {
	p := f.Replicas[rand.IntN(len(f.Replicas))]
	f.Freeze(p)
	time.Sleep(ttl + ttl/2 + rand.N(ttl+ttl/2))
	f.Thaw(p)
	time.Sleep(ttl/4 + rand.N(ttl/4))
}

// Replicas that are killed lose no message, and undo no commit.
func TestKill(t *testing.T) {
	t.Parallel()
	pace.Shares(t, rounds(t, 4, 100), roundsEach, func(t *testing.T, n int) {
		s := onServer(t, redistest.Shared(t), whole, 1, "")
		mustHit(t, s, names(s.settings, 3), "SIGKILL", n, killRound)
	})
}

// Over several hash tags and while handlers fail: retries are not forgotten, none jumps the
// queue of its key, and exactly the messages that cannot be handled become dead letters. In make test the
// pools are small, too: the next test.
func TestKillWhileHandlersFail(t *testing.T) {
	if !pace.Long() {
		t.Skip("make proof-redis runs it")
	}
	t.Parallel()
	pace.Shares(t, rounds(t, 4, 100), roundsEach, func(t *testing.T, n int) {
		s := onServer(t, redistest.Shared(t), failing, 4, "")
		mustHit(t, s, names(s.settings, 3), "SIGKILL, handlers fail, 4 tags", n, killRound)
	})
}

// Clients with pools of 1, 2 and 4 connections, fewer than topics at work, starve none of them.
func TestKillOnSmallPools(t *testing.T) {
	t.Parallel()
	s := onServer(t, redistest.Shared(t), failing, 4, "")
	all := names(s.settings, 3)
	for i, conns := range []int{1, 2, 4} {
		all[i].Pool = conns
	}
	mustHit(t, s, all, "SIGKILL, handlers fail, pools of 1, 2 and 4", rounds(t, 3, 20), killRound)
}

// Handlers that take ten times as long as a session lasts are never taken for dead.
func TestSlowHandlers(t *testing.T) {
	t.Parallel()
	const each = 100 // topics, with one message each, all handled at once
	s := onServer(t, redistest.Shared(t), whole, 4, "")
	s.settings.TTL, s.settings.Slow = 5*ttl, 8*ttl // no heartbeat comes so late
	if pace.Long() {
		s.settings.Slow = 50 * ttl
	}
	begin := time.Now()
	for i := range each {
		if err := s.publish(t.Context(), topicName(i), 1); err != nil {
			t.Fatal(err)
		}
	}
	f := startFleet(t, names(s.settings, 3)...)
	r := s.close(t, f, fmt.Sprintf("handlers take %v, ttl %v", s.settings.Slow, s.settings.TTL), each, begin)
	if r.effects != each || r.takeovers > 0 || f.Count(fleet.Is("lost")) > 0 {
		t.Errorf("%d effects of %d messages, %d leases lost, %d taken over: %+v", r.effects, each, f.Count(fleet.Is("lost")), r.takeovers, r.verdict)
	}
}

// Eight processes that start at once on what is there handle each message once. A machine that stands still ends
// sessions, whose messages are handled again: such a round does not count.
func TestStartTogether(t *testing.T) {
	t.Parallel()
	for round, spoilt := 0, 0; round < rounds(t, 2, 20); round++ {
		s := onServer(t, redistest.Shared(t), whole, 1+3*(round%2), "")
		s.settings.TTL = 5 * ttl
		const topics, each = 40, 25
		for i := range topics {
			if err := s.publish(t.Context(), topicName(i), each); err != nil {
				t.Fatal(err)
			}
		}
		begin := time.Now()
		f := startFleet(t, names(s.settings, 8)...)
		r := s.close(t, f, "eight start at once", 1, begin)
		lost := f.Count(fleet.Is("lost"))
		switch {
		case r.effects == topics*each:
		case r.effects > topics*each && lost > 0 && spoilt < 5:
			t.Logf("%d leases were lost: once more", lost)
			round, spoilt = round-1, spoilt+1
		default:
			t.Errorf("%d effects of %d messages, %d leases lost, though nobody crashed", r.effects, topics*each, lost)
		}
	}
}

// The server is killed with SIGKILL and started again.
func TestServerKilled(t *testing.T) {
	t.Parallel()
	// With appendfsync everysec Redis answers before it writes while an fsync takes its time, and loses what it has answered then.
	server := redistest.Start(t, redistest.Config("appendfsync", "always"))
	s := onServer(t, server, whole, 4, "")
	mustHold(t, s, "server SIGKILL, AOF always", rounds(t, 2, 10), func(*fleet.Fleet) {
		time.Sleep(rand.N(ttl / 2))
		server.Kill()
		time.Sleep(rand.N(ttl))
		server.Start()
		s.again(t, s.lastOf())
	})
}

// The server is frozen for longer than leases last: owners stop believing, and start again.
func TestServerFrozen(t *testing.T) {
	t.Parallel()
	pace.Shares(t, rounds(t, 2, 20), roundsEach/5, func(t *testing.T, n int) {
		server := redistest.Start(t)
		s := onServer(t, server, whole, 1, "")
		mustHold(t, s, "server SIGSTOP for 2 ttl", n, func(f *fleet.Fleet) {
			from := f.Marker()
			server.Pause()
			time.Sleep(2 * ttl)
			eventually(t, "a lease is lost while the server is frozen", func() bool {
				i, _ := f.Find(from, fleet.Is("lost"))
				return i >= 0
			})
			server.Resume()
			s.again(t, s.lastOf())
		})
	})
}

// mute may do everything but look at or change the configuration.
var mute = []string{"~*", "&*", "+@all", "-config"}

// When every notification is lost, and with CONFIG forbidden, everything works anyway.
func TestWithoutNotifications(t *testing.T) {
	t.Parallel()
	pace.Shares(t, rounds(t, 2, 100), roundsEach, func(t *testing.T, n int) {
		server := redistest.Start(t)
		s := onServer(t, server, whole, 4, "")
		opts := server.User(t, "mute", mute...).Options()
		s.settings.User, s.settings.Password, s.settings.Deaf = opts.Username, opts.Password, true
		mustHit(t, s, names(s.settings, 3), "no notifications, SIGKILL", n, killRound)
	})
}

// Requests that the server refuses for a while are tried again.
func TestServerRefuses(t *testing.T) {
	t.Parallel()
	pace.Shares(t, rounds(t, 1, 20), roundsEach/5, serverRefuses)
}

// serverRefuses makes rounds of all refusals.
func serverRefuses(t *testing.T, rounds int) {
	server := redistest.Start(t)
	s := onServer(t, server, whole, 4, "")
	admin := server.Client(t)
	do := func(args ...any) {
		t.Helper()
		if err := admin.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	refusals := []struct {
		what       string
		begin, end func()
	}{
		{"SCRIPT FLUSH", func() { do("SCRIPT", "FLUSH") }, func() {}},
		{"OOM", func() { do("CONFIG", "SET", "maxmemory", "1mb") }, func() { do("CONFIG", "SET", "maxmemory", "0") }},
		{"READONLY", func() { do("REPLICAOF", "127.0.0.1", "1") }, func() { do("REPLICAOF", "NO", "ONE") }},
		{"NOREPLICAS", func() { do("CONFIG", "SET", "min-replicas-to-write", "1") }, func() { do("CONFIG", "SET", "min-replicas-to-write", "0") }},
		{"LOADING", func() { server.Restart() }, func() {}},
		{"connections killed", func() { do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") }, func() {}},
		{"CLIENT PAUSE", func() { do("CLIENT", "PAUSE", ttl.Milliseconds()/2, "ALL") }, func() {}},
	}
	i := 0
	mustHold(t, s, "server refuses", len(refusals)*rounds, func(*fleet.Fleet) {
		r := refusals[i%len(refusals)]
		i++
		r.begin()
		time.Sleep(rand.N(ttl))
		r.end()
		ended := time.Now()
		if took := s.again(t, s.lastOf()).Sub(ended); took > time.Second {
			t.Logf("%s: everything is worked on again %v after it", r.what, took)
		}
	})
}

// Replicas that are all called the same do not take each other's leases.
func TestSameName(t *testing.T) {
	t.Parallel()
	pace.Shares(t, rounds(t, 2, 50), roundsEach, func(t *testing.T, n int) {
		s := onServer(t, redistest.Shared(t), whole, 1, "")
		s.settings.Name = "pod"
		mustHit(t, s, []settings{s.settings, s.settings}, "replicas of one name, SIGKILL", n, killRound)
	})
}

// Replicas that are frozen until their sessions have expired do not extend them, and
// have no effect any more.
func TestFreeze(t *testing.T) {
	t.Parallel()
	pace.Shares(t, rounds(t, 2, 200), roundsEach, func(t *testing.T, n int) {
		s := onServer(t, redistest.Shared(t), whole, 4, "")
		mustHit(t, s, names(s.settings, 3), "SIGSTOP", n, notRevived(t, s))
	})
}

// notRevived freezes a replica until its session has expired, and checks that this session is over.
func notRevived(t *testing.T, s *site) func(*fleet.Fleet) {
	return func(f *fleet.Fleet) {
		if who := comesBack(t, s, f); who != "" {
			t.Errorf("session %s had expired and lives again", who)
		}
	}
}

// comesBack freezes a replica until its session has expired and others have taken over, lets
// it go on, and returns its session if that lives again.
func comesBack(t *testing.T, s *site, f *fleet.Fleet) string {
	t.Helper()
	p := f.Replicas[rand.IntN(len(f.Replicas))]
	live := func() map[string]bool {
		members, err := s.be.Members(t.Context(), consumerName)
		if err != nil {
			t.Fatal(err)
		}
		ids := map[string]bool{}
		for _, m := range members {
			ids[m.Session] = true
		}
		return ids
	}
	session := func() (last string) { // on a busy machine the replica may lose one and open another at any time
		for _, e := range f.Events(0) {
			if e.Replica == p.Name && e.What == "session" {
				last = e.Resource
			}
		}
		return last
	}
	eventually(t, "the replica is a member", func() bool { return live()[session()] })
	f.Freeze(p)
	eventually(t, "the frozen replica's session is over", func() bool { return !live()[session()] })
	expired := session()
	from := f.Marker()
	f.Thaw(p)
	again := ""
	eventually(t, "the replica has another session, or its old one", func() bool {
		if live()[expired] {
			again = expired
			return true
		}
		i, _ := f.Find(from, func(e fleet.Event) bool { return e.Replica == p.Name && e.What == "session" })
		return i >= 0
	})
	return again
}

// The fence alone is enough: contexts that are cancelled are ignored.
func TestFreezeFenceOnly(t *testing.T) {
	t.Parallel()
	s := onServer(t, redistest.Shared(t), fenceOnly, 4, "")
	for range 10 { // until a frozen process was in the middle of something
		if r := mustHold(t, s, "SIGSTOP, fence alone", rounds(t, 4, 20), freezeRound); int64(r.fence)+r.refused > 0 || t.Failed() {
			return
		}
	}
	t.Error("nothing was refused: the faults did not hit, and the test shows nothing")
}

// Replicas that are cut off for longer than their leases last, while no connection breaks,
// have no effect: not even when their requests arrive late.
func TestCutOff(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	s := onServer(t, server, whole, 1, "")
	var proxies []*faultproxy.Proxy
	all := names(s.settings, 3)
	for i := range all {
		p := faultproxy.Start(t, server.Addr())
		proxies = append(proxies, p)
		all[i].Addrs = []string{p.Addr()}
	}
	mustHit(t, s, all, "cut off", rounds(t, 2, 20), func(*fleet.Fleet) {
		p := proxies[rand.IntN(len(proxies))]
		p.BlackHole()
		time.Sleep(ttl + ttl/2 + rand.N(ttl/2))
		p.Heal()
		time.Sleep(ttl/4 + rand.N(ttl/4))
	})
}
