package proof

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/pace"
)

const (
	shortRounds = 4  // in make test
	roundsEach  = 25 // of one fleet: several of them share the rounds, which are mostly waiting
	topicCount  = 30
)

// rounds is how many faults a test injects: PROOF_ROUNDS, else a few.
func rounds(t *testing.T) int {
	t.Helper()
	v := os.Getenv("PROOF_ROUNDS")
	if v == "" {
		return shortRounds
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("PROOF_ROUNDS=%q is not a number of rounds", v)
	}
	return n
}

// Replicas that are killed and started again lose no message, repeat none and leave
// none stale.
func TestKill(t *testing.T) {
	t.Parallel()
	mustHold(t, "SIGKILL", whole, rounds(t), killRound)
}

// The same while handlers fail: retries are not counted twice, none is forgotten or
// jumps the queue of its key, and exactly the messages that cannot be handled become
// dead letters. In make test the pools are small, too: the next test.
func TestKillWhileHandlersFail(t *testing.T) {
	if !pace.Long() {
		t.Skip("make proof runs it")
	}
	t.Parallel()
	mustHold(t, "SIGKILL, handlers fail", failing, max(shortRounds, rounds(t)/5), killRound)
}

// The same with pools of 1, 2 and 4 connections, fewer than handlers at work: a transaction waits for no
// connection while it holds one, so that all is handled, and leases are given and taken as ever.
func TestKillOnSmallPools(t *testing.T) {
	t.Parallel()
	mustHold(t, "SIGKILL, handlers fail, pools of 1, 2 and 4", failing, max(shortRounds, rounds(t)/5), killRound, 1, 2, 4)
}

// Replicas that are frozen for longer than their leases last and then go on have
// no effect any more.
func TestFreeze(t *testing.T) {
	t.Parallel()
	mustHold(t, "SIGSTOP", whole, rounds(t), freezeRound)
}

// The fence alone is enough: no cancelled context, no timeout of the server.
func TestFreezeFenceOnly(t *testing.T) {
	t.Parallel()
	r := mustHold(t, "SIGSTOP, fence alone", fenceOnly, max(4, rounds(t)/5), freezeRound)
	if r.fence == 0 {
		t.Error("no commit was refused: the faults did not hit, and the test shows nothing")
	}
}

// The same as TestFreezeFenceOnly, with the fence removed, must go wrong.
func TestFreezeFenceRemoved(t *testing.T) {
	t.Parallel()
	s := newSite(t, unfenced)
	begin := time.Now()
	stop := s.load(t, topicCount)
	f := startFleet(t, unfenced, s.dsn, s.dsn, s.dsn)
	ready(t, s)
	// A few rounds are enough, and one violation is: no need to wait for all.
	var v verdict
	n, most := 0, max(10, rounds(t)/5)
	for n < most && v.twice == 0 && v.stale == 0 {
		freezeRound(f)
		n++
		v = s.judge(t)
	}
	stop()
	s.quiet(t, 2*ttl)
	v = s.judge(t)
	printTable(t, row{"SIGSTOP, fence removed", n, f.Count(fleet.TakenOver), f.Count(fleet.Is("fenced")), time.Since(begin), v})
	if v.twice == 0 && v.stale == 0 {
		t.Errorf("without the fence %d rounds did no harm: the test cannot see what the fence prevents", n)
	}
}

// mustHold injects n faults under load and checks the history. The three replicas have pools of
// that many connections, or large ones.
func mustHold(t *testing.T, fault string, m mode, n int, round func(*fleet.Fleet), pools ...int) (all row) {
	t.Helper()
	var mu sync.Mutex
	pace.Shares(t, n, roundsEach, func(t *testing.T, n int) {
		r := holds(t, fault, m, n, round, pools...)
		mu.Lock()
		defer mu.Unlock()
		all = all.and(r)
	})
	if n > roundsEach {
		printTable(t, all)
	}
	return all
}

// holds is one fleet's share of mustHold.
func holds(t *testing.T, fault string, m mode, n int, round func(*fleet.Fleet), pools ...int) row {
	t.Helper()
	s := newSite(t, m)
	begin := time.Now()
	stop := s.load(t, topicCount)
	dsns := []string{s.dsn, s.dsn, s.dsn}
	for i, conns := range pools {
		dsns[i] += fmt.Sprintf("&pool_max_conns=%d", conns)
	}
	f := startFleet(t, m, dsns...)
	ready(t, s)
	// On a busy machine a replica may own no lease yet when a fault hits it: that round is made up for.
	// It may be between two commits when it is frozen: then the fence refuses none.
	missed := func() bool { return f.Count(fleet.TakenOver) < n || m == fenceOnly && f.Count(fleet.Is("fenced")) == 0 }
	done := 0
	for done < n || missed() && done < 5*n {
		round(f)
		if done++; done%10 == 0 {
			t.Logf("%s: round %d of %d after %v", fault, done, n, time.Since(begin).Round(time.Second))
		}
	}
	stop()
	r := s.close(t, f, fault, done, begin)
	if r.takeovers < n {
		t.Errorf("%s: %d takeovers from crashed owners in %d rounds: the faults did not hit", fault, r.takeovers, done)
	}
	return r
}

// close waits until everything is handled, stops the replicas and checks the history.
func (s *site) close(t *testing.T, f *fleet.Fleet, fault string, n int, begin time.Time) row {
	t.Helper()
	s.drained(t)
	f.Stop()
	s.nothingInvented(t)
	r := row{fault, n, f.Count(fleet.TakenOver), f.Count(fleet.Is("fenced")), time.Since(begin), s.judge(t)}
	printTable(t, r)
	if r.violations() > 0 {
		t.Errorf("%s: the history is wrong: %+v", fault, r.verdict)
	}
	return r
}

// Replicas that are cut off from the server for longer than their leases last, while
// no connection breaks, have no effect: not even when their requests arrive late.
func TestPartition(t *testing.T) {
	t.Parallel()
	s := newSite(t, whole)
	var proxies []*faultproxy.Proxy
	var dsns []string
	for range 3 {
		p := faultproxy.Start(t, s.server.Addr())
		proxies, dsns = append(proxies, p), append(dsns, s.through(p))
	}
	begin := time.Now()
	stop := s.load(t, topicCount)
	f := startFleet(t, whole, dsns...)
	ready(t, s)
	n := max(4, rounds(t)/5)
	done := 0
	for ; done < n || f.Count(fleet.TakenOver) < n && done < 3*n; done++ {
		p := proxies[rand.IntN(len(proxies))]
		p.BlackHole()
		time.Sleep(ttl + ttl/2 + rand.N(ttl/2))
		p.Heal()
		time.Sleep(ttl/4 + rand.N(ttl/4))
	}
	stop()
	if r := s.close(t, f, "cut off", done, begin); r.takeovers < n {
		t.Errorf("%d takeovers in %d rounds: the faults did not hit", r.takeovers, done)
	}
}

// Replies of the server that are lost, of whatever request, make no effect happen twice
// or not at all: the request was carried out, and the replica cannot know.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	pace.Shares(t, 10*rounds(t), 10*roundsEach, lostReplies)
}

func lostReplies(t *testing.T, n int) {
	s := newSite(t, whole)
	s.faulty = true
	proxy := faultproxy.Start(t, s.server.Addr())
	begin := time.Now()
	stop := s.load(t, topicCount)
	f := startFleet(t, whole, s.through(proxy), s.through(proxy), s.through(proxy))
	ready(t, s)
	for i := range n {
		// Every other time the end of a transaction, else anything at all.
		lost := proxy.DropReply(func(request []byte) bool {
			return i%2 == 0 && rand.IntN(20) == 0 || bytes.Contains(request, []byte("commit\x00"))
		})
		waitFor(t, lost, "a request whose reply is lost")
		time.Sleep(rand.N(100 * time.Millisecond))
	}
	stop()
	s.close(t, f, "replies lost", n, begin)
}

// ready waits until the first effects are there.
func ready(t *testing.T, s *site) {
	t.Helper()
	eventually(t, "the replicas begin to work", func() bool {
		var topics int
		if err := s.pool.QueryRow(t.Context(), `SELECT count(DISTINCT topic) FROM effect`).Scan(&topics); err != nil {
			t.Fatal(err)
		}
		return topics >= topicCount/2
	})
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

// patience is how long a test waits for anything: on a machine that stalls, sessions end again and again before it happens.
const patience = 5 * time.Minute

// eventually polls until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
