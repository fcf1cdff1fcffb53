package leaseredis_test

import (
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

// When the server's memory is full, publishing fails, and consuming goes
// on: no process loses a lease, and progress is stored, so that what was handled can be trimmed.
func TestFullMemory(t *testing.T) {
	server := redistest.Start(t, redistest.Config("maxmemory-policy", "noeviction"))
	c := server.Client(t)
	be := on(c, "x")
	id := kit.Join(t, be, topical, time.Minute)
	kit.OK(t, be.Publish(t.Context(), kit.Events("a", 100)))
	kit.OK(t, be.Register(t.Context(), topical, []string{"a", "b"}))
	gs := id.Acquires(1)

	used := kit.Must[string](t)(c.Info(t.Context(), "memory").Result())
	_, used, _ = strings.Cut(used, "used_memory:")
	used, _, _ = strings.Cut(used, "\r\n")
	kit.OK(t, c.ConfigSet(t.Context(), "maxmemory", used).Err())
	for i := 0; c.Append(t.Context(), "filler", strings.Repeat("x", 1<<16)).Err() == nil; i++ {
		if i == 1000 {
			t.Fatal("the memory is never full")
		}
	}
	if err := be.Publish(t.Context(), kit.Events("a", 1)); err == nil || !strings.Contains(err.Error(), "raise maxmemory") || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("publishing with full memory: %v", err)
	}
	kit.OK(t, id.Session.Heartbeat(t.Context()))
	got := kit.Fetch(t, be, topical, "a", gs[0].Cursor, 1000)
	kit.Equal(t, "messages", len(got.Messages), 100)
	fenced := kit.Must[[]string](t)(be.Commit(t.Context(), id.ID, topical.Name, []backend.Progress{{Ref: gs[0].Ref, Cursor: got.Next, Seq: 1,
		Park: []backend.Park{{ID: got.Messages[0].ID, Lane: "k", Attempt: 1, Error: "e"}}}}))
	kit.Equal(t, "fenced", len(fenced), 0)
	kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{topical}))
	if n := c.XLen(t.Context(), "{x0}:t:a").Val(); n > 1 {
		t.Errorf("%d messages that everyone has passed are left", n)
	}
	kit.OK(t, be.Release(t.Context(), id.ID, topical.Name, kit.Refs(gs)))
	other := kit.Join(t, be, topical, time.Minute)
	kit.Equal(t, "acquired by another", len(other.Acquires(2)), 2)
	kit.OK(t, other.Session.Close(t.Context()))
	kit.OK(t, id.Session.Close(t.Context()))

	kit.OK(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
	kit.OK(t, be.Publish(t.Context(), kit.Events("a", 1)))
}
