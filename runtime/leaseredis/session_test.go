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
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// proxied returns a backend behind a proxy, whose client repeats nothing, and another straight
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
			topics := topicNames(5)

			// Once, so that the server knows the scripts: a refused one is sent again whole.
			_, warm := member(t, straight, time.Hour, topical)
			ok(t, straight.Register(ctx, topical, nil))
			ok(t, warm.Heartbeat(ctx))
			ok(t, warm.Close(ctx))

			spec := backend.SessionSpec{ID: newID(), TTL: time.Hour, Consumers: []string{topical.Name}}
			lost := p.DropReply(calling("open"))
			s := must[backend.Session](t)(be.OpenSession(ctx, spec)) // it asks again by itself
			<-lost
			equal(t, "opened twice", must[backend.Session](t)(be.OpenSession(ctx, spec)), s)
			equal(t, "members", len(survey(t, straight, topical).Members), 1)

			unknown(t, p, "register", func() error { return be.Register(ctx, topical, topics) })
			ok(t, be.Register(ctx, topical, topics))
			equal(t, "resources", survey(t, straight, topical).Resources, 5)

			_ = acquire(t, be, spec.ID, grouped, 1) // of nobody's: the script is known now
			req := request(spec.ID, topical, 4)
			unknown(t, p, "acquire", func() error { _, err := be.Acquire(ctx, req); return err })
			gs := must[[]backend.Grant](t)(be.Acquire(ctx, req))
			equal(t, "granted", len(gs), 4)
			equal(t, "owned", survey(t, straight, topical).Members[0].Owned, 4)
			equal(t, "free", survey(t, straight, topical).Free, 1)

			unknown(t, p, "heartbeat", func() error { return s.Heartbeat(ctx) })
			ok(t, s.Heartbeat(ctx))

			ok(t, be.Release(ctx, spec.ID, topical.Name, refs(gs[:1])))
			unknown(t, p, "release", func() error { return be.Release(ctx, spec.ID, topical.Name, refs(gs[1:2])) })
			ok(t, be.Release(ctx, spec.ID, topical.Name, refs(gs[1:2])))
			equal(t, "free", survey(t, straight, topical).Free, 3)

			unknown(t, p, "close", func() error { return s.Close(ctx) })
			ok(t, s.Close(ctx))
			id, _ := member(t, straight, time.Hour, topical)
			for _, g := range acquire(t, straight, id, topical, 9) {
				equal(t, "suspicion of "+g.Resource, g.Suspicion, 0)
			}
		})
	}
}

// A client that repeats by itself what it had no reply for is told each grant all the same.
func TestAcquireInPartsOverALostReply(t *testing.T) {
	const n = 2500
	s := redistest.Shared(t)
	p := faultproxy.Start(t, s.Addr())
	c := redis.NewClient(&redis.Options{Addr: p.Addr()}) // MaxRetries is 3 by default
	t.Cleanup(func() { c.Close() })
	be := on(c, redistest.Namespace(t))
	id, _ := member(t, be, time.Hour, topical)
	ok(t, be.Register(t.Context(), topical, topicNames(n)))
	_ = acquire(t, be, id, grouped, 1)
	parts := 0
	lost := p.DropReply(func(request []byte) bool {
		if calling("acquire")(request) {
			parts++
		}
		return parts == 2
	})
	gs := acquire(t, be, id, topical, n)
	<-lost
	seen := map[string]bool{}
	for _, g := range gs {
		seen[g.Resource] = true
	}
	equal(t, "granted", len(seen), n)
	equal(t, "owned", survey(t, be, topical).Members[0].Owned, n)
}

// A process that dies while it closes its session leaves what it has not given back to be taken
// over.
func TestCrashWhileClosing(t *testing.T) {
	const n = 2500
	be, straight, p := proxied(t)
	id, s := member(t, be, 6*time.Second, topical)
	ok(t, be.Register(t.Context(), topical, topicNames(n)))
	equal(t, "granted", len(acquire(t, be, id, topical, n)), n)
	_, other := member(t, straight, time.Hour, grouped)
	ok(t, other.Close(t.Context())) // the script is known now
	p.DropReply(calling("close"))
	if err := s.Close(t.Context()); err == nil {
		t.Fatal("closed though the reply was lost")
	}
	if free := survey(t, straight, topical).Free; free == 0 || free == n {
		t.Fatalf("%d are free, want some of %d", free, n)
	}
	next, _ := member(t, straight, time.Hour, topical)
	got, crashed := 0, 0
	eventually(t, "all are taken over", func() bool {
		for _, g := range acquire(t, straight, next, topical, n) {
			got++
			crashed += g.Suspicion
		}
		return got == n
	})
	if crashed == 0 || crashed == n {
		t.Errorf("%d of %d are taken over from a crash, want some", crashed, n)
	}
	wantLost(t, "heartbeat", s.Heartbeat(t.Context()))
}

// Handlers that use up the application's connections keep no heartbeat waiting.
func TestHeartbeatsHaveAConnectionOfTheirOwn(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: redistest.Shared(t).Addr(), PoolSize: 1, MaxActiveConns: 1, PoolTimeout: time.Hour})
	t.Cleanup(func() { c.Close() })
	be := on(c, redistest.Namespace(t))
	_, s := member(t, be, time.Minute, topical)
	conn := c.Conn() // it takes the one there is
	ok(t, conn.Ping(t.Context()).Err())
	ok(t, s.Heartbeat(t.Context()))

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := be.Survey(ctx, []string{topical.Name}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a survey without a connection ended with %v, want the end of its context", err)
	}
	ok(t, conn.Close())
	ok(t, s.Close(t.Context()))
}

func TestAClosedSessionLeavesNoConnection(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), ClientName: "app"})
	t.Cleanup(func() { c.Close() })
	named := func() int {
		return strings.Count(must[string](t)(admin.ClientList(t.Context()).Result()), "name=app")
	}
	be := on(c, "x")
	for range 3 {
		_, sess := member(t, be, time.Minute, topical)
		ok(t, sess.Heartbeat(t.Context()))
		if named() < 2 {
			t.Fatal("the heartbeat has no connection of its own")
		}
		ok(t, sess.Close(t.Context()))
	}
	eventually(t, "only the application's connections are left", func() bool { return named() <= c.Options().PoolSize && named() == int(c.PoolStats().TotalConns) })
}

// An emptied server has forgotten everything: sessions end, and it goes on with higher epochs.
func TestFlushAll(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	be := on(s.Client(t), "x", leaseredis.WithTags(3))
	ok(t, be.Check(t.Context(), nil))
	id, sess := member(t, be, time.Hour, topical)
	_, idle := member(t, be, time.Hour, topical)
	ok(t, be.Register(t.Context(), topical, []string{"a", "b"}))
	before := acquire(t, be, id, topical, 2)

	ok(t, admin.FlushAll(t.Context()).Err())
	if _, err := be.Survey(t.Context(), []string{topical.Name}); err == nil {
		t.Error("a survey did not notice")
	}
	select {
	case <-idle.Alarm():
	default:
		t.Error("sessions were not alarmed")
	}
	wantLost(t, "heartbeat", sess.Heartbeat(t.Context()))
	wantLost(t, "heartbeat", idle.Heartbeat(t.Context()))
	_, err := be.Acquire(t.Context(), request(id, topical, 1))
	wantLost(t, "acquire", err)

	id, sess = member(t, be, time.Hour, topical)
	ok(t, be.Register(t.Context(), topical, []string{"a", "b"}))
	after := acquire(t, be, id, topical, 2)
	equal(t, "granted", len(after), 2)
	for i := range after {
		if after[i].Epoch <= before[i].Epoch {
			t.Errorf("epoch %d after %d", after[i].Epoch, before[i].Epoch)
		}
	}
	ok(t, sess.Heartbeat(t.Context()))
}

// A server may forget its scripts at any time.
func TestScriptFlush(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	be := on(s.Client(t), "x", leaseredis.WithTags(3))
	flush := func() { t.Helper(); ok(t, admin.ScriptFlush(t.Context()).Err()) }
	flush()
	id, sess := member(t, be, time.Hour, topical)
	flush()
	ok(t, be.Register(t.Context(), topical, topicNames(9)))
	flush()
	gs := acquire(t, be, id, topical, 9)
	equal(t, "granted", len(gs), 9)
	flush()
	ok(t, sess.Heartbeat(t.Context()))
	flush()
	ok(t, be.Release(t.Context(), id, topical.Name, refs(gs)))
	flush()
	equal(t, "free", survey(t, be, topical).Free, 9)
	flush()
	ok(t, sess.Close(t.Context()))
}

// A server that was killed and comes back has lost no session that its append-only file has.
func TestServerRestart(t *testing.T) {
	s := redistest.Start(t, redistest.Config("appendfsync", "always"))
	be := on(s.Client(t), "x")
	id, sess := member(t, be, time.Minute, topical)
	ok(t, be.Register(t.Context(), topical, []string{"a"}))
	g := acquire(t, be, id, topical, 1)[0]
	s.Kill()
	if err := sess.Heartbeat(t.Context()); err == nil || errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("heartbeat without a server: %v", err)
	}
	s.Start()
	eventually(t, "a heartbeat", func() bool { return sess.Heartbeat(t.Context()) == nil })
	other, _ := member(t, be, time.Minute, topical)
	equal(t, "acquired by another", len(acquire(t, be, other, topical, 1)), 0)
	ok(t, be.Release(t.Context(), id, topical.Name, []backend.Ref{g.Ref}))
	equal(t, "acquired by another", len(acquire(t, be, other, topical, 1)), 1)
}

// Ended sessions are remembered for an hour, so that nothing late brings one back, and then forgotten.
func TestSessionsAreForgotten(t *testing.T) {
	c := redistest.Shared(t).Client(t)
	name := redistest.Namespace(t)
	be := on(c, name, leaseredis.WithTags(2))
	id, s := member(t, be, time.Hour, topical)
	ok(t, s.Close(t.Context()))
	_, err := be.OpenSession(t.Context(), backend.SessionSpec{ID: id, TTL: time.Hour, Consumers: []string{topical.Name}})
	wantLost(t, "opening a session that has ended", err)
	r := must[operate.MaintainReport](t)(be.Maintain(t.Context(), nil))
	equal(t, "forgotten at once", r.SessionsForgotten, 0)
	for tag := range 2 {
		ok(t, c.ZAddXX(t.Context(), fmt.Sprintf("{%s%d}:ended", name, tag),
			redis.Z{Score: float64(time.Now().Add(-2 * time.Hour).UnixMicro()), Member: id}).Err())
	}
	r = must[operate.MaintainReport](t)(be.Maintain(t.Context(), nil))
	equal(t, "forgotten", r.SessionsForgotten, 1)
	equal(t, "keys", c.Exists(t.Context(), "{"+name+"0}:s:"+id, "{"+name+"1}:s:"+id).Val(), 0)
}

// When the server's clock is set back, leases do not wait until it has caught up.
func TestTheServersClockIsSetBack(t *testing.T) {
	c := redistest.Shared(t).Client(t)
	name := redistest.Namespace(t)
	be := on(c, name, leaseredis.WithTags(2), leaseredis.WithLogger(discard))
	rows := backend.ConsumerInfo{Name: "rows", Per: backend.PerStream, Announced: true, Lock: backend.LockRow, TTL: 3 * time.Second}
	ok(t, be.Register(t.Context(), topical, topicNames(8)))
	ok(t, be.Register(t.Context(), rows, topicNames(8)))
	id, sess := member(t, be, 6*time.Second, topical, rows)
	lives, kept := member(t, be, time.Minute, topical)
	held := acquire(t, be, id, topical, 8)
	equal(t, "granted", len(held), 8)
	equal(t, "granted", len(acquire(t, be, id, rows, 8)), 8)
	ok(t, be.Release(t.Context(), id, topical.Name, refs(held[:4])))

	// An hour back is the same as all times an hour later.
	for tag := range 2 {
		for _, key := range []string{"sessions", "free:topical", "free:rows"} {
			key = fmt.Sprintf("{%s%d}:%s", name, tag, key)
			for _, m := range must[[]string](t)(c.ZRange(t.Context(), key, 0, -1).Result()) {
				ok(t, c.ZIncrBy(t.Context(), key, float64(time.Hour.Microseconds()), m).Err())
			}
		}
	}
	equal(t, "free, an hour back", survey(t, be, topical).Free, 0)
	must[operate.MaintainReport](t)(be.Maintain(t.Context(), nil))
	equal(t, "free", survey(t, be, topical).Free, 4)
	ok(t, kept.Heartbeat(t.Context()))
	got, gotRows := 0, 0
	eventually(t, "what it held is taken over", func() bool {
		got += len(acquire(t, be, lives, topical, 8))
		gotRows += len(acquire(t, be, lives, rows, 8))
		return got == 8 && gotRows >= 8 // those expire again
	})
	wantLost(t, "heartbeat", sess.Heartbeat(t.Context()))
}
