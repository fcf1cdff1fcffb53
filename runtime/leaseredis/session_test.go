package leaseredis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// proxied returns a backend behind a proxy, whose client repeats no call, and another straight
// to the server.
func proxied(t *testing.T, opts ...leaseredis.Option) (behind, straight *leaseredis.Backend, p *faultproxy.Proxy) {
	t.Helper()
	s := redistest.Shared(t)
	p = faultproxy.Start(t, s.Addr())
	c := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1})
	t.Cleanup(func() { c.Close() })
	name := redistest.Namespace(t)
	return on(c, name, opts...), on(s.Client(t), name, opts...), p
}

// calling matches requests that call a script, by its name.
func calling(script string) func([]byte) bool {
	sha := []byte(leaseredis.ShaOf(script))
	return func(request []byte) bool { return bytes.Contains(request, sha) }
}

// unknown runs call while the reply of a script is lost, and checks that its error is neither
// success nor a definite failure.
func unknown(t *testing.T, p *faultproxy.Proxy, script string, call func() error) {
	t.Helper()
	lost := p.DropReply(calling(script))
	err := call()
	select {
	case <-lost:
	default:
		t.Fatalf("script %s was not called", script)
	}
	if err == nil || errors.Is(err, backend.ErrSessionLost) || errors.Is(err, backend.ErrFenced) {
		t.Fatalf("the reply of %s was lost, and the call returned %v", script, err)
	}
}

// All calls can be repeated when their replies are lost.
func TestLostReplies(t *testing.T) {
	for _, tags := range []int{1, 3} {
		t.Run(fmt.Sprint("tags=", tags), func(t *testing.T) {
			ctx := t.Context()
			be, straight, p := proxied(t, leaseredis.WithTags(tags))
			topics := kit.Topics(5)

			// Once, so that the server knows the scripts: a refused one is sent again whole.
			warm := kit.Join(t, straight, topical, time.Hour)
			kit.OK(t, straight.Register(ctx, topical, nil))
			kit.OK(t, warm.Heartbeat())
			kit.OK(t, warm.Session.Close(ctx))

			spec := backend.SessionSpec{ID: kit.ID(), TTL: time.Hour, Consumers: []string{topical.Name}}
			lost := p.DropReply(calling("open"))
			s := kit.Must[backend.Session](t)(be.OpenSession(ctx, spec)) // it asks again by itself
			<-lost
			kit.Equal(t, "opened twice", kit.Must[backend.Session](t)(be.OpenSession(ctx, spec)), s)
			kit.Equal(t, "members", len(survey(t, straight, topical).Members), 1)

			unknown(t, p, "register", func() error { return be.Register(ctx, topical, topics) })
			kit.OK(t, be.Register(ctx, topical, topics))
			kit.Equal(t, "resources", survey(t, straight, topical).Resources, 5)

			_ = kit.Acting(t, be, spec.ID, grouped).Acquires(1) // of no process's: the script is known now
			req := kit.Acting(t, be, spec.ID, topical).Request(4)
			unknown(t, p, "acquire", func() error { _, err := be.Acquire(ctx, req); return err })
			gs := kit.Must[[]backend.Grant](t)(be.Acquire(ctx, req))
			kit.Equal(t, "granted", len(gs), 4)
			kit.Equal(t, "owned", survey(t, straight, topical).Members[0].Owned, 4)
			kit.Equal(t, "free", survey(t, straight, topical).Free, 1)

			unknown(t, p, "heartbeat", func() error { return s.Heartbeat(ctx) })
			kit.OK(t, s.Heartbeat(ctx))

			kit.OK(t, be.Release(ctx, spec.ID, topical.Name, kit.Refs(gs[:1])))
			unknown(t, p, "release", func() error { return be.Release(ctx, spec.ID, topical.Name, kit.Refs(gs[1:2])) })
			kit.OK(t, be.Release(ctx, spec.ID, topical.Name, kit.Refs(gs[1:2])))
			kit.Equal(t, "free", survey(t, straight, topical).Free, 3)

			unknown(t, p, "close", func() error { return s.Close(ctx) })
			kit.OK(t, s.Close(ctx))
			id := kit.Join(t, straight, topical, time.Hour)
			for _, g := range id.Acquires(9) {
				kit.Equal(t, "suspicion of "+g.Resource, g.Suspicion, 0)
			}
		})
	}
}

// A client that repeats by itself what it had no reply for gets each grant anyway.
func TestAcquireInPartsOverALostReply(t *testing.T) {
	const n = 2500
	s := redistest.Shared(t)
	p := faultproxy.Start(t, s.Addr())
	c := redis.NewClient(&redis.Options{Addr: p.Addr()}) // MaxRetries is 3 by default
	t.Cleanup(func() { c.Close() })
	be := on(c, redistest.Namespace(t))
	id := kit.Join(t, be, topical, time.Hour)
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(n)))
	_ = id.As(grouped).Acquires(1)
	parts := 0
	lost := p.DropReply(func(request []byte) bool {
		if calling("acquire")(request) {
			parts++
		}
		return parts == 2
	})
	gs := id.Acquires(n)
	<-lost
	seen := map[string]bool{}
	for _, g := range gs {
		seen[g.Resource] = true
	}
	kit.Equal(t, "granted", len(seen), n)
	kit.Equal(t, "owned", survey(t, be, topical).Members[0].Owned, n)
}

// A process that dies while it closes its session leaves what it has not given back to be taken
// over.
func TestCrashWhileClosing(t *testing.T) {
	t.Parallel()
	const n = 2500
	server := redistest.Shared(t)
	w, p := watchedOn(t, server), faultproxy.Start(t, server.Addr())
	c := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1})
	t.Cleanup(func() { c.Close() })
	be, straight := on(c, w.namespace), on(w.c, w.namespace)
	id := kit.Join(t, be, topical, time.Hour)
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(n)))
	kit.Equal(t, "granted", len(id.Acquires(n)), n)
	other := kit.Join(t, straight, grouped, time.Hour)
	kit.OK(t, other.Session.Close(t.Context())) // the script is known now
	p.DropReply(calling("close"))
	if err := id.Session.Close(t.Context()); err == nil {
		t.Fatal("closed though the reply was lost")
	}
	if free := survey(t, straight, topical).Free; free == 0 || free == n {
		t.Fatalf("%d are free, want some of %d", free, n)
	}
	over := float64(time.Now().Add(-time.Second).UnixMicro())
	kit.OK(t, w.c.ZAddXX(t.Context(), w.key(0, "sessions"), redis.Z{Score: over, Member: id.ID}).Err()) // its TTL is over
	next := kit.Join(t, straight, topical, time.Hour)
	got, crashed := 0, 0
	kit.Eventually(t, "all are taken over", func() bool {
		for _, g := range next.Acquires(n) {
			got++
			crashed += g.Suspicion
		}
		return got == n
	})
	if crashed == 0 || crashed == n {
		t.Errorf("%d of %d are taken over from a crash, want some", crashed, n)
	}
	kit.Lost(t, "heartbeat", id.Heartbeat())
}

// Handlers that use up the application's connections keep no heartbeat waiting.
func TestHeartbeatsHaveAConnectionOfTheirOwn(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: redistest.Shared(t).Addr(), PoolSize: 1, MaxActiveConns: 1, PoolTimeout: time.Hour})
	t.Cleanup(func() { c.Close() })
	be := on(c, redistest.Namespace(t))
	s := kit.Join(t, be, topical, time.Minute)
	conn := c.Conn() // it takes the one there is
	kit.OK(t, conn.Ping(t.Context()).Err())
	kit.OK(t, s.Heartbeat())

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := be.Survey(ctx, []string{topical.Name}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a survey without a connection ended with %v, want the end of its context", err)
	}
	kit.OK(t, conn.Close())
	kit.OK(t, s.Session.Close(t.Context()))
}

func TestAClosedSessionLeavesNoConnection(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), ClientName: "app"})
	t.Cleanup(func() { c.Close() })
	named := func() int {
		return strings.Count(kit.Must[string](t)(admin.ClientList(t.Context()).Result()), "name=app")
	}
	be := on(c, "x")
	for range 3 {
		sess := kit.Join(t, be, topical, time.Minute)
		kit.OK(t, sess.Heartbeat())
		if named() < 2 {
			t.Fatal("the heartbeat has no connection of its own")
		}
		kit.OK(t, sess.Session.Close(t.Context()))
	}
	kit.Eventually(t, "only the application's connections are left", func() bool { return named() <= c.Options().PoolSize && named() == int(c.PoolStats().TotalConns) })
}

// An emptied server has forgotten everything: sessions end, and it goes on with higher epochs.
func TestFlushAll(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	be := on(s.Client(t), "x", leaseredis.WithTags(3))
	kit.OK(t, be.Check(t.Context(), nil))
	id := kit.Join(t, be, topical, time.Hour)
	idle := kit.Join(t, be, topical, time.Hour)
	kit.OK(t, be.Register(t.Context(), topical, []string{"a", "b"}))
	before := id.Acquires(2)

	kit.OK(t, admin.FlushAll(t.Context()).Err())
	if _, err := be.Survey(t.Context(), []string{topical.Name}); err == nil {
		t.Error("a survey did not notice")
	}
	select {
	case <-idle.Session.Alarm():
	default:
		t.Error("sessions were not alarmed")
	}
	kit.Lost(t, "heartbeat", id.Heartbeat())
	kit.Lost(t, "heartbeat", idle.Heartbeat())
	_, err := be.Acquire(t.Context(), id.Request(1))
	kit.Lost(t, "acquire", err)

	id = kit.Join(t, be, topical, time.Hour)
	kit.OK(t, be.Register(t.Context(), topical, []string{"a", "b"}))
	after := id.Acquires(2)
	kit.Equal(t, "granted", len(after), 2)
	for i := range after {
		if after[i].Epoch <= before[i].Epoch {
			t.Errorf("epoch %d after %d", after[i].Epoch, before[i].Epoch)
		}
	}
	kit.OK(t, id.Heartbeat())
}

// A server may forget its scripts at any time.
func TestScriptFlush(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	be := on(s.Client(t), "x", leaseredis.WithTags(3))
	flush := func() { t.Helper(); kit.OK(t, admin.ScriptFlush(t.Context()).Err()) }
	flush()
	id := kit.Join(t, be, topical, time.Hour)
	flush()
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(9)))
	flush()
	gs := id.Acquires(9)
	kit.Equal(t, "granted", len(gs), 9)
	flush()
	kit.OK(t, id.Heartbeat())
	flush()
	kit.OK(t, be.Release(t.Context(), id.ID, topical.Name, kit.Refs(gs)))
	flush()
	kit.Equal(t, "free", survey(t, be, topical).Free, 9)
	flush()
	kit.OK(t, id.Session.Close(t.Context()))
}

// A server that was killed and comes back has lost no session that its append-only file has.
func TestServerRestart(t *testing.T) {
	s := redistest.Start(t, redistest.Config("appendfsync", "always"))
	be := on(s.Client(t), "x")
	id := kit.Join(t, be, topical, time.Minute)
	kit.OK(t, be.Register(t.Context(), topical, []string{"a"}))
	g := id.Acquires(1)[0]
	s.Kill()
	if err := id.Session.Heartbeat(t.Context()); err == nil || errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("heartbeat without a server: %v", err)
	}
	s.Start()
	kit.Eventually(t, "a heartbeat", func() bool { return id.Session.Heartbeat(t.Context()) == nil })
	other := kit.Join(t, be, topical, time.Minute)
	kit.Equal(t, "acquired by another", len(other.Acquires(1)), 0)
	kit.OK(t, be.Release(t.Context(), id.ID, topical.Name, []backend.Ref{g.Ref}))
	kit.Equal(t, "acquired by another", len(other.Acquires(1)), 1)
}

// Ended sessions are remembered for an hour, so that no late call brings one back, and then forgotten.
func TestSessionsAreForgotten(t *testing.T) {
	c := redistest.Shared(t).Client(t)
	name := redistest.Namespace(t)
	be := on(c, name, leaseredis.WithTags(2))
	id := kit.Join(t, be, topical, time.Hour)
	kit.OK(t, id.Session.Close(t.Context()))
	_, err := be.OpenSession(t.Context(), backend.SessionSpec{ID: id.ID, TTL: time.Hour, Consumers: []string{topical.Name}})
	kit.Lost(t, "opening a session that has ended", err)
	r := kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), nil))
	kit.Equal(t, "forgotten at once", r.SessionsForgotten, 0)
	for tag := range 2 {
		kit.OK(t, c.ZAddXX(t.Context(), fmt.Sprintf("{%s%d}:ended", name, tag),
			redis.Z{Score: float64(time.Now().Add(-2 * time.Hour).UnixMicro()), Member: id.ID}).Err())
	}
	r = kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), nil))
	kit.Equal(t, "forgotten", r.SessionsForgotten, 1)
	kit.Equal(t, "keys", c.Exists(t.Context(), "{"+name+"0}:s:"+id.ID, "{"+name+"1}:s:"+id.ID).Val(), 0)
}

// When the server's clock is set back, leases do not wait until it has caught up.
func TestTheServersClockIsSetBack(t *testing.T) {
	t.Parallel()
	c := redistest.Shared(t).Client(t)
	name := redistest.Namespace(t)
	be := on(c, name, leaseredis.WithTags(2), leaseredis.WithLogger(discard))
	rows := backend.ConsumerInfo{Name: "rows", Per: backend.PerStream, Announced: true, Lock: backend.LockRow, TTL: 3 * time.Second}
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(8)))
	kit.OK(t, be.Register(t.Context(), rows, kit.Topics(8)))
	id := kit.Join(t, be, topical, 6*time.Second, rows)
	lives := kit.Join(t, be, topical, time.Minute)
	held := id.Acquires(8)
	kit.Equal(t, "granted", len(held), 8)
	kit.Equal(t, "granted", len(id.As(rows).Acquires(8)), 8)
	kit.OK(t, be.Release(t.Context(), id.ID, topical.Name, kit.Refs(held[:4])))

	// An hour back is the same as all times an hour later.
	for tag := range 2 {
		for _, key := range []string{"sessions", "free:topical", "free:rows"} {
			key = fmt.Sprintf("{%s%d}:%s", name, tag, key)
			for _, m := range kit.Must[[]string](t)(c.ZRange(t.Context(), key, 0, -1).Result()) {
				kit.OK(t, c.ZIncrBy(t.Context(), key, float64(time.Hour.Microseconds()), m).Err())
			}
		}
	}
	kit.Equal(t, "free, an hour back", survey(t, be, topical).Free, 0)
	kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), nil))
	kit.Equal(t, "free", survey(t, be, topical).Free, 4)
	kit.OK(t, lives.Heartbeat())
	got, gotRows := 0, 0
	kit.Eventually(t, "what it held is taken over", func() bool {
		got += len(lives.Acquires(8))
		gotRows += len(lives.As(rows).Acquires(8))
		return got == 8 && gotRows >= 8 // those expire again
	})
	kit.Lost(t, "heartbeat", id.Heartbeat())
}
