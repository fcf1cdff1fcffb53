package leasemem_test

import (
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

// A pattern counts as long as a member has it, and for a while beyond.
func TestPatternsAreDropped(t *testing.T) {
	now := time.Now()
	be := leasemem.New(leasemem.WithClock(func() time.Time { return now }))
	narrow := backend.ConsumerInfo{Name: "c", Per: backend.PerGroup, Topics: []string{"a"}}
	wide := backend.ConsumerInfo{Name: "c", Per: backend.PerGroup, Topics: []string{"a", "b"}}
	open := func(id string, info backend.ConsumerInfo) backend.Session {
		t.Helper()
		s, err := be.OpenSession(t.Context(), backend.SessionSpec{ID: id, TTL: 24 * time.Hour, Consumers: []string{"c"}, Topics: map[string][]string{"c": info.Topics}})
		if err == nil {
			err = be.Register(t.Context(), info, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	read := func() (topics []string) {
		t.Helper()
		if _, err := be.Maintain(t.Context(), []backend.ConsumerInfo{narrow}); err != nil {
			t.Fatal(err)
		}
		fs, err := be.Fetch(t.Context(), backend.FetchRequest{Consumer: narrow, MaxPayload: 100, Items: []backend.FetchItem{{Resource: backend.Whole, Limit: 10}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range fs[0].Messages {
			topics = append(topics, m.Topic)
		}
		return topics
	}
	if err := be.Publish(t.Context(), []backend.Event{{Topic: "b", Kind: "k"}, {Topic: "a", Kind: "k"}}); err != nil {
		t.Fatal(err)
	}
	open("narrow", narrow)
	fresh := open("wide", wide)
	now = now.Add(time.Hour)
	if got := read(); len(got) != 2 {
		t.Errorf("read %q while a member wants both", got)
	}
	if err := fresh.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	now = now.Add(9 * time.Minute)
	if got := read(); len(got) != 2 {
		t.Errorf("read %q 9 minutes after", got)
	}
	now = now.Add(2 * time.Minute)
	if got := read(); len(got) != 1 || got[0] != "a" {
		t.Errorf("read %q 11 minutes after, want a", got)
	}
}
