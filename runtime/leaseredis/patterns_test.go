package leaseredis_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// A pattern counts as long as a session has it, and for a while beyond; publishers stop to copy what
// no process reads any more.
func TestPatternsAreDropped(t *testing.T) {
	client, namespace := redistest.Shared(t).Client(t), redistest.Namespace(t)
	be := on(client, namespace, leaseredis.WithTags(2))
	narrow := backend.ConsumerInfo{Name: "c", Per: backend.PerGroup, Topics: []string{"a"}}
	wide := backend.ConsumerInfo{Name: "c", Per: backend.PerGroup, Topics: []string{"a", "b*"}}
	open := func(info backend.ConsumerInfo) backend.Session {
		t.Helper()
		s := kit.Must[backend.Session](t)(be.OpenSession(t.Context(), backend.SessionSpec{
			ID: kit.ID(), TTL: time.Hour, Consumers: []string{"c"}, Topics: map[string][]string{"c": info.Topics}, Host: "h", PID: 1}))
		t.Cleanup(func() { s.Close(t.Context()) })
		kit.OK(t, be.Register(t.Context(), info, nil))
		return s
	}
	maintain := func() {
		t.Helper()
		kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), []backend.ConsumerInfo{narrow}))
	}
	// ago makes what waits to be dropped older.
	ago := func(d time.Duration) {
		t.Helper()
		now := kit.Must[time.Time](t)(client.Time(t.Context()).Result())
		for tag := range 2 {
			record := fmt.Sprintf(`{"p":["a","b*"],"gone":{"b*":"%d"}}`, now.Add(-d).UnixMicro())
			kit.OK(t, client.HSet(t.Context(), fmt.Sprintf("{%s%d}:patterns", namespace, tag), "c", record).Err())
		}
	}
	stored := func(what string) string {
		t.Helper()
		out := ""
		for tag := range 2 {
			out += client.HGet(t.Context(), fmt.Sprintf("{%s%d}:%s", namespace, tag, what), "c").Val()
		}
		return out
	}
	open(narrow)
	fresh := open(wide)
	maintain()
	kit.OK(t, be.Register(t.Context(), narrow, nil)) // last
	kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "bc", Kind: "k"}, {Topic: "d", Kind: "k"}}))
	if got := kit.Must[[]leaseredis.UnmatchedTopic](t)(be.UnmatchedTopics(t.Context())); len(got) != 1 || got[0].Topic != "d" {
		t.Errorf("topics that nobody takes: %+v, want d", got)
	}
	if got := stored("patterns"); strings.Contains(got, "gone") || strings.Count(got, "b*") != 2 {
		t.Errorf("stored while a member wants both: %s", got)
	}
	kit.OK(t, fresh.Close(t.Context()))
	maintain()
	if got := stored("patterns"); strings.Count(got, "gone") != 2 {
		t.Errorf("stored when no member wants it: %s", got)
	}
	ago(9 * time.Minute)
	maintain()
	if got := stored("views"); strings.Count(got, `"b"`) != 2 {
		t.Errorf("views 9 minutes after: %s", got)
	}
	back := open(wide)
	if got := stored("patterns"); strings.Contains(got, "b*\":") {
		t.Errorf("stored when it is back: %s", got)
	}
	kit.OK(t, back.Close(t.Context()))
	ago(11 * time.Minute)
	maintain()
	if got := stored("patterns") + stored("views"); strings.Contains(got, `"b`) {
		t.Errorf("stored 11 minutes after: %s", got)
	}
	// The process knows that it has registered both; its next session counts nevertheless.
	open(wide)
	if got := stored("views"); strings.Count(got, `"b"`) != 2 {
		t.Errorf("views when it is back: %s", got)
	}
}
