package leasemem_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// readAll takes all that is free, reads it and stores that.
func readAll(t *testing.T, be *leasemem.Backend, info backend.ConsumerInfo, id string) []backend.Grant {
	t.Helper()
	_, gs := owner(t, be, info, id, 100*time.Hour)
	for _, g := range gs {
		fs, err := be.Fetch(t.Context(), backend.FetchRequest{Consumer: info, Items: []backend.FetchItem{{Resource: g.Resource, From: g.Cursor, Limit: 99}}})
		if err != nil {
			t.Fatal(err)
		}
		if fenced, err := be.Commit(t.Context(), id, info.Name, []backend.Progress{{Ref: g.Ref, Cursor: fs[0].Next}}); err != nil || len(fenced) > 0 {
			t.Fatalf("fenced %v, %v", fenced, err)
		}
	}
	return gs
}

func maintain(t *testing.T, be *leasemem.Backend, infos ...backend.ConsumerInfo) operate.MaintainReport {
	t.Helper()
	r, err := be.Maintain(t.Context(), infos)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Messages that readers of slots and streams have passed are dropped, and no more.
func TestTheLogForgetsWhatSlotsAndStreamsPassed(t *testing.T) {
	be := leasemem.New(leasemem.WithSlots(8))
	slots := backend.ConsumerInfo{Name: "p", Per: backend.PerPartition, Topics: []string{"*"}}
	streams := backend.ConsumerInfo{Name: "s", Per: backend.PerStream, Topics: []string{"x"}}
	for i := range 20 {
		e := backend.Event{Topic: "x", Key: string(rune('a' + i%5)), Kind: "k", Payload: []byte(`{}`)}
		if err := be.Publish(t.Context(), []backend.Event{e}); err != nil {
			t.Fatal(err)
		}
	}
	if gs := readAll(t, be, slots, "1"); len(gs) != 8 {
		t.Fatalf("%d slots", len(gs))
	}
	if err := be.Register(t.Context(), streams, []string{}); err != nil {
		t.Fatal(err)
	}
	if r := maintain(t, be, slots, streams); r.SegmentsDropped != 0 {
		t.Fatalf("dropped %d messages that no stream has passed", r.SegmentsDropped)
	}
	readAll(t, be, streams, "2")
	if r := maintain(t, be, slots, streams); r.SegmentsDropped != 20 {
		t.Fatalf("dropped %d messages, want 20", r.SegmentsDropped)
	}
}

// Streams of which no message is left are forgotten after a day, and their epochs rise when
// they come again.
func TestStreamsAreForgotten(t *testing.T) {
	var off atomic.Int64
	be := leasemem.New(leasemem.WithClock(func() time.Time { return time.Now().Add(time.Duration(off.Load())) }))
	info := backend.ConsumerInfo{Name: "s", Per: backend.PerStream, Topics: []string{"x"}}
	publishKey := func() {
		if err := be.Publish(t.Context(), []backend.Event{{Topic: "x", Key: "a", Kind: "k", Payload: []byte(`{}`)}}); err != nil {
			t.Fatal(err)
		}
	}
	publishKey()
	gs := readAll(t, be, info, "1")
	if err := be.Retire(t.Context(), "1", "s", []backend.Ref{gs[0].Ref}); err != nil {
		t.Fatal(err)
	}
	leases := func() int {
		ls, err := be.Leases(t.Context(), "s", 0)
		if err != nil {
			t.Fatal(err)
		}
		return len(ls)
	}
	off.Store(int64(23 * time.Hour))
	if r := maintain(t, be, info); r.StreamsForgotten != 0 || leases() != 1 {
		t.Errorf("forgotten after 23 hours: %+v", r)
	}
	off.Store(int64(25 * time.Hour))
	if r := maintain(t, be, info); r.StreamsForgotten != 1 || leases() != 0 {
		t.Errorf("not forgotten after 25 hours: %+v", r)
	}
	publishKey()
	again := readAll(t, be, info, "2")
	if len(again) != 1 || again[0].Epoch <= gs[0].Epoch {
		t.Errorf("granted %+v after %+v", again, gs)
	}
}

func TestWithSlots(t *testing.T) {
	for n, want := range map[int]int{0: 1, 1: 1, 7: 7, 1024: 1024} {
		be := leasemem.New(leasemem.WithSlots(n))
		info := backend.ConsumerInfo{Name: "p", Per: backend.PerPartition, Topics: []string{"*"}}
		if err := be.Register(t.Context(), info, nil); err != nil {
			t.Fatal(err)
		}
		s, err := be.Survey(t.Context(), []string{"p"})
		if err != nil || s[0].Resources != want {
			t.Errorf("WithSlots(%d): %d slots, %v", n, s[0].Resources, err)
		}
	}
}

// A key's slot is the same in every program: FNV-1a of the key, modulo the slots.
func TestSlotsAreStable(t *testing.T) {
	be := leasemem.New()
	info := backend.ConsumerInfo{Name: "p", Per: backend.PerPartition, Topics: []string{"*"}}
	feed, err := be.OpenFeed(t.Context(), []backend.ConsumerInfo{info})
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	for _, key := range []string{"a", "customer 1", "ü"} {
		if err := be.Publish(t.Context(), []backend.Event{{Topic: "x", Key: key, Kind: "k", Payload: []byte(`{}`)}}); err != nil {
			t.Fatal(err)
		}
	}
	news, err := feed.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := news.Resources["p"], []string{"140", "190", "234"}; !slices.Equal(got, want) {
		t.Errorf("slots %v, want %v", got, want)
	}
}

func TestSourcesAreForOtherBackends(t *testing.T) {
	be := leasemem.New()
	err := be.Register(t.Context(), backend.ConsumerInfo{Name: "c", Per: backend.PerGroup, Source: 1}, nil)
	if err == nil || !strings.Contains(err.Error(), "source of its own") {
		t.Errorf("error %v", err)
	}
}
