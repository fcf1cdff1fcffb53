package leaseredis_test

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/part"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// taking is what a process of its own takes part in.
type taking struct {
	Addrs     []string
	Cluster   bool
	Namespace string
	TTL       time.Duration
	Consumer  backend.ConsumerInfo
	Max       int
}

func (p taking) client() redis.UniversalClient {
	if p.Cluster {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: p.Addrs, ReadTimeout: time.Second})
	}
	return redis.NewClient(&redis.Options{Addr: p.Addrs[0]})
}

// TestProcess is no test but such a process: it owns what it can until it is killed.
func TestProcess(t *testing.T) {
	p := part.Of[taking](t)
	be := on(p.client(), p.Namespace, leaseredis.WithLogger(discard))
	hinted(t, be)
	part.Take(t, be, backend.SessionSpec{TTL: p.TTL}, p.Consumer, p.Max)
}

// watched is a namespace of a server, or of a cluster, whose sessions are looked at from outside.
type watched struct {
	t         testing.TB
	c         redis.UniversalClient
	namespace string
	tags      int
}

// watchedOn is one on a server. A test that waits for a death starts its own: a look that takes two seconds, behind the commands of
// other tests, ends the link, and what that has seen is forgotten.
func watchedOn(t testing.TB, s *redistest.Server) *watched {
	return &watched{t, s.Client(t), redistest.Namespace(t), 1}
}

func (w *watched) key(tag int, name string) string {
	return "{" + w.namespace + strconv.Itoa(tag) + "}:" + name
}

// conn is the connection that a session has noted under a tag.
func (w *watched) conn(tag int, session string) string {
	return w.c.HGet(context.Background(), w.key(tag, "s:"+session), "conn").Val()
}

// linked waits until a session has noted a connection under every tag, other than the ones given.
func (w *watched) linked(session string, except ...string) string {
	w.t.Helper()
	kit.Eventually(w.t, "the session tells of its connections", func() bool {
		for tag := range w.tags {
			if c := w.conn(tag, session); c == "" || slices.Contains(except, c) {
				return false
			}
		}
		return true
	})
	return w.conn(0, session)
}

func (w *watched) dead(session string) bool {
	for tag := range w.tags {
		if w.c.HExists(context.Background(), w.key(tag, "s:"+session), "ended").Val() {
			return true
		}
	}
	return false
}

// join opens a session and waits until it can be watched.
func (w *watched) join(be *leaseredis.Backend, info backend.ConsumerInfo, ttl time.Duration) *kit.Actor {
	w.t.Helper()
	a := kit.Join(w.t, be, info, ttl)
	w.linked(a.ID)
	return a
}

// hinted lets the sessions of a backend hear when others come and go, as those of the runtime do.
func hinted(t testing.TB, be *leaseredis.Backend) {
	t.Helper()
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{grouped}))
	t.Cleanup(feed.Close)
}

// alive keeps a session alive until the test ends, as the runtime does.
func alive(t *testing.T, a *kit.Actor, ttl time.Duration) {
	ctx, stop := context.WithCancel(context.Background())
	var beating sync.WaitGroup
	beating.Go(func() {
		for ctx.Err() == nil {
			_ = a.Session.Heartbeat(ctx)
			select {
			case <-time.After(ttl / 3):
			case <-a.Session.Alarm():
				time.Sleep(50 * time.Millisecond)
			case <-ctx.Done():
			}
		}
	})
	t.Cleanup(func() { stop(); beating.Wait() })
}

// killConn ends the connection that a session has noted, at the server.
func killConn(t testing.TB, c *redis.Client, conn string) {
	t.Helper()
	_, id, _ := strings.Cut(conn, "/")
	kit.OK(t, c.Do(t.Context(), "CLIENT", "KILL", "ID", id).Err())
}

const (
	watchEvery = 310 * time.Millisecond // a session looks at its neighbours
	ringEvery  = 5 * time.Second        // and at the latest which these are
)

// through is a client whose connections are changed.
func through(t testing.TB, addr string, change func(net.Conn) net.Conn) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr, Dialer: changing(change)})
	t.Cleanup(func() { c.Close() })
	return c
}

// changing dials connections that are changed.
func changing(change func(net.Conn) net.Conn) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return change(c), nil
	}
}
