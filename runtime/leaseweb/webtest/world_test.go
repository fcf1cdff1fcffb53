// Package webtest drives the pages of leaseweb in a real browser. It is a module of its own, so that users of leaseweb
// compile no driver of browsers. It needs Chromium (on Debian the package chromium), PostgreSQL and Redis.
package webtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/browser"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/leaseweb"
	"github.com/leasegen/leasegen/runtime/operate"
)

// order is an event whose handler does what it says, until the cause is fixed.
type order struct {
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
	Do       string `json:"do"`
	Note     string `json:"note,omitempty"`
}

// hostile is what somebody writes into a key, a topic, a header and a payload to get a script onto the page.
const hostile = `"><script>alert(1)</script><img src=x onerror=alert(2)>'` + "\u202e"

// server is a backend that can be operated.
type server interface {
	lease.Backend
	operate.Operator
}

// world is a shop with its consumers on a backend, and the pages that show them.
type world struct {
	t       *testing.T
	be      server
	share   func() server // another process's handle
	pages   *leaseweb.Pages
	url     string
	fixed   atomic.Bool
	handled atomic.Int64
	log     lines
	stop    context.CancelFunc
	ended   sync.WaitGroup
}

type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// backends are those that tests run on.
var backends = map[string]func(t *testing.T) (share func() server){
	"memory": func(*testing.T) func() server {
		be := leasemem.New()
		return func() server { return be.Share() }
	},
	"postgres": func(t *testing.T) func() server {
		return onPostgres(t, pgtest.DB(t))
	},
	"redis": func(t *testing.T) func() server {
		client, namespace := redistest.Shared(t).Client(t), redistest.Namespace(t)
		return func() server { return leaseredis.New(client, leaseredis.WithNamespace(namespace)) }
	},
}

func onPostgres(t *testing.T, dsn string) func() server {
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := leasepg.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return func() server { return leasepg.New(pool) }
}

// newWorld has two replicas that run, orders of which some failed, and pages below a prefix.
func newWorld(t *testing.T, name string) *world {
	t.Helper()
	return worldOn(t, backends[name](t))
}

func worldOn(t *testing.T, share func() server) *world {
	t.Helper()
	w := &world{t: t, share: share}
	w.be = w.share()
	w.run(2)
	ok := order{Customer: "ann", Cents: 100, Do: "charge"}
	for i := range 6 {
		w.publish("orders.eu", order{Customer: fmt.Sprintf("cust-%d", i), Cents: 12345678901234567, Do: "fail"}, ok)
	}
	w.publish("orders.eu", order{Customer: hostile, Do: "fail", Note: hostile + "</pre>"})
	w.publish("orders.us", order{Customer: "bob", Do: "wait"}, order{Customer: "bob", Do: "charge"}, order{Customer: "eve", Do: "wait"}, ok)
	w.eventually("the failures are stored", func() bool {
		s := w.status("billing")
		return s.DeadLetters == 7 && s.ParkedKeys == 2 && s.LagTotal == 0
	})
	return w
}

// run starts replicas, which end with the test.
func (w *world) run(replicas int) {
	ctx, cancel := context.WithCancel(context.Background())
	w.stop = cancel
	w.t.Cleanup(func() { cancel(); w.ended.Wait() })
	for range replicas {
		be := w.share()
		g := lease.NewGroup()
		for _, spec := range []lease.Spec{
			{Name: "billing", Per: lease.PerPartition, Topics: []string{"orders.*"}, Handlers: []lease.Handler{lease.One("order.placed", w.handle)}},
			{Name: "archive", Per: lease.PerGroup, Topics: []string{"orders.*"}, Handlers: []lease.Handler{
				lease.One("order.placed", func(context.Context, lease.Message[order]) error { return nil })}},
		} {
			c, err := lease.NewConsumer(be, spec, lease.WithLogger(slog.New(slog.DiscardHandler)), lease.WithDrain(time.Second))
			if err != nil {
				w.t.Fatal(err)
			}
			if err := g.Add(c); err != nil {
				w.t.Fatal(err)
			}
		}
		w.ended.Go(func() { _ = g.Run(ctx) })
	}
}

func (w *world) handle(_ context.Context, m lease.Message[order]) error {
	switch {
	case m.Payload.Do == "fail" && !w.fixed.Load():
		return lease.DeadLetter(fmt.Sprintf("carrier: 503 Service Unavailable (request %d)", 1000+w.handled.Add(1)))
	case m.Payload.Do == "wait" && !w.fixed.Load():
		return lease.RetryAfter(time.Hour, errors.New("bank: closed until tomorrow"))
	}
	w.handled.Add(1)
	return nil
}

func (w *world) publish(topic string, orders ...order) {
	w.t.Helper()
	err := lease.Publish(w.t.Context(), lease.With(w.be, lease.Headers(map[string]string{"tenant": hostile})), topic, lease.EventType[order]{Kind: "order.placed",
		Key: func(o *order) string { return o.Customer }}, orders)
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) status(consumer string) operate.ConsumerStatus {
	w.t.Helper()
	all, err := w.be.Status(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range all {
		if s.Consumer == consumer {
			return s
		}
	}
	return operate.ConsumerStatus{}
}

func (w *world) eventually(what string, done func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(browser.Patience); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("waited in vain until %s; %+v", what, w.status("billing"))
		}
	}
}

// serve serves the pages to one who may do what access says.
func (w *world) serve(access leaseweb.Access, opts ...leaseweb.Option) string {
	w.pages = leaseweb.New(w.be, append([]leaseweb.Option{
		leaseweb.WithAccess(func(*http.Request) leaseweb.Access { return access }),
		leaseweb.WithActor(func(*http.Request) string { return "ann" }),
		leaseweb.WithLogger(slog.New(slog.NewTextHandler(&w.log, nil))),
		leaseweb.WithTarget("shop"),
	}, opts...)...)
	mux := http.NewServeMux()
	mux.Handle("/ops/", http.StripPrefix("/ops", w.pages))
	server := httptest.NewServer(mux)
	w.t.Cleanup(server.Close)
	w.t.Cleanup(w.pages.Close)
	w.url = server.URL + "/ops/"
	return w.url
}

// logged fails the test unless an action is in the log.
func (w *world) logged(words ...string) {
	w.t.Helper()
	for line := range strings.Lines(w.log.String()) {
		all := strings.Contains(line, "operator action") && strings.Contains(line, "actor=ann")
		for _, word := range words {
			all = all && strings.Contains(line, word)
		}
		if all {
			return
		}
	}
	w.t.Errorf("no line of the log has %q:\n%s", words, &w.log)
}
