package leaseredis_test

import (
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// The server's clock was an hour ahead and is set back. Events that were due within moments then happen within moments now: a
// dead session ends, a parked message is retried, a delayed event joins the log, and leases are granted.
func TestNothingWaitsForAClockThatWasSetBack(t *testing.T) {
	t.Parallel()
	c, ns := redistest.Shared(t).Client(t), redistest.Namespace(t)
	log := &logBook{}
	be := on(c, ns, leaseredis.WithTags(1), log.option())
	kit.OK(t, be.Register(t.Context(), topical, []string{"x"}))
	meta := "{" + ns + "0}:meta"
	// An hour ahead, as scripts see it.
	now := kit.Must[time.Time](t)(c.Time(t.Context()).Result())
	kit.OK(t, c.HSet(t.Context(), meta, "shift", time.Hour.Microseconds(), "shifted", now.UnixMicro()).Err())
	live := kit.Join(t, be, topical, time.Hour)
	dies := kit.Join(t, be, topical, 3*time.Second)
	gs := dies.Acquires(1)
	kit.Equal(t, "leases of the one that dies", len(gs), 1)
	kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Key: "k", Kind: "k", Payload: []byte("1")},
		{Topic: "x", Key: "k", Kind: "later", Payload: []byte("2"), After: 2 * time.Second}}))
	f := kit.Fetch(t, be, topical, "x", gs[0].Cursor, 9)
	kit.Equal(t, "messages", len(f.Messages), 1)
	kit.Must[[]string](t)(be.Commit(t.Context(), dies.ID, topical.Name, []backend.Progress{{Ref: gs[0].Ref, Seq: 1, Cursor: f.Next,
		Park: []backend.Park{{ID: f.Messages[0].ID, Lane: "k", Attempt: 1, After: 2 * time.Second}}}}))
	kit.OK(t, live.Heartbeat())
	kit.OK(t, c.HDel(t.Context(), meta, "shift", "shifted").Err()) // it is set back
	began := time.Now()
	kit.OK(t, live.Heartbeat())
	kit.Equal(t, "warnings", log.count("clock was set back"), 1)

	var got []backend.Grant
	kit.Eventually(t, "the dead one's lease is free", func() bool {
		got = live.Acquires(1)
		return len(got) == 1
	})
	if got[0].Epoch <= gs[0].Epoch {
		t.Errorf("epoch %d after %d", got[0].Epoch, gs[0].Epoch)
	}
	kit.Eventually(t, "the parked message is due", func() bool {
		p := kit.Must[backend.Parked](t)(be.FetchParked(t.Context(), backend.ParkedRequest{Session: live.ID, Consumer: topical, Limit: 9, MaxPayload: 99}))
		return len(p.Messages) == 1
	})
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
	defer feed.Close()
	kit.Eventually(t, "the delayed event is there", func() bool {
		kit.Must[backend.News](t)(feed.Next(t.Context()))
		return len(kit.Fetch(t, be, topical, "x", f.Next, 9).Messages) == 1
	})
	if took := time.Since(began); took < time.Second {
		t.Errorf("they came after %v, before it was time", took)
	}
	// An event delayed until a time of the wall is due at that time, whatever the scripts' clock says.
	at := kit.Must[time.Time](t)(c.Time(t.Context()).Result()).Add(30 * time.Minute)
	kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "k", Payload: []byte("3"), At: at}}))
	zs := c.ZRangeWithScores(t.Context(), "{"+ns+"0}:delayed", 0, -1).Val()
	kit.Equal(t, "delayed", len(zs), 1)
	ahead := time.UnixMicro(int64(zs[0].Score)).Sub(at)
	if ahead < 50*time.Minute || ahead > time.Hour { // the tenth that the scripts' clock is slower is three minutes by then
		t.Errorf("an event for %v is due %v later by the scripts' clock", at, ahead)
	}
}
