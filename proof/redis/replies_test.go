package redisproof

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/redistest"
)

// Replicas are killed at each kind of request that they make, when the server has acted
// on it and the reply is on its way. The state before the request is that after the one before it, so
// this is every window there is between any two steps.
func TestKilledBetweenSteps(t *testing.T) {
	t.Parallel()
	pace.Shares(t, rounds(t, 1, 100), roundsEach, func(t *testing.T, n int) { atEachStep(t, "SIGKILL at each step", n, true) })
}

// Replies are lost, at each kind of request; those to publishers, too.
func TestRepliesLost(t *testing.T) {
	t.Parallel()
	pace.Shares(t, rounds(t, 1, 100), roundsEach, func(t *testing.T, n int) { atEachStep(t, "reply lost at each step", n, false) })
}

// atEachStep hits each kind of request n times.
func atEachStep(t *testing.T, fault string, n int, kill bool) {
	t.Helper()
	server := redistest.Shared(t)
	publisher := faultproxy.Start(t, server.Addr())
	s := onServer(t, server, failing, 4, publisher.Addr())
	steps := newSteps(t)
	var proxies []*faultproxy.Proxy
	all := names(s.settings, 2)
	killed := make([]atomic.Int64, len(all)) // the last process of each
	for i := range all {
		p := faultproxy.Start(t, server.Addr())
		p.DropReply(steps.watch)
		proxies = append(proxies, p)
		all[i].Addrs = []string{p.Addr()}
	}
	stop := s.load(t, topicCount)
	f := startFleet(t, all...)
	s.working(t, topicCount)
	begin := time.Now()
	revive := func(i int) {
		if p := f.Replicas[i]; killed[i].Load() == int64(p.PID()) {
			f.Restart(p)
		}
	}
	// Until each step that is known has been hit n times; in make test, as far as one gets from when the replicas work.
	enough := func() bool { return !pace.Long() && time.Since(begin) > 25*time.Second && steps.total() > 0 }
	for tries := 0; tries < 60*n && !enough(); tries++ {
		step := steps.next(n)
		if step == "" {
			break
		}
		i := rand.IntN(len(proxies))
		p, other := f.Replicas[i], f.Replicas[(i+1)%len(proxies)]
		hit := proxies[i].AtReply(func(request []byte) bool {
			steps.watch(request)
			return slices.Contains(steps.in(request), step)
		}, func() {
			if kill {
				pid := int64(p.PID())
				_ = syscall.Kill(int(pid), syscall.SIGKILL)
				killed[i].Store(pid)
			}
		})
		// Sessions are opened when a replica starts, closed when it ends, leases released when another starts.
		if within(hit, 300*time.Millisecond) || restart(t, f, p, syscall.SIGKILL, hit) ||
			restart(t, f, other, syscall.SIGKILL, hit) || restart(t, f, p, syscall.SIGTERM, hit) {
			steps.count(step)
		} else {
			proxies[i].DropReply(steps.watch)
			steps.miss(step)
		}
		revive(i)
		if !kill && tries%2 == 0 {
			lost := publisher.DropReply(func(request []byte) bool { return len(steps.in(request)) > 0 })
			if !within(lost, time.Minute) {
				t.Fatal("nobody publishes any more")
			}
		}
	}
	for i := range f.Replicas {
		proxies[i].DropReply(steps.watch)
		revive(i)
	}
	stop()
	r := s.close(t, f, fault, steps.total(), begin)
	t.Logf("%s, hits: %s", fault, steps)
	if steps.total() == 0 {
		t.Errorf("%s: no step was hit", fault)
	}
	if lacks := steps.short(n); len(lacks) > 0 && pace.Long() {
		t.Errorf("%s: too few hits of requests that are always made: %v; hits: %s", fault, lacks, steps)
	}
	if !kill && r.unsure > r.published/10 {
		t.Errorf("%s: %d of %d publications ended with an error, though only replies were lost", fault, r.unsure, r.published)
	}
}

// within reports whether c is closed before so much time has passed.
func within(c <-chan struct{}, d time.Duration) bool {
	select {
	case <-c:
		return true
	case <-time.After(d):
		return false
	}
}

// restart ends a replica, starts it again and reports whether a request was hit by then, or soon after it had a session.
func restart(t *testing.T, f *fleet.Fleet, p *fleet.Process, how syscall.Signal, hit <-chan struct{}) bool {
	t.Helper()
	from := f.Marker()
	_ = syscall.Kill(p.PID(), how) // it may have been killed just now
	f.Restart(p)
	session := func(e fleet.Event) bool { return e.What == "session" && e.Replica == p.Name }
	for deadline := time.Now().Add(patience); !within(hit, 10*time.Millisecond); {
		if i, _ := f.Find(from, session); i >= 0 || p.Gone() { // the late reply to an earlier step's request has killed it
			return within(hit, ttl/2)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s was started again and had no session within %v", p.Name, patience)
		}
	}
	return true
}

// steps are the kinds of requests that replicas make: scripts, and plain reads of streams. A command that Check
// tries at the start has no effect, and does not count.
type steps struct {
	names map[string]string // of scripts, by SHA-1

	mu     sync.Mutex
	hits   map[string]int
	missed map[string]int // waited for in vain
}

func newSteps(t *testing.T) *steps {
	t.Helper()
	s := &steps{names: map[string]string{}, hits: map[string]int{}, missed: map[string]int{}}
	// Scripts are called by the sum of their text, which is made as script.go makes it.
	dir := filepath.Join("..", "..", "runtime", "leaseredis")
	list, err := os.ReadFile(filepath.Join(dir, "scripts.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range loadPattern.FindAllSubmatch(list, -1) {
		var parts []string // the script's name, then those of its libraries
		for _, m := range wordPattern.FindAllSubmatch(call[1], -1) {
			parts = append(parts, string(m[1]))
		}
		src := fmt.Sprintf("local creating = %t", parts[0] == "shape")
		for _, part := range slices.Concat([]string{"lib"}, parts[1:], parts[:1]) {
			body, err := os.ReadFile(filepath.Join(dir, "scripts", part+".lua"))
			if err != nil {
				t.Fatal(err)
			}
			src += "\n" + string(body)
		}
		sum := sha1.Sum([]byte(src))
		s.names[hex.EncodeToString(sum[:])] = parts[0]
	}
	known := slices.AppendSeq([]string{"xrange"}, maps.Values(s.names))
	for name := range wanted(1) {
		if !slices.Contains(known, name) {
			t.Fatalf("leaseredis has no script %s: put the name of its successor into wanted, or take it out", name)
		}
		s.hits[name] = 0 // even if it is never seen
	}
	return s
}

var (
	loadPattern = regexp.MustCompile(`\bload\(([^)]*)\)`)
	wordPattern = regexp.MustCompile(`"([^"]+)"`)
)

var requestPattern = regexp.MustCompile(`\*\d+\r\n\$\d+\r\n(?i:(evalsha)\r\n\$40\r\n([0-9a-f]{40})|(xrange)\r\n\$\d+\r\n([^\r]*))\r\n`)

// in names the steps in a request.
func (s *steps) in(request []byte) []string {
	var found []string
	for _, m := range requestPattern.FindAllSubmatch(request, -1) {
		name := strings.ToLower(string(m[3]))
		if len(m[1]) > 0 {
			name = s.names[string(m[2])]
		}
		if name != "" && !strings.HasSuffix(string(m[4]), "probe") { // neither another program's script, nor Check's
			found = append(found, name)
		}
	}
	return found
}

// watch notes what steps there are. It lets every reply through.
func (s *steps) watch(request []byte) bool {
	found := s.in(request)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range found {
		s.hits[name] += 0
	}
	return false
}

// next returns the least tried of the steps that have fewer than n hits and are still worth a try. It returns "" if no step is left.
func (s *steps) next(n int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var least []string
	var tries int // of each of them
	musts := wanted(n)
	for name, hits := range s.hits {
		missed, worth := s.missed[name], 3+n/10
		if hits < musts[name] {
			worth = 10 + 2*n
		}
		if hits >= n || missed >= worth {
			continue
		}
		if len(least) == 0 || hits+missed < tries {
			least, tries = least[:0], hits+missed
		}
		if hits+missed == tries {
			least = append(least, name)
		}
	}
	if len(least) == 0 {
		return ""
	}
	return least[rand.IntN(len(least))]
}

func (s *steps) miss(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missed[name]++
}

func (s *steps) count(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hits[name]++
}

// wanted returns how many of n hits each step must get: all of them where a replica makes it at every start, or all the time; one where
// a kill may come first, as when it closes its session or gives leases back. Other steps are rare, and need none.
func wanted(n int) map[string]int {
	w := map[string]int{"close": 1, "release": 1}
	for _, name := range []string{"acquire", "attach", "commit", "feed", "fetchparked", "heartbeat", "open", "register", "ring", "shape", "survey", "xrange"} {
		w[name] = n
	}
	return w
}

// short names the steps that were hit less often than they must be.
func (s *steps) short(n int) (lacks []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, must := range wanted(n) {
		if s.hits[name] < must {
			lacks = append(lacks, fmt.Sprintf("%s %d of %d", name, s.hits[name], must))
		}
	}
	slices.Sort(lacks)
	return lacks
}

func (s *steps) total() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.hits {
		n += h
	}
	return n
}

func (s *steps) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, name := range slices.Sorted(maps.Keys(s.hits)) {
		all = append(all, fmt.Sprintf("%s %d (missed %d)", name, s.hits[name], s.missed[name]))
	}
	return strings.Join(all, ", ")
}
