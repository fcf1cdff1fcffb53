// Package pace says how many tests run at once and how long they go on, and judges how long something took beside a bare
// request of the same machine at the same time: a machine that is slow or busy proves no defect.
package pace

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Long reports whether tests go on for long: in make proof and make proof-redis, but not in make test.
func Long() bool { return os.Getenv("PROOF_ROUNDS") != "" }

// Rounds is how often a test repeats what it shows: few times in make test and make more, many in make proof and make proof-redis.
func Rounds(few, many int) int {
	if Long() {
		return many
	}
	return few
}

// turns is how many of the longest bare requests fit into what a test allows beyond its limit. The code under judgment makes several
// requests one after the other, in processes that each wait for their turn.
const turns = 10

// A bare request takes a few milliseconds on a quiet machine. Where one took so long, how long something else takes is not judged: what
// waits for processes, links and servers in turn takes any number of times as long. A good machine judges it.
const busy = 100 * time.Millisecond

// stalled is how long a bare request takes where timeouts pass and leases end, whatever is tested.
const stalled = 500 * time.Millisecond

// Between two bare requests.
const (
	pause     = 5 * time.Millisecond
	pauseMost = 50 * time.Millisecond
)

// Bare is a small request that is made all the time beside what a test judges.
type Bare struct {
	stop func()
	slow float64 // how many times as long as on a good machine a process takes to start here; 0 for 1

	mu      sync.Mutex
	began   time.Time // of the present one, or when the next is due
	over    bool      // the last has ended
	longest time.Duration
	busy    time.Time // when the last one that took so long had ended; zero: none has
}

// Beside makes one bare request after the other until Stop, at the latest until the test ends. In between it
// rests four times as long as the last one took, within 5 and 50 ms, so that it is little load itself; where each is a new connection and
// that takes 40 ms of a core, it is half a core's.
func Beside(t testing.TB, request func(context.Context) error) *Bare {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	took, _ := startOf()
	b := &Bare{began: time.Now().Add(pause), slow: float64(took) / float64(start)}
	b.stop = sync.OnceFunc(func() {
		cancel()
		loop.Wait()
		b.note() // it may have waited for long
		b.mu.Lock()
		defer b.mu.Unlock()
		b.over = true
	})
	t.Cleanup(b.stop)
	loop.Go(func() {
		for rest := pause; ; rest = b.note() {
			time.Sleep(rest)
			err := request(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				t.Errorf("a bare request: %v", err)
				return
			}
		}
	})
	return b
}

// note ends a request, and returns how long to rest before the next one.
func (b *Bare) note() (rest time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	took := now.Sub(b.began)
	b.longest = max(b.longest, took)
	if took > busy {
		b.busy = now
	}
	rest = min(max(pause, 4*took), pauseMost)
	b.began = now.Add(rest)
	return rest
}

// Stop ends the requests.
func (b *Bare) Stop() { b.stop() }

// Longest is how long a bare request took, at most.
func (b *Bare) Longest() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(b.longest, b.waiting())
}

// waiting is how long the present request has been waiting. The caller holds b.mu.
func (b *Bare) waiting() time.Duration {
	if b.over {
		return 0
	}
	return time.Since(b.began)
}

// BusySince reports whether a bare request that ended after since, or waits now, took so long that how long something else took
// is not judged.
func (b *Bare) BusySince(since time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting() > busy || b.busy.After(since)
}

// Stalled reports whether one took so long that timeouts pass and leases end, whatever is tested.
func (b *Bare) Stalled() bool { return b.Longest() > stalled }

// Within fails a test where something took longer than limit, and ten times the longest bare request beyond it. If that took
// a tenth of a second, it only logs. Where a process takes long to start, the limit is longer by as much: what opens connections
// to PostgreSQL is slower there, and a request on an open one is not.
func (b *Bare) Within(t testing.TB, what string, took, limit time.Duration) {
	t.Helper()
	longest := b.Longest()
	limit = time.Duration(float64(limit) * max(1, b.slow))
	switch allowed := limit + turns*longest; {
	case took <= limit:
	case longest > busy:
		t.Logf("%s took %v, want at most %v: not judged, the machine took %v for a bare request", what, took, limit, longest)
	case took > allowed:
		t.Errorf("%s took %v, want at most %v: %v, and %d times the longest bare request, %v", what, took, allowed, limit, turns, longest)
	}
}

// Parallel lets n tests run at once, or as many as the command line says. Tests that mostly wait are over sooner when there are
// many more than cores. Call it in TestMain.
func Parallel(n int) {
	if !flag.Parsed() {
		flag.Parse()
	}
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		flag.Set("test.parallel", strconv.Itoa(n))
	}
}

// AtOnce is how many of n pairs of processes may work side by side while it is measured how long something takes: fewer where processes
// are dear. How busy the machine is at this moment does not count: it may be for a second, and the number holds for minutes.
func AtOnce(n int) int {
	_, worked := startOf()
	return share(n, worked)
}

// start is what starting a process takes on a good machine. It shows what connections to PostgreSQL cost: some machines
// take several times as long for the pages of a new process, and no longer for anything else.
const start = time.Millisecond

// share is how many of n pairs are to run at once where the start of a process keeps a core busy for so long; all where that is not known.
func share(n int, worked time.Duration) int {
	return min(n, max(2, int(float64(n)*float64(start)/float64(max(worked, 1)))))
}

// startOf is how long a process takes to start and end here, and for how much of that it has a core, at best of a few; 0 where none can
// be started.
func startOf() (took, worked time.Duration) {
	took, worked = time.Hour, time.Hour
	for range 9 {
		began, c := time.Now(), exec.Command("true")
		if c.Run() != nil {
			return 0, 0
		}
		took = min(took, time.Since(began))
		worked = min(worked, c.ProcessState.UserTime()+c.ProcessState.SystemTime())
	}
	return took, worked
}

// Shares makes n rounds in shares of at most so many, as subtests that run at once, and returns when all have ended.
func Shares(t *testing.T, n, most int, share func(t *testing.T, n int)) {
	t.Helper()
	parts := (n + most - 1) / most
	if parts == 1 {
		share(t, n)
		return
	}
	t.Run("shares", func(t *testing.T) {
		for i := range parts {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				share(t, n*(i+1)/parts-n*i/parts)
			})
		}
	})
}
