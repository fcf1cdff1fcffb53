package webtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/leasegen/leasegen/internal/browser"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

var pictures = flag.String("pictures", "", "`folder` for the pictures of the docs, which are made anew")

// machines gives the replicas of one test process the names of machines, in the order in which they came.
type machines struct {
	server
	mu   *sync.Mutex
	came map[string]int
}

func (m machines) Members(ctx context.Context, consumer string) ([]operate.MemberStatus, error) {
	all, err := m.server.Members(ctx, consumer)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range all {
		n, known := m.came[all[i].Session]
		if !known {
			n = len(m.came)
			m.came[all[i].Session] = n
		}
		all[i].Host, all[i].PID = fmt.Sprint("web-", 1+n), 4077+41*n
	}
	return all, err
}

// The pictures of the docs show a shop in which one replica comes, another goes, and a carrier is down.
func TestPictures(t *testing.T) {
	if *pictures == "" {
		t.Skip("no folder is given by -pictures")
	}
	w := &world{t: t, share: backends["postgres"](t)}
	w.be = machines{w.share(), new(sync.Mutex), map[string]int{}}
	replica := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		g, slow := lease.NewGroup(), 12*time.Millisecond
		for _, spec := range []lease.Spec{
			{Name: "billing", Per: lease.PerPartition, Topics: []string{"orders.*"}, Handlers: []lease.Handler{lease.One("order.placed", func(ctx context.Context, m lease.Message[order]) error {
				time.Sleep(slow)
				return w.handle(ctx, m)
			})}},
			{Name: "archive", Per: lease.PerGroup, Topics: []string{"orders.*"}, Handlers: []lease.Handler{
				lease.One("order.placed", func(context.Context, lease.Message[order]) error { time.Sleep(slow); return nil })}},
			{Name: "mailing", Per: lease.PerTopic, Topics: []string{"orders.*"}, Handlers: []lease.Handler{
				lease.One("order.placed", func(_ context.Context, m lease.Message[order]) error {
					if m.Payload.Do == "bounce" {
						return lease.RetryAfter(20*time.Minute, errors.New("smtp: 451 mailbox busy"))
					}
					return nil
				})}},
		} {
			c, err := lease.NewConsumer(w.share(), spec, lease.WithLogger(slog.New(slog.DiscardHandler)), lease.WithDrain(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Add(c); err != nil {
				t.Fatal(err)
			}
		}
		w.ended.Go(func() { _ = g.Run(ctx) })
		t.Cleanup(func() { cancel(); w.ended.Wait() })
		return cancel
	}
	orders := func(seconds int) {
		for i := range seconds * 10 {
			w.publish(fmt.Sprintf("orders.%s", []string{"eu", "us", "asia"}[i%3]), order{Customer: fmt.Sprintf("cust-%d", i%97), Cents: int64(1999 + i), Do: map[bool]string{i%23 == 22: "fail", i%41 == 40: "bounce"}[true]})
			for range i % 30 / 5 {
				w.publish("orders.eu", order{Customer: fmt.Sprintf("cust-%d", i%89), Cents: 100})
			}
			if i%80 == 40 { // a campaign
				for j := range 400 {
					w.publish("orders.us", order{Customer: fmt.Sprintf("cust-%d", (i+j)%31), Cents: 100})
				}
			}
			time.Sleep(90 * time.Millisecond)
		}
	}
	replica()
	stop := replica()
	b := browser.New(t, w.serve(everything))
	b.Size(1200, "light")
	b.Open("consumer?c=billing")
	orders(25)
	replica()
	orders(25)
	stop()
	orders(12)
	shoot := func(name string, width, height int, scheme, page string) {
		b.Size(width, scheme)
		b.Do(chromedp.EmulateViewport(int64(width), int64(height)))
		b.Open(page)
		b.Until(func() bool { return browser.Eval[bool](b, "document.readyState === 'complete'") }, "the page is there")
		png := b.Picture()
		if len(png) > 150_000 {
			t.Errorf("%s has %d bytes", name, len(png))
		}
		if err := os.WriteFile(filepath.Join(*pictures, name), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	shoot("page-consumers.png", 1200, 480, "light", "")
	shoot("page-owners.png", 1200, 1000, "light", "consumer?c=billing")
	shoot("page-dead.png", 1200, 620, "dark", "dead?c=billing")
	shoot("page-narrow.png", 400, 860, "dark", "consumer?c=billing")
}
