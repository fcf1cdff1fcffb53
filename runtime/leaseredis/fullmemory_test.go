package leaseredis_test

import (
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// When the server's memory is full, publishing fails, and what is there is worked on all the
// same: nobody loses a lease, and progress is stored, so that what was handled can be trimmed.
func TestFullMemory(t *testing.T) {
	server := redistest.Start(t, redistest.Config("maxmemory-policy", "noeviction"))
	c := server.Client(t)
	be := on(c, "x")
	id, s := member(t, be, time.Minute, topical)
	ok(t, be.Publish(t.Context(), events("a", 100)))
	ok(t, be.Register(t.Context(), topical, []string{"a", "b"}))
	gs := acquire(t, be, id, topical, 1)

	used := must[string](t)(c.Info(t.Context(), "memory").Result())
	_, used, _ = strings.Cut(used, "used_memory:")
	used, _, _ = strings.Cut(used, "\r\n")
	ok(t, c.ConfigSet(t.Context(), "maxmemory", used).Err())
	for i := 0; c.Append(t.Context(), "filler", strings.Repeat("x", 1<<16)).Err() == nil; i++ {
		if i == 1000 {
			t.Fatal("the memory is never full")
		}
	}
	if err := be.Publish(t.Context(), events("a", 1)); err == nil || !strings.Contains(err.Error(), "raise maxmemory") || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("publishing with full memory: %v", err)
	}
	ok(t, s.Heartbeat(t.Context()))
	got := fetch(t, be, topical, "a", gs[0].Cursor, 1000)
	equal(t, "messages", len(got.Messages), 100)
	fenced := must[[]string](t)(be.Commit(t.Context(), id, topical.Name, []backend.Progress{{Ref: gs[0].Ref, Cursor: got.Next, Seq: 1,
		Park: []backend.Park{{ID: got.Messages[0].ID, Lane: "k", Attempt: 1, Error: "e"}}}}))
	equal(t, "fenced", len(fenced), 0)
	must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{topical}))
	if n := c.XLen(t.Context(), "{x0}:t:a").Val(); n > 1 {
		t.Errorf("%d messages that everyone has passed are left", n)
	}
	ok(t, be.Release(t.Context(), id, topical.Name, refs(gs)))
	other, s2 := member(t, be, time.Minute, topical)
	equal(t, "acquired by another", len(acquire(t, be, other, topical, 2)), 2)
	ok(t, s2.Close(t.Context()))
	ok(t, s.Close(t.Context()))

	ok(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
	ok(t, be.Publish(t.Context(), events("a", 1)))
}
