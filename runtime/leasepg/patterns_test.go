package leasepg_test

import (
	"slices"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// A pattern counts as long as a session has it, and for a while beyond; and as long as one may
// have it that does not say.
func TestPatternsAreDropped(t *testing.T) {
	be, pool := migrated(t)
	narrow := backend.ConsumerInfo{Name: "c", Per: backend.PerGroup, Topics: []string{"a_1"}}
	wide := backend.ConsumerInfo{Name: "c", Per: backend.PerGroup, Topics: []string{"b_*", "a_1"}}
	open := func(id string, topics map[string][]string) {
		t.Helper()
		s, err := be.OpenSession(t.Context(), backend.SessionSpec{ID: id, TTL: time.Hour, Consumers: []string{"c"}, Topics: topics, Host: "h", PID: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close(t.Context()) })
	}
	stored := func() (topics, likes []string) {
		t.Helper()
		if _, err := be.Maintain(t.Context(), []backend.ConsumerInfo{narrow}); err != nil {
			t.Fatal(err)
		}
		if err := pool.QueryRow(t.Context(), "select topics, likes from leasegen.consumer where name = 'c'").Scan(&topics, &likes); err != nil {
			t.Fatal(err)
		}
		return topics, likes
	}
	check := func(when string, topics, likes []string) {
		t.Helper()
		gotTopics, gotLikes := stored()
		if !slices.Equal(gotTopics, topics) || !slices.Equal(gotLikes, likes) {
			t.Errorf("%s: %q and %q, want %q and %q", when, gotTopics, gotLikes, topics, likes)
		}
	}
	bothTopics, bothLikes := []string{"a_1", "b_*"}, []string{`a\_1`, `b\_%`}
	open("narrow", map[string][]string{"c": narrow.Topics})
	open("wide", map[string][]string{"c": wide.Topics})
	for _, info := range []backend.ConsumerInfo{wide, narrow} {
		if err := be.Register(t.Context(), info, nil); err != nil {
			t.Fatal(err)
		}
	}
	check("while a member wants both", bothTopics, bothLikes)
	exec(t, pool, "update leasegen.session set state = 'dead', expires_at = clock_timestamp() - interval '9 minutes' where id = 'wide'")
	check("9 minutes after", bothTopics, bothLikes)
	exec(t, pool, "update leasegen.session set expires_at = clock_timestamp() - interval '11 minutes' where id = 'wide'")
	open("silent", nil)
	check("while a session does not say", bothTopics, bothLikes)
	exec(t, pool, "update leasegen.session set state = 'closed', expires_at = clock_timestamp() - interval '11 minutes' where id = 'silent'")
	check("11 minutes after", []string{"a_1"}, []string{`a\_1`})
	// A registration that comes back finds its pattern gone, and puts it in place.
	if err := be.Register(t.Context(), wide, nil); err != nil {
		t.Fatal(err)
	}
	open("back", map[string][]string{"c": wide.Topics})
	check("when it is back", bothTopics, bothLikes)
}
