package redisproof

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

const (
	ttl        = 2 * time.Second
	topicCount = 12
)

// rounds is how often a fault is injected: short in make test, and most, or a multiple of it, in
// make proof-redis, whose PROOF_ROUNDS is a percentage. It is never fewer than in make test: mutants would go unnoticed.
func rounds(t *testing.T, short, most int) int {
	t.Helper()
	v := os.Getenv("PROOF_ROUNDS")
	if v == "" {
		return short
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("PROOF_ROUNDS=%q: want a number from 1", v)
	}
	return max(short, most*n/100)
}

// site is a namespace of a server or of a cluster, the sink, and what was published.
type site struct {
	settings settings // of its replicas
	client   redis.UniversalClient
	be       *leaseredis.Backend // the publishers'
	sink     *sink
	// lossy: faults may take back what was acknowledged: messages, or only progress.
	losesMessages, losesProgress bool
	// elects: how many masters the cluster elects after each fault; -1: they are not counted.
	elects int
	// lanes: handlers fail, so that keys wait and others do not.
	lanes bool

	gate sync.RWMutex // held by who does not want anything to be published

	mu      sync.Mutex
	topics  map[string]*published
	history *history
}

// published is what is known of one topic's messages.
type published struct {
	last   int64          // number of the last message
	unsure map[int64]bool // publishing them ended with an error: they may be there or not
}

// onServer is a site in a new namespace of a server. Publishers may go another way than replicas.
func onServer(t *testing.T, server *redistest.Server, m mode, tags int, publisherAddr string) *site {
	t.Helper()
	return newSite(t, settings{Addrs: []string{server.Addr()}, Tags: tags, Mode: m, TTL: ttl}, publisherAddr)
}

func onCluster(t *testing.T, c *redistest.Cluster, m mode) *site {
	t.Helper()
	s := newSite(t, settings{Addrs: c.Addrs(), Cluster: true, Mode: m, TTL: 5 * ttl}, "")
	s.elects = -1
	return s
}

func newSite(t *testing.T, set settings, publisherAddr string) *site {
	t.Helper()
	set.Namespace = redistest.Namespace(t)
	set.Sink = redistest.Shared(t).Addr()
	s := &site{settings: set, sink: newSink(set.Sink, set.Namespace), topics: map[string]*published{}, lanes: set.Mode.fails()}
	own := set
	if publisherAddr != "" {
		own.Addrs = []string{publisherAddr}
	}
	s.client = own.client()
	s.be = leaseredis.New(s.client, set.options()...)
	s.history = newHistory(s)
	t.Cleanup(func() {
		s.client.Close()
		s.sink.client.Close()
	})
	return s
}

func topicName(i int) string { return fmt.Sprintf("t.%02d", i) }

// publish appends the next n messages of a topic.
func (s *site) publish(ctx context.Context, topic string, n int) error {
	s.mu.Lock()
	p := s.topics[topic]
	if p == nil {
		p = &published{unsure: map[int64]bool{}}
		s.topics[topic] = p
	}
	first := p.last + 1
	p.last += int64(n)
	for i := range n {
		p.unsure[first+int64(i)] = true
	}
	s.mu.Unlock()
	events := make([]lease.Event, n)
	for i := range events {
		m := numbered{first + int64(i)}
		payload, err := json.Marshal(m)
		if err != nil {
			return err
		}
		events[i] = lease.Event{Topic: topic, Key: m.key(), Kind: "numbered", Payload: payload, Headers: map[string]string{"seq": fmt.Sprint(m.Seq)}}
	}
	if err := s.be.Publish(ctx, events); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range n {
		delete(p.unsure, first+int64(i))
	}
	return nil
}

// load publishes to all topics until the returned function is called. Each topic has one
// publisher, so that the order of a topic is known.
func (s *site) load(t *testing.T, topics int) (stop func()) {
	t.Helper()
	var stopped atomic.Bool
	var told atomic.Int64
	pause := 30 * time.Millisecond
	if !pace.Long() && (s.settings.Mode == whole || s.settings.Mode == failing) {
		pause *= 5 // other tests need the machine, too; what has to go wrong needs the load
	}
	var wg sync.WaitGroup
	for i := range topics {
		wg.Go(func() {
			for !stopped.Load() {
				s.gate.RLock()
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				if err := s.publish(ctx, topicName(i), 1+rand.IntN(3)); err != nil && told.Add(1) <= 3 {
					t.Logf("publish to %s, which may have happened or not: %v", topicName(i), err)
				}
				cancel()
				s.gate.RUnlock()
				time.Sleep(pause + rand.N(2*pause))
			}
		})
	}
	stop = sync.OnceFunc(func() { stopped.Store(true); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

// totals is how many messages are known to have been published, and of how many that is not known.
func (s *site) totals() (sure, unsure int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.topics {
		sure += p.last - int64(len(p.unsure))
		unsure += int64(len(p.unsure))
	}
	return sure, unsure
}

// lastOf is the number of each topic's last message.
func (s *site) lastOf() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := map[string]int64{}
	for topic, p := range s.topics {
		last[topic] = p.last
	}
	return last
}

// sureBeyond reports whether a message after the one of that number was surely published.
func (s *site) sureBeyond(topic string, last int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.topics[topic]
	for seq := last + 1; p != nil && seq <= p.last; seq++ {
		if !p.unsure[seq] {
			return true
		}
	}
	return false
}

// isUnsure reports whether it is unknown if a message was published.
func (s *site) isUnsure(topic string, seq int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.topics[topic]
	return p != nil && p.unsure[seq]
}

// working waits until every topic has been worked on.
func (s *site) working(t *testing.T, topics int) {
	t.Helper()
	eventually(t, "the replicas work on all topics", func() bool {
		s.history.catchUp(t)
		return len(s.history.topics) >= topics
	})
}

// again waits until a message newer than those given has been handled in every topic, and
// returns when that was seen.
func (s *site) again(t *testing.T, after map[string]int64) time.Time {
	t.Helper()
	if n := s.worked(t, after, patience); n < len(after) {
		t.Fatalf("not within %v: every topic is worked on again; %d of %d are not: newer than %v", patience, len(after)-n, len(after), after)
	}
	return time.Now()
}

// worked waits until a message newer than those given has been handled in every topic, or for so
// long, and returns in how many that is so.
func (s *site) worked(t *testing.T, after map[string]int64, within time.Duration) int {
	t.Helper()
	left := maps.Clone(after)
	for deadline := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
		s.history.catchUp(t)
		maps.DeleteFunc(left, func(topic string, last int64) bool {
			h := s.history.topics[topic]
			return h != nil && h.highest > last
		})
		if len(left) == 0 || time.Now().After(deadline) {
			return len(after) - len(left)
		}
	}
}

// drained waits until every message has an effect or is a dead letter; that no change comes
// for too long fails the test.
func (s *site) drained(t *testing.T) {
	t.Helper()
	patience := patience + s.settings.Slow
	if done, ok := s.quiet(t, patience); !ok {
		sure, _ := s.totals()
		t.Errorf("nothing happened for %v at %d of %d messages", patience, done, sure)
	}
}

// quiet waits until every message has an effect or is a dead letter, or none
// happens for a while.
func (s *site) quiet(t *testing.T, patience time.Duration) (done int64, ok bool) {
	t.Helper()
	last := int64(-1)
	for since := time.Now(); time.Since(since) < patience; time.Sleep(50 * time.Millisecond) {
		s.history.catchUp(t)
		s.history.lookAtDead(t)
		v := s.history.verdict(t)
		if done = v.published - v.lost; v.lost <= 0 {
			return done, true
		}
		if done != last {
			last, since = done, time.Now()
		}
	}
	return done, false
}

// close waits until everything is handled, stops the replicas and checks the history.
func (s *site) close(t *testing.T, f *fleet.Fleet, fault string, n int, begin time.Time) row {
	t.Helper()
	if s.losesMessages {
		s.quiet(t, 5*time.Second)
	} else {
		s.drained(t)
	}
	f.Stop()
	eventually(t, "the dead letters can be read", func() bool { return s.history.readDead(t) == nil })
	r := row{fault, n, f.Count(fleet.TakenOver), f.Count(fleet.Is("fenced")), time.Since(begin), s.history.verdict(t)}
	printTable(t, r)
	if s.history.blamed > 0 {
		t.Logf("%s: %d messages were blamed for their owners' deaths", fault, s.history.blamed)
	}
	if n := r.violations(s); n > 0 {
		t.Errorf("%s: the history is wrong: %+v\n%s", fault, r.verdict, s.history.examples())
	}
	return r
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
