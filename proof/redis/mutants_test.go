package redisproof

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// Mutants: the backend without one of its mechanisms. mutation_test.go has their tests.
const (
	// unfenced is fenceOnly without the fence: every commit claims to come from the present owner.
	unfenced mode = "fence removed"
	// splits is failing with commits in two steps, first the cursor, then what failed, and
	// a process that often dies between them.
	splits mode = "commit in two steps"
	// revives extends a session that has expired as if it had not.
	revives mode = "expired sessions revived"
	// namesake has one session for all replicas, named after the consumer.
	namesake mode = "session named after the consumer"
	// neverReloads leaves the cluster's topology to go-redis.
	neverReloads mode = "topology not reloaded"
	// notified looks for news only when it is notified of some.
	notified mode = "notifications trusted"
)

func (m mode) fails() bool         { return m == failing || m == splits }
func (m mode) ignoresCancel() bool { return m == fenceOnly || m == unfenced }

// onceAMinute asks a cluster for its topology as often as go-redis does by itself, however often it
// has to.
func onceAMinute(s settings) func(context.Context) ([]redis.ClusterSlot, error) {
	var mu sync.Mutex
	var known []redis.ClusterSlot
	var asked time.Time
	return func(ctx context.Context) ([]redis.ClusterSlot, error) {
		mu.Lock()
		defer mu.Unlock()
		if known != nil && time.Since(asked) < time.Minute {
			return known, nil
		}
		var err error
		for _, addr := range s.Addrs {
			node := redis.NewClient(&redis.Options{Addr: addr, Username: s.User, Password: s.Password})
			//lint:ignore SA1019 Redis 6.2 has no CLUSTER SHARDS, and this is what go-redis itself asks
			slots, failed := node.ClusterSlots(ctx).Result()
			node.Close()
			if failed == nil {
				known, asked = slots, time.Now()
				return known, nil
			}
			err = failed
		}
		return nil, err
	}
}

// mutant is the calls that mutants change. For other modes they are the backend's.
type mutant struct {
	mode      mode
	client    redis.UniversalClient
	namespace string
}

func (m mutant) commit(ctx context.Context, be *leaseredis.Backend, session, consumer string, progress []backend.Progress) ([]string, error) {
	switch m.mode {
	case unfenced:
		for _, p := range progress {
			owner, err := m.client.HMGet(ctx, m.leaseKey(consumer, p.Resource), "o", "e", "q").Result()
			if err != nil {
				return nil, err
			}
			session, _ = owner[0].(string)
			p.Epoch = digits(owner[1])
			p.Seq = max(p.Seq, digits(owner[2])+1)
			if fenced, err := be.Commit(ctx, session, consumer, []backend.Progress{p}); err != nil || len(fenced) > 0 {
				return fenced, err
			}
		}
		return nil, nil
	case splits:
		first, second := slices.Clone(progress), slices.Clone(progress)
		failed := false
		for i, p := range progress {
			failed = failed || len(p.Park)+len(p.Dead) > 0
			first[i].Seq, first[i].Park, first[i].Dead = 2*p.Seq, nil, nil
			second[i].Seq = 2*p.Seq + 1
		}
		if !failed {
			return be.Commit(ctx, session, consumer, first)
		}
		if fenced, err := be.Commit(ctx, session, consumer, first); err != nil || len(fenced) > 0 {
			return fenced, err
		}
		if rand.IntN(10) == 0 {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return be.Commit(ctx, session, consumer, second)
	case namesake:
		session = consumer
	}
	return be.Commit(ctx, session, consumer, progress)
}

// leaseKey is where doc.go of leaseredis says that a lease is.
func (m mutant) leaseKey(consumer, resource string) string {
	return fmt.Sprintf("{%s%d}:l:%s:%s", m.namespace, tagOf(resource, m.tags()), consumer, resource)
}

func (m mutant) tags() int {
	n, err := m.client.HGet(context.Background(), "{"+m.namespace+"0}:meta", "tags").Int()
	if err != nil {
		panic(fmt.Sprintf("read the namespace's number of tags: %v", err))
	}
	return n
}

// tagOf is the tag of a topic and of its lease.
func tagOf(topic string, tags int) int {
	h := fnv.New64a()
	h.Write([]byte(topic))
	return int(h.Sum64() % uint64(tags))
}

func digits(v any) int64 {
	s, _ := v.(string)
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

func (m mutant) openSession(ctx context.Context, be *leaseredis.Backend, spec backend.SessionSpec) (backend.Session, error) {
	if m.mode == namesake {
		spec.ID = spec.Consumers[0]
	}
	s, err := be.OpenSession(ctx, spec)
	if err == nil && m.mode == revives {
		s = &revived{s, m, spec}
	}
	return s, err
}

// revived is a session whose heartbeat is an upsert.
type revived struct {
	backend.Session
	mutant mutant
	spec   backend.SessionSpec
}

func (r *revived) Heartbeat(ctx context.Context) error {
	err := r.Session.Heartbeat(ctx)
	if !errors.Is(err, backend.ErrSessionLost) {
		return err
	}
	now, err := r.mutant.client.Time(ctx).Result()
	if err != nil {
		return err
	}
	for tag := range r.mutant.tags() {
		prefix := fmt.Sprintf("{%s%d}:", r.mutant.namespace, tag)
		expires := float64(now.Add(r.spec.TTL).UnixMicro())
		if err := r.mutant.client.ZAdd(ctx, prefix+"sessions", redis.Z{Member: r.spec.ID, Score: expires}).Err(); err != nil {
			return err
		}
		if err := r.mutant.client.SAdd(ctx, prefix+"members:"+consumerName, r.spec.ID).Err(); err != nil {
			return err
		}
	}
	return nil
}

func (m mutant) openFeed(ctx context.Context, be *leaseredis.Backend, consumers []backend.ConsumerInfo) (backend.Feed, error) {
	f, err := be.OpenFeed(ctx, consumers)
	if err != nil || m.mode != notified {
		return f, err
	}
	return &told{f, m.client.Subscribe(context.Background(), "{"+m.namespace+"0}:news")}, nil
}

// told is a feed that sleeps until it hears something.
type told struct {
	backend.Feed
	news *redis.PubSub
}

func (f *told) Next(ctx context.Context) (backend.News, error) {
	select {
	case <-f.news.Channel():
		return f.Feed.Next(ctx)
	case <-ctx.Done():
		return backend.News{}, ctx.Err()
	}
}

func (f *told) Close() {
	f.news.Close()
	f.Feed.Close()
}

// The namesake's other calls.

func (r *recorder) Acquire(ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
	if r.mutant.mode == namesake {
		req.Session = req.Consumer.Name
	}
	return r.Backend.Acquire(ctx, req)
}

func (r *recorder) Release(ctx context.Context, session, consumer string, leases []backend.Ref) error {
	if r.mutant.mode == namesake {
		session = consumer
	}
	return r.Backend.Release(ctx, session, consumer, leases)
}

func (r *recorder) FetchParked(ctx context.Context, req backend.ParkedRequest) (backend.Parked, error) {
	if r.mutant.mode == namesake {
		req.Session = req.Consumer.Name
	}
	return r.Backend.FetchParked(ctx, req)
}
