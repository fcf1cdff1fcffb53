package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// A pause outlasts all actions but forgetting: moved cursors, replays, retries, and processes that come and go.
func TestPauseBesideOthers(t *testing.T) {
	t.Run("PostgreSQL", func(t *testing.T) {
		be, dsn := attentive(t)
		pauseBesideOthers(t, be, []string{"-dsn", dsn}, func() lease.Backend { return leasepg.New(poolOf(t, dsn)) })
	})
	t.Run("Redis", func(t *testing.T) {
		s := redistest.Shared(t)
		be, on := onRedis(t, s.Client(t), s.URL())
		deadLetter(t, be)
		pauseBesideOthers(t, be, on, func() lease.Backend { return be })
	})
}

func pauseBesideOthers(t *testing.T, be lease.Backend, on []string, again func() lease.Backend) {
	var handled atomic.Int32
	start := func() (stop func()) {
		c, err := lease.NewConsumer(again(), lease.Spec{Name: "mailing", Per: lease.PerTopic, Topics: []string{"mail.*"}, TTL: 2 * time.Second, Handlers: []lease.Handler{
			lease.One("mail", func(context.Context, lease.Message[[]byte]) error { handled.Add(1); return nil })}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		return func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	must := func(line string) string { t.Helper(); return mustRun(t, nil, append(strings.Fields(line), on...)...) }
	until := func(what string, met func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !met(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("a minute passed before %s:\n%s", what, must("status"))
			}
		}
	}
	members := func(n int) func() bool {
		return func() bool { return strings.Count(must("status mailing -members -format json"), `"host": `) == n }
	}
	must("pause mailing")
	for _, line := range []string{"dlq replay mailing -yes", "parked mailing -retry -yes", "cursor set mailing -to now -yes", "cursor set mailing -to beginning -yes"} {
		stop := start()
		until("it is a member", members(1))
		if out := must(line); strings.HasPrefix(line, "dlq") && !strings.Contains(out, "they wait until it is resumed: leasegen resume mailing") {
			t.Errorf("%s: %s", line, out)
		}
		stop()
		until("it has left", members(0))
	}
	if err := be.Publish(t.Context(), []lease.Event{{Topic: "mail.us", Kind: "mail"}}); err != nil {
		t.Fatal(err)
	}
	stop := start()
	until("it is a member", members(1))
	time.Sleep(500 * time.Millisecond)
	if n := handled.Load(); n > 0 || !strings.Contains(must("status"), "mailing PAUSED") {
		t.Errorf("%d messages were handled in a pause:\n%s", n, must("status"))
	}
	if out := must("resume mailing"); !strings.HasPrefix(out, "resumed mailing") {
		t.Error(out)
	}
	until("all are handled", func() bool { return handled.Load() >= 3 }) // two again, and the one published
	must("pause mailing")
	if code, _, errs := leasegen(t, nil, append([]string{"forget", "mailing", "-yes"}, on...)...); code != exitError || !strings.Contains(errs, "1 live member") {
		t.Errorf("forget of a consumer that is paused, and alive: exit %d, %s", code, errs)
	}
	stop()
	until("it has left", members(0))
	must("forget mailing -yes")
	handled.Store(0)
	defer start()()
	// A new consumer of that name begins again, and is not paused.
	until("a new one handles", func() bool {
		return handled.Load() > 0 || be.Publish(t.Context(), []lease.Event{{Topic: "mail.eu", Kind: "mail", Payload: fmt.Append(nil, 1)}}) != nil
	})
	if out := must("status"); strings.Contains(out, "PAUSED") {
		t.Errorf("the pause outlives the consumer:\n%s", out)
	}
}
