package leaseredis

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

func TestForgetDeletesAllThatAConsumerHas(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		infos := []backend.ConsumerInfo{
			{Name: "by-topic", Per: backend.PerTopic, Topics: []string{"*"}},
			{Name: "by-group", Per: backend.PerGroup, Topics: []string{"*"}},
			{Name: "by-stream", Per: backend.PerStream, Topics: []string{"*"}},
		}
		for _, info := range infos {
			b := join(t, a.Backend, info)
			kit.OK(t, a.Register(t.Context(), info, nil))
			a.publishes(40, "x", "y")
			kit.OK(t, a.Register(t.Context(), info, nil))
			gs := b.Acquires(100)
			for i, g := range gs {
				got := b.reads(g, 100)
				p := b.next(g, backend.Progress{Cursor: got.Cut(1), Park: []backend.Park{{ID: got.Messages[0].ID, Lane: "a", Attempt: 1}}})
				if i == 0 {
					p.Cursor, p.Dead = got.Cut(2), []backend.Dead{{ID: got.Messages[1].ID, Attempt: 1, Reason: "r"}}
				}
				b.Starts(g, fmt.Sprint("item", i), "m", backend.OnceNew)
				p.Once = []backend.OnceResult{{Key: fmt.Sprint("item", i), Done: true}}
				b.Commits(p)
			}
			refuses := func(why string) {
				t.Helper()
				if err := a.Forget(t.Context(), info.Name); err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), info.Name) {
					t.Fatalf("got error %v, want one about %s", err, why)
				}
				kit.Equal(t, "resources left", len(b.leasesNow()), len(gs))
			}
			refuses("live members")
			kit.OK(t, b.Session.Close(t.Context()))
			refuses("dead letters")
			_, err := a.Purge(t.Context(), operate.DeadLetterFilter{Consumer: info.Name})
			kit.OK(t, err)
			kit.OK(t, a.Forget(t.Context(), info.Name))
			kit.OK(t, a.Forget(t.Context(), info.Name)) // its reply was lost
			for key := range a.keysOf(t) {
				if strings.Contains(key, ":"+info.Name) {
					t.Errorf("key %s is left", key)
				}
			}
		}
		st, err := a.Status(t.Context())
		kit.OK(t, err)
		kit.Equal(t, "consumers", len(st), 0)
	})
}

// Status says what leases hang on, which is not always what was asked for.
func TestStatusTellsWhatLeasesHangOn(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		want := map[string]string{"leader": "session", "rows": "row", "topics": "session"}
		kit.OK(t, a.Register(t.Context(), backend.ConsumerInfo{Name: "leader", Per: backend.PerCluster, Lock: backend.LockAdvisory}, nil))
		kit.OK(t, a.Register(t.Context(), backend.ConsumerInfo{Name: "rows", Per: backend.PerStream, Topics: []string{"x"}, Lock: backend.LockRow, TTL: time.Minute}, nil))
		kit.OK(t, a.Register(t.Context(), backend.ConsumerInfo{Name: "topics", Per: backend.PerTopic, Topics: []string{"x"}}, nil))
		st, err := a.Status(t.Context())
		kit.OK(t, err)
		got := map[string]string{}
		for _, s := range st {
			got[s.Consumer] = s.Lock
		}
		for name, lock := range want {
			kit.Equal(t, "lock of "+name, got[name], lock)
		}
	})
}

func (a *actor) leasesNow() []operate.LeaseStatus {
	a.T.Helper()
	ls, err := a.Leases(a.T.Context(), a.Info.Name, 0)
	kit.OK(a.T, err)
	return ls
}

// nodes are the server, or the masters of the cluster.
func (a *actor) nodes(t *testing.T) (nodes []redis.Cmdable) {
	t.Helper()
	cluster, ok := a.client.(*redis.ClusterClient)
	if !ok {
		return []redis.Cmdable{a.client}
	}
	var mu sync.Mutex
	kit.OK(t, cluster.ForEachMaster(t.Context(), func(_ context.Context, c *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		nodes = append(nodes, c)
		return nil
	}))
	return nodes
}

// keysOf lists all keys of a's namespace.
func (a *actor) keysOf(t *testing.T) map[string]bool {
	t.Helper()
	keys := map[string]bool{}
	for _, node := range a.nodes(t) {
		found, err := node.Keys(t.Context(), "{"+a.namespace+"[0-9]*}:*").Result()
		kit.OK(t, err)
		for _, k := range found {
			keys[k] = true
		}
	}
	return keys
}

func TestSetCursorDropsManyFailuresStepByStep(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		const n = 3000
		a.publishes(n, "x")
		g := a.takesOne("x")
		got := a.reads(g, n)
		p := a.next(g, backend.Progress{Cursor: got.Next})
		for i, m := range got.Messages {
			switch i % 3 {
			case 0:
				p.Park = append(p.Park, backend.Park{ID: m.ID, Lane: "one", Attempt: 1})
			case 1:
				p.Park = append(p.Park, backend.Park{ID: m.ID, Lane: fmt.Sprint("lane", i), Attempt: 1})
			default:
				p.Dead = append(p.Dead, backend.Dead{ID: m.ID, Attempt: 1, Reason: "r"})
			}
		}
		a.Commits(p)
		kit.Equal(t, "dead letters", len(a.Dead()), n/3)
		// After each step but the last, no process can take the lease.
		faults := a.breaks()
		steps := 0
		b := a.another()
		kit.OK(t, b.Register(t.Context(), b.Info, []string{}))
		faults.onCall(scripts.setcursor, func() error {
			if steps++; steps > 1 {
				gs, err := b.Acquire(t.Context(), backend.AcquireRequest{Session: b.ID, Consumer: b.Info, Max: 1, Attempt: kit.ID()})
				if err != nil || len(gs) > 0 {
					t.Errorf("acquired %d leases meanwhile, %v", len(gs), err)
				}
			}
			return nil
		})
		moved, err := a.SetCursor(t.Context(), "c", "x", operate.CursorTarget{Beginning: true})
		kit.OK(t, err)
		kit.Equal(t, "moved", moved, 1)
		if steps < 6 {
			t.Fatalf("3,000 failures were dropped in %d steps", steps)
		}
		fenced, err := a.Commit(t.Context(), a.ID, "c", []backend.Progress{a.next(g, backend.Progress{Cursor: got.Next})})
		kit.OK(t, err)
		kit.Equal(t, "fenced", len(fenced), 1)
		h := b.takesOne("x")
		kit.Equal(t, "lanes", len(h.Lanes), 0)
		kit.Equal(t, "dead letters", len(a.Dead()), 0)
		kit.Equal(t, "read again", len(b.reads(h, n).Messages), n)
		for key := range a.keysOf(t) {
			for _, kind := range []string{"}:pk:", "}:lane:", "}:due:", "}:pr:", "}:dl:", "}:dx:", "}:dead:"} {
				if strings.Contains(key, kind) {
					t.Fatalf("key %s is left", key)
				}
			}
		}
	})
}

func TestReplayIntoALaneThatWaitsKeepsItsOrder(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		a.publishes(3, "x")
		g := a.takesOne("x")
		got := a.reads(g, 3)
		id := a.ids(got.Messages)
		a.Commits(a.next(g, backend.Progress{Cursor: got.Next, Dead: []backend.Dead{{ID: id[0], Attempt: 8, Reason: "r"}},
			Park: []backend.Park{{ID: id[1], Lane: "k0", Attempt: 1, After: time.Hour}, {ID: id[2], Lane: "k0"}}}))
		n, err := a.Replay(t.Context(), operate.DeadLetterFilter{})
		kit.OK(t, err)
		kit.Equal(t, "replayed", n, 1)
		kit.Equal(t, "due", len(a.Due().Messages), 0)
		a.Commits(a.next(g, backend.Progress{Park: []backend.Park{{ID: id[1], Lane: "k0", Attempt: 2}}}))
		p := a.Due()
		kit.Equal(t, "due", len(p.Messages), 3)
		for i, want := range []string{id[1], id[2], id[0]} {
			kit.Equal(t, "order", p.Messages[i].ID, want)
		}
	})
}
