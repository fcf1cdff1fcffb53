package leasepg_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// The sum in docs/sizing.md: the connections of a process beside its pool do not depend on the number of consumers and resources.
func TestConnectionsOfAProcess(t *testing.T) {
	t.Parallel()
	type group struct {
		name string
		ttls []time.Duration
		want int
	}
	for _, g := range []group{
		{"one consumer", []time.Duration{time.Minute}, 3},
		{"nine of one TTL", []time.Duration{8: 0}, 3},
		{"four of three TTLs", []time.Duration{time.Minute, time.Minute, time.Hour, 2 * time.Hour}, 9},
	} {
		t.Run(g.name, func(t *testing.T) {
			be, pool := migrated(t)
			kit.OK(t, be.Publish(t.Context(), kit.Events("x", 10)))
			all := lease.NewGroup()
			handled := make(chan struct{}, 1000)
			for i, ttl := range g.ttls {
				c := kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, lease.Spec{
					Name: fmt.Sprint("c", i), Per: backend.PerTopic, Topics: []string{"*"}, TTL: ttl,
					Handlers: []lease.Handler{lease.One("kind", func(context.Context, lease.Message[struct{}]) error { handled <- struct{}{}; return nil })},
				}, lease.WithLogger(slog.New(slog.DiscardHandler))))
				kit.OK(t, all.Add(c))
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- kit.Run(ctx, all) }()
			for range 10 * len(g.ttls) {
				<-handled
			}
			own := func() int {
				return query[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'leasegen'")
			}
			// No handler waits for the last one, and one too many may come after it.
			kit.Eventually(t, fmt.Sprint(g.want, " connections of its own"), func() bool { return own() >= g.want })
			time.Sleep(time.Second)
			kit.Equal(t, "connections of its own", own(), g.want)
			cancel()
			kit.OK(t, <-ended)
		})
	}
}

// A server that is slow to open a connection is asked for it once: it opens one that was given up as well, so that many processes which
// begin again together would keep it busy with that alone.
func TestSlowServerIsAskedOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		prompt int64 // connections that open at once before the slow one
	}{
		{"the first one of a session", 0},
		{"the one that waits for other sessions", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, pool := migrated(t)
			slow := faultproxy.Start(t, pgtest.Shared(t).Addr())
			slow.Deafen()
			var dials atomic.Int64
			be := leasepg.New(redirected(t, pool, func(ctx context.Context, network, addr string) (net.Conn, error) {
				if dials.Add(1) > c.prompt {
					addr = slow.Addr()
				}
				return new(net.Dialer).DialContext(ctx, network, addr)
			}), leasepg.WithLogger(slog.New(slog.DiscardHandler)))
			opened, id := make(chan error, 1), kit.ID()
			var session backend.Session
			go func() {
				var err error
				session, err = be.OpenSession(t.Context(), backend.SessionSpec{
					ID: id, TTL: time.Hour, Host: "host", PID: 7, Consumers: []string{topical.Name},
				})
				opened <- err
			}()
			kit.Eventually(t, "it connects", func() bool { return dials.Load() > c.prompt })
			time.Sleep(25 * time.Second) // a second one would come within this time, if tries ended after ten or fifteen
			kit.Equal(t, "connections that were asked for", dials.Load(), c.prompt+1)
			slow.Heal()
			kit.OK(t, <-opened)
			kit.Eventually(t, "the session waits for others", func() bool { return waits(t, pool, id) })
			kit.Equal(t, "connections that were asked for in the end", dials.Load(), 2)
			kit.OK(t, session.Close(t.Context()))
		})
	}
}

// A long try to connect in vain is reported, and not only the last of many.
func TestLongTryIsReported(t *testing.T) {
	t.Parallel()
	_, pool := migrated(t)
	slow := faultproxy.Start(t, pgtest.Shared(t).Addr())
	slow.Deafen()
	var dials, reported atomic.Int64 // reported: how many there were at the report
	be := leasepg.New(redirected(t, pool, func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials.Add(1) > 1 {
			addr = slow.Addr()
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}), leasepg.WithLogger(slog.New(slog.NewTextHandler(writes(func(line string) {
		if strings.Contains(line, "no connection waits") {
			reported.CompareAndSwap(0, dials.Load())
		}
	}), nil))))
	kit.Join(t, be, topical, time.Hour)
	kit.Eventually(t, "it connects a second time", func() bool { return dials.Load() == 2 })
	time.Sleep(11 * time.Second) // a try that is this long is reported when it ends
	slow.HangUp()
	kit.Eventually(t, "it is reported", func() bool { return reported.Load() > 0 })
	if n := reported.Load(); n > 3 { // a try may dial twice
		t.Errorf("it was reported after %d connections had been asked for", n)
	}
}

// writes is a Writer that passes each write on.
type writes func(string)

func (w writes) Write(p []byte) (int, error) {
	w(string(p))
	return len(p), nil
}
