package redisproof

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/redistest"
)

// A killed consumer's work is taken over within ttl + 1 s: pairs of replicas, one the owner
// of a topic and one its standby, lose the owner again and again.
func TestKilledConsumerIsRecovered(t *testing.T) {
	t.Parallel()
	const pairs = 10
	trials := rounds(t, pairs, 100)
	var mu sync.Mutex
	var took []time.Duration
	t.Run("pairs", func(t *testing.T) {
		for i := range min(pairs, trials) {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				s := onServer(t, redistest.Shared(t), whole, 1+3*(i%2), "")
				f := startFleet(t, names(s.settings, 2)...)
				for n := i; n < trials; n += pairs {
					d := s.takeover(t, f)
					mu.Lock()
					took = append(took, d)
					mu.Unlock()
				}
			})
		}
	})
	if t.Failed() {
		return
	}
	slices.Sort(took)
	at := func(q float64) time.Duration {
		return took[max(0, int(math.Ceil(q*float64(len(took))))-1)].Round(time.Millisecond)
	}
	t.Logf("SIGKILL of the owner, ttl %v, %d trials: p50 %v, p99 %v, max %v", ttl, len(took), at(0.5), at(0.99), at(1))
}

// takeover kills the owner of a topic and returns how long it took until somebody else worked on it.
func (s *site) takeover(t *testing.T, f *fleet.Fleet) time.Duration {
	t.Helper()
	const topic = "t.one"
	// handled publishes a message and returns who handled it, under which epoch.
	handled := func() (by string, epoch int64) {
		t.Helper()
		if err := s.publish(t.Context(), topic, 1); err != nil {
			t.Fatal(err)
		}
		seq := fmt.Sprint(s.lastOf()[topic])
		eventually(t, "a message is handled", func() bool {
			lines, err := s.sink.read(t.Context(), s.history.read)
			if err != nil {
				t.Fatal(err)
			}
			s.history.read += len(lines)
			for _, l := range lines {
				if w := strings.Fields(l); w[0] == "effect" && w[2] == seq {
					by, epoch = w[5], digits(w[3])
				}
			}
			return by != ""
		})
		return by, epoch
	}
	eventually(t, "both replicas are members", func() bool {
		members, err := s.be.Members(t.Context(), consumerName)
		if err != nil {
			t.Fatal(err)
		}
		return len(members) == 2
	})
	owner, epoch := handled()
	i := slices.IndexFunc(f.Replicas, func(p *fleet.Process) bool { return p.Name == owner })
	bare := pace.Beside(t, s.sink.ping)
	begin := time.Now()
	f.Signal(f.Replicas[i], syscall.SIGKILL)
	next, later := handled()
	took := time.Since(begin)
	bare.Within(t, "takeover", took, ttl+time.Second)
	bare.Stop()
	if next == owner || later <= epoch {
		t.Fatalf("after %s with epoch %d was killed, %s handled a message with epoch %d", owner, epoch, next, later)
	}
	f.Restart(f.Replicas[i])
	return took
}

// cpuOf is the processor time that all replicas have used.
func cpuOf(t *testing.T, f *fleet.Fleet) time.Duration {
	t.Helper()
	var ticks int64
	for _, p := range f.Replicas {
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID()), "stat"))
		if err != nil {
			t.Skip("processor time is read from /proc")
		}
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		ticks += digits(fields[11]) + digits(fields[12]) // user and system
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
