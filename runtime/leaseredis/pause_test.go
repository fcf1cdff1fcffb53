package leaseredis

import (
	"strings"
	"testing"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

// TestPauseWhoseReplyIsLost takes effect, and is repeated.
func TestPauseWhoseReplyIsLost(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		a.takes(9, "x", "y")
		faults := a.breaks()
		faults.loseReply(scripts.pause)
		again(t, faults, func() error { return a.Pause(t.Context(), "c") })
		kit.Equal(t, "granted", len(a.takes(9, "z")), 0)
		faults.loseReply(scripts.pause)
		again(t, faults, func() error { return a.Resume(t.Context(), "c") })
		kit.Equal(t, "granted", len(a.takes(9)), 1)
	})
}

// TestPauseThatSomeTagsHaveNotHeardOf, since their node was away, is one for the consumer: its members give everything back.
// The others do not wait for it, and repeating it does what is left.
func TestPauseThatSomeTagsHaveNotHeardOf(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		names := kit.Topics(40)
		a.takes(5, names...)
		kit.OK(t, a.Pause(t.Context(), "c"))
		sh, err := a.shape(t.Context())
		kit.OK(t, err)
		for tag := 1; tag < sh.tags; tag++ {
			kit.Equal(t, "pauses under a tag", a.client.HDel(t.Context(), a.prefix(tag)+"paused", "c").Val(), int64(1))
		}
		s := a.Surveys()
		if !s.Paused || s.Free != 0 {
			t.Fatalf("survey: %+v", s)
		}
		st := kit.Must[[]operate.ConsumerStatus](t)(a.Status(t.Context()))
		if !st[0].Paused {
			t.Fatalf("status: %+v", st)
		}
		kit.OK(t, a.Pause(t.Context(), "c"))
		kit.Equal(t, "granted", len(a.Acquires(40)), 0)
		kit.OK(t, a.Resume(t.Context(), "c"))
		kit.Equal(t, "granted", len(a.Acquires(40)), 35)
	})
}

// TestPauseOutlivesTheServer: it is as durable as what is published.
func TestPauseOutlivesTheServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Config("appendonly", "yes"), redistest.Config("appendfsync", "always"))
	be := New(server.Client(t), WithNamespace("lg"))
	a := join(t, be, perTopic())
	kit.OK(t, be.Register(t.Context(), perTopic(), []string{"x"}))
	kit.OK(t, be.Pause(t.Context(), "c"))
	server.Restart()
	kit.Eventually(t, "the server answers", func() bool { _, err := be.Status(t.Context()); return err == nil })
	b := a.another()
	kit.Equal(t, "granted", len(b.Acquires(1)), 0)
	kit.OK(t, be.Resume(t.Context(), "c"))
	b.Takes()
}

// TestPauseWhenMemoryIsFull: that is when consumers may have to be stopped.
func TestPauseWhenMemoryIsFull(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := server.Client(t)
	be := New(c, WithNamespace("lg"))
	a := join(t, be, perTopic())
	a.takesOne("x")
	kit.OK(t, c.ConfigSet(t.Context(), "maxmemory", "1mb").Err())
	if err := a.Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "k"}}); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Fatalf("memory is not full: %v", err)
	}
	kit.OK(t, be.Pause(t.Context(), "c"))
	kit.Equal(t, "paused", a.Surveys().Paused, true)
	kit.OK(t, be.Resume(t.Context(), "c"))
}
