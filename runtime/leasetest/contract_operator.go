package leasetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

const asideMessages = 14

// aside parks messages of topics 1 and 2, in lanes of two whose names are hostile, for an hour. It returns a session that owns both.
func aside(t testing.TB, be backend.Backend) (*kit.Actor, map[string]backend.Ref) {
	t.Helper()
	keys := []string{"a", "a:1:b", `"'*%_\`, "ünï\x7f"}
	publish(t, be, append(events("1", 8, keys...), events("2", 6, keys[:3]...)...)...)
	a := join(t, be, perTopic(), long).Registers("1", "2")
	refs := map[string]backend.Ref{}
	for _, g := range a.Acquires(9) {
		refs[g.Resource] = g.Ref
		got := a.Reads(g.Resource, g.Cursor, 9)
		p := backend.Progress{Ref: g.Ref, Seq: 1, Cursor: got.Next}
		for _, m := range got.Messages {
			p.Park = append(p.Park, backend.Park{ID: m.ID, Lane: m.Key, Attempt: 2, After: time.Hour, Error: "no"})
		}
		a.Commits(p)
	}
	return a, refs
}

var operatorChecks = []check{
	{"Operator/Status_counts", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		op := kit.Operator(t, be)
		publish(t, be, append(append(events("1", 5), events("2", 3)...), event("other", "", 1))...)
		a := join(t, be, perTopic("1", "2", "3"), long).Registers("1", "2", "3")
		join(t, be, perGroup("*"), long).Registers()
		one := grantOf(a, a.Acquires(9), "1")
		got := a.Reads("1", one.Cursor, 9)
		a.Commits(backend.Progress{Ref: one.Ref, Cursor: got.Cut(3),
			Park: []backend.Park{{ID: got.Messages[0].ID, Lane: "k", Attempt: 1, Error: "e"}, {ID: got.Messages[2].ID, Lane: "k"}},
			Dead: []backend.Dead{{ID: got.Messages[1].ID, Attempt: 1, Reason: "r"}}})
		time.Sleep(time.Millisecond) // messages have an age
		st := kit.Must[[]operate.ConsumerStatus](t)(op.Status(t.Context()))
		kit.Equal(t, "consumers", len(st), 2)
		for i := range st {
			if st[i].OldestUnread <= 0 || st[i].OldestUnread > time.Minute {
				t.Fatalf("the oldest unread message of %s is %v old", st[i].Consumer, st[i].OldestUnread)
			}
			st[i].OldestUnread = 0
		}
		kit.Equal(t, "c", st[0], operate.ConsumerStatus{
			Consumer: "c", Per: "topic", Lock: "session", Resources: 3, Members: 1, Unowned: 0, LagMax: 3, LagTotal: 5, ParkedKeys: 1, DeadLetters: 1,
		})
		kit.Equal(t, "g", st[1], operate.ConsumerStatus{Consumer: "g", Per: "group", Lock: "session", Resources: 1, Members: 1, Standbys: 1, Unowned: 1, LagMax: 9, LagTotal: 9})
	})},
	{"Operator/Parked_messages_are_listed_lane_by_lane", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		op := kit.Operator(t, be)
		publish(t, be, append(events("1", 4), event("2", "other", 1))...)
		a := join(t, be, perTopic("1", "2"), long).Registers("1", "2")
		begin := time.Now()
		for _, g := range a.Acquires(9) {
			got := a.Reads(g.Resource, g.Cursor, 9)
			p := backend.Progress{Ref: g.Ref, Cursor: got.Cut(len(got.Messages))}
			for i, m := range got.Messages {
				park := backend.Park{ID: m.ID, Lane: m.Key}
				if i == 0 {
					park.Attempt, park.After, park.Error = 2, time.Hour, "no"
				}
				p.Park = append(p.Park, park)
			}
			a.Commits(p)
		}
		list := func(f operate.ParkedFilter) (ids []string, all []operate.ParkedInfo) {
			all = kit.Must[[]operate.ParkedInfo](t)(op.Parked(t.Context(), f))
			return each(all, func(p operate.ParkedInfo) string { return p.MessageID }), all
		}
		_, one := list(operate.ParkedFilter{Consumer: "c", Resource: "1"})
		kit.Equal(t, "parked of 1", len(one), 4)
		for i, p := range one {
			kit.Equal(t, "behind", p.Behind, i > 0)
			kit.Equal(t, "of", p.Resource+" "+p.Topic+" "+p.Key+" "+p.Kind, "1 1 "+one[0].Key+" "+one[0].Kind)
			if i > 0 {
				kit.Equal(t, "waiting", p.FirstFailed.IsZero() && p.Error == "" && p.Attempts == 0, true)
			}
		}
		first := one[0]
		kit.Equal(t, "failed", first.Error, "no")
		kit.Equal(t, "attempts", first.Attempts, 2)
		if wait := first.Due.Sub(first.FirstFailed); wait < time.Hour-time.Second || wait > time.Hour+time.Second || first.Due.Before(begin.Add(50*time.Minute)) {
			t.Errorf("failed first at %v and is due at %v; parked after %v for an hour", first.FirstFailed, first.Due, begin)
		}
		ids, all := list(operate.ParkedFilter{Consumer: "c"})
		kit.Equal(t, "parked", len(all), 5)
		some, _ := list(operate.ParkedFilter{Consumer: "c", Limit: 2})
		kit.Equal(t, "the first two", strings.Join(some, " "), strings.Join(ids[:2], " "))
		_, other := list(operate.ParkedFilter{Consumer: "c", Key: "other"})
		kit.Equal(t, "of a key", len(other), 1)
		kit.Equal(t, "of a key", other[0].Topic, "2")
		kit.Equal(t, "bytes", other[0].Size > 0, true)
		_, none := list(operate.ParkedFilter{Consumer: "nobody"})
		kit.Equal(t, "of a consumer that is not there", len(none), 0)
	})},
	{"Operator/Parked_messages_are_listed_page_by_page", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, _ := aside(t, be)
		op := a.Operator()
		list := func(f operate.ParkedFilter) []operate.ParkedInfo {
			f.Consumer = "c"
			return kit.Must[[]operate.ParkedInfo](t)(op.Parked(t.Context(), f))
		}
		all := list(operate.ParkedFilter{})
		kit.Equal(t, "parked", len(all), asideMessages)
		named := func(ps []operate.ParkedInfo) []string {
			return each(ps, func(p operate.ParkedInfo) string { return p.Resource + " " + p.MessageID })
		}
		for limit := 1; limit <= 4; limit++ {
			var got []operate.ParkedInfo
			filter := operate.ParkedFilter{Limit: limit}
			for page := list(filter); len(page) > 0; page = list(filter) {
				got, filter.After = append(got, page...), page[len(page)-1].Place
				if len(got) > asideMessages {
					t.Fatal("the pages do not end")
				}
			}
			equalSlices(t, fmt.Sprintf("all pages of %d", limit), named(got), named(all))
		}
		for _, p := range all { // any place, and any resource and key
			equalSlices(t, "of one resource", named(list(operate.ParkedFilter{Resource: p.Resource, After: p.Place})),
				named(slices.DeleteFunc(slices.Clone(all[slices.Index(all, p)+1:]), func(q operate.ParkedInfo) bool { return q.Resource != p.Resource })))
			equalSlices(t, "of one key", named(list(operate.ParkedFilter{Key: p.Key, After: p.Place})),
				named(slices.DeleteFunc(slices.Clone(all[slices.Index(all, p)+1:]), func(q operate.ParkedInfo) bool { return q.Key != p.Key })))
			for _, resource := range []string{"", p.Resource} {
				one := list(operate.ParkedFilter{Resource: resource, IDs: []string{p.MessageID, "987654321"}})
				equalSlices(t, "by id", named(one), []string{p.Resource + " " + p.MessageID})
				kit.Equal(t, "by id, behind another", one[0].Behind, p.Behind)
			}
		}
		kit.Equal(t, "of another resource", len(list(operate.ParkedFilter{Resource: "2", IDs: []string{all[0].MessageID}, Key: "none"})), 0)
		if _, err := op.Parked(t.Context(), operate.ParkedFilter{Consumer: "c", After: "nowhere"}); err == nil {
			t.Error("a place that is none is no error")
		}
	})},
	{"Operator/Pages_of_parked_messages_go_on_where_one_was_handled", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, refs := aside(t, be)
		op, got := a.Operator(), map[string]int{}
		filter, seq := operate.ParkedFilter{Consumer: "c", Limit: 2}, int64(100)
		for range 3 * asideMessages {
			page := kit.Must[[]operate.ParkedInfo](t)(op.Parked(t.Context(), filter))
			if len(page) == 0 {
				allOnce(t, "messages of all pages", got, asideMessages)
				return
			}
			for _, p := range page {
				got[p.MessageID]++
			}
			last := page[len(page)-1]
			filter.After = last.Place
			seq++
			a.Commits(backend.Progress{Ref: refs[last.Resource], Seq: seq, Done: []string{last.MessageID}})
		}
		t.Fatal("the pages do not end")
	})},
	{"Operator/RetryParked_makes_messages_due", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		a, refs := aside(t, be)
		op := a.Operator()
		feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{a.Info}))
		defer feed.Close()
		retry := func(f operate.ParkedFilter) int {
			f.Consumer = "c"
			return kit.Must[int](t)(op.RetryParked(t.Context(), f))
		}
		kit.Equal(t, "due before", len(a.Due().Messages), 0)
		one := kit.Must[[]operate.ParkedInfo](t)(op.Parked(t.Context(), operate.ParkedFilter{Consumer: "c", Resource: "2"}))
		kit.Equal(t, "of none", retry(operate.ParkedFilter{IDs: []string{"987654321"}})+retry(operate.ParkedFilter{Key: "none"}), 0)
		kit.Equal(t, "tried again", retry(operate.ParkedFilter{Resource: "2", IDs: []string{one[0].MessageID}}), 1)
		kit.Eventually(t, "the feed tells", func() bool { return kit.Must[backend.News](t)(feed.Next(t.Context())).Parked })
		due := a.Due().Messages
		equalSlices(t, "due", parkedIDs(due), []string{one[0].MessageID}) // the one behind it waits by itself
		kit.Equal(t, "attempts", due[0].Attempt, 2)
		kit.Equal(t, "its error", due[0].Error, "no")
		if !one[1].Behind || one[1].Due.Before(one[0].Due) {
			t.Fatalf("%+v is not behind %+v", one[1], one[0])
		}
		kit.Equal(t, "repeated", retry(operate.ParkedFilter{Resource: "2", IDs: []string{one[0].MessageID}}), 1)
		listed := kit.Must[[]operate.ParkedInfo](t)(op.Parked(t.Context(), operate.ParkedFilter{Consumer: "c", Resource: "2", IDs: []string{one[0].MessageID}}))[0]
		if listed.Due.After(one[0].Due.Add(-50*time.Minute)) || !listed.FirstFailed.Equal(one[0].FirstFailed) || listed.Attempts != 2 {
			t.Errorf("it was %+v, and is %+v", one[0], listed)
		}

		// Progress that its owner stores, which was handling it, goes on top.
		a.Commits(backend.Progress{Ref: refs["2"], Seq: 101, Park: []backend.Park{{ID: one[0].MessageID, Lane: one[0].Key, Attempt: 3, After: time.Hour, Error: "still"}}})
		kit.Equal(t, "due when it failed again", len(a.Due().Messages), 0)
		kit.Equal(t, "by key", retry(operate.ParkedFilter{Resource: "2", Key: one[0].Key, Limit: 1}), 1)
		kit.Equal(t, "attempts", a.Due().Messages[0].Attempt, 3)
		a.Commits(backend.Progress{Ref: refs["2"], Seq: 102, Done: []string{one[0].MessageID}})
		kit.Equal(t, "when it was handled", retry(operate.ParkedFilter{IDs: []string{one[0].MessageID}}), 0)

		// Those of resources without an owner are due for the next one.
		a.Releases(refs["1"])
		kit.Equal(t, "all", retry(operate.ParkedFilter{}), asideMessages-1)
		kit.Equal(t, "due of the one that is owned", len(a.Due().Messages), len(one)-1)
		a.Takes()
		kit.Equal(t, "due of both", len(a.Due().Messages), asideMessages-1)
		kit.Equal(t, "of a consumer that is not there", kit.Must[int](t)(op.RetryParked(t.Context(), operate.ParkedFilter{Consumer: "nobody"})), 0)
	})},
	{"Operator/RetryParked_loses_nothing_that_an_owner_stores_beside_it", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		kinds := map[string]backend.ConsumerInfo{"x": perTopic(), backend.Whole: perGroup("*")}
		if be.Capabilities().Streams != nil {
			kinds["k"] = backend.ConsumerInfo{Name: "s", Per: backend.PerStream, Topics: []string{"*"}}
		}
		publish(t, be, events("x", 3, "k")...)
		for resource, info := range kinds {
			a, g := owner(t, be, info, resource)
			ms := a.Reads(resource, g.Cursor, 9)
			park := func(attempt int) []backend.Park {
				return each(ms.Messages, func(m backend.Raw) backend.Park {
					return backend.Park{ID: m.ID, Lane: m.Key, Attempt: attempt, After: time.Hour, Error: "no"}
				})
			}
			a.Commits(backend.Progress{Ref: g.Ref, Seq: 1, Cursor: ms.Next, Park: park(1)})
			op := kit.Operator(t, f.Again(t, be))
			filter := operate.ParkedFilter{Consumer: info.Name}
			var retried atomic.Int64
			stop := repeat(t, func() {
				time.Sleep(time.Millisecond)
				retried.Add(1)
				if n, err := op.RetryParked(context.Background(), filter); n != 3 || err != nil {
					t.Errorf("%d messages of %s tried again: %v", n, info.Name, err)
				}
			})
			const last = 10
			for n := 2; n <= last; n++ {
				a.Commits(backend.Progress{Ref: g.Ref, Seq: int64(n), Park: park(n)})
				before := retried.Load()
				kit.Eventually(t, "they are tried again", func() bool { return retried.Load() > before+1 })
				for _, p := range kit.Must[[]operate.ParkedInfo](t)(op.Parked(t.Context(), filter)) {
					kit.Equal(t, "attempts of "+info.Name, p.Attempts, n)
				}
			}
			stop()
			for _, p := range kit.Must[[]operate.ParkedInfo](t)(op.Parked(t.Context(), filter)) {
				kit.Equal(t, "attempts of "+info.Name, p.Attempts, last)
			}
			a.Commits(backend.Progress{Ref: g.Ref, Seq: last + 1, Park: park(last + 1)})
			kit.Equal(t, "tried again", kit.Must[int](t)(op.RetryParked(t.Context(), filter)), 3)
			due := a.Due().Messages
			if len(due) == 0 || due[0].Attempt != last+1 || due[0].Lane != "k" {
				t.Fatalf("due of %s are %+v", info.Name, due)
			}
			a.Commits(backend.Progress{Ref: g.Ref, Seq: last + 2, Done: ids(ms.Messages)})
			kit.Equal(t, "left", len(kit.Must[[]operate.ParkedInfo](t)(op.Parked(t.Context(), filter))), 0)
		}
	})},
	{"Operator/Members_describes_live_sessions", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		op := kit.Operator(t, be)
		a := join(t, be, perTopic(), long).Registers("1", "2", "3")
		time.Sleep(time.Millisecond) // one is the first
		b := join(t, f.Again(t, be), perTopic(), time.Minute)
		a.Acquires(2)
		ms := kit.Must[[]operate.MemberStatus](t)(op.Members(t.Context(), "c"))
		kit.Equal(t, "members", len(ms), 2)
		kit.Equal(t, "first to join", ms[0].Session, a.ID)
		kit.Equal(t, "second to join", ms[1].Session, b.ID)
		m := ms[0]
		kit.Equal(t, "host", m.Host, "host")
		kit.Equal(t, "pid", m.PID, 7)
		kit.Equal(t, "owned", m.Owned, 2)
		kit.Equal(t, "fair share", m.FairShare, 2)
		if m.Since < 0 || m.Since > time.Minute || m.SinceBeat > m.Since+time.Second || m.TTLRemaining <= long-time.Minute || m.TTLRemaining > long {
			t.Fatalf("durations are off: %+v", m)
		}
		kit.OK(t, b.Session.Close(t.Context()))
		kit.Equal(t, "members", len(kit.Must[[]operate.MemberStatus](t)(op.Members(t.Context(), "c"))), 1)
		kit.Equal(t, "members of an unknown consumer", len(kit.Must[[]operate.MemberStatus](t)(op.Members(t.Context(), "nobody"))), 0)
	})},
	{"Operator/Leases_lists_the_furthest_behind_first", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		op := kit.Operator(t, be)
		publish(t, be, append(events("2", 3), events("3", 1)...)...)
		a := join(t, be, perTopic(), long).Registers("1", "2", "3")
		req := a.Request(9)
		req.Exclude = []string{"3"}
		gs := kit.Must[[]backend.Grant](t)(be.Acquire(t.Context(), req))
		ls := kit.Must[[]operate.LeaseStatus](t)(op.Leases(t.Context(), "c", 9))
		kit.Equal(t, "leases", len(ls), 3)
		for i, want := range []string{"2", "3", "1"} {
			kit.Equal(t, "resource", ls[i].Resource, want)
			kit.Equal(t, "lag", ls[i].Lag, []int64{3, 1, 0}[i])
		}
		kit.Equal(t, "unowned", ls[1].Session, "")
		kit.Equal(t, "owner", ls[0].Session, a.ID)
		kit.Equal(t, "epoch", ls[0].Epoch, grantOf(a, gs, "2").Epoch)
		kit.Equal(t, "limited", len(kit.Must[[]operate.LeaseStatus](t)(op.Leases(t.Context(), "c", 1))), 1)
	})},
	{"Operator/Names_what_cannot_be", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		op := kit.Operator(t, be)
		join(t, be, perTopic(), long).Registers("x")
		ctx, id := t.Context(), "no-id \xff"
		for what, call := range map[string]func() (int, error){
			"the id of a dead letter": func() (int, error) {
				list, err := op.DeadLetters(ctx, operate.DeadLetterFilter{Consumer: "c", IDs: []string{id}})
				return len(list), err
			},
			"ids to replay": func() (int, error) { return op.Replay(ctx, operate.DeadLetterFilter{Consumer: "c", IDs: []string{id}}) },
			"ids to purge":  func() (int, error) { return op.Purge(ctx, operate.DeadLetterFilter{Consumer: "c", IDs: []string{id}}) },
			"the id of a message": func() (int, error) {
				return op.RetryParked(ctx, operate.ParkedFilter{Consumer: "c", IDs: []string{id}})
			},
		} {
			n, err := call()
			if _, invalid := errors.AsType[*operate.InvalidError](err); n > 0 || err != nil && !invalid {
				t.Errorf("%s: %d, %v", what, n, err)
			}
		}
		for what, call := range map[string]func() error{
			"after a dead letter": func() error {
				_, err := op.DeadLetters(ctx, operate.DeadLetterFilter{Consumer: "c", After: id})
				return err
			},
			"through a dead letter": func() error {
				_, err := op.DeadLetterGroups(ctx, operate.DeadLetterFilter{Consumer: "c", Through: id})
				return err
			},
			"after a parked message": func() error {
				_, err := op.Parked(ctx, operate.ParkedFilter{Consumer: "c", After: id})
				return err
			},
			"after a place that none has": func() error {
				_, err := op.Parked(ctx, operate.ParkedFilter{Consumer: "c", After: backend.EncodePlace("a", "b", "c", "d", "e", "f", "g")})
				return err
			},
			"a cursor behind no message": func() error {
				_, err := op.SetCursor(ctx, "c", "x", operate.CursorTarget{After: id})
				return err
			},
			"a cursor behind what is to come": func() error {
				_, err := op.SetCursor(ctx, "c", "x", operate.CursorTarget{After: "99999999999"})
				return err
			},
			"a cursor to nowhere": func() error {
				_, err := op.SetCursor(ctx, "c", "x", operate.CursorTarget{})
				return err
			},
		} {
			err := call()
			if _, invalid := errors.AsType[*operate.InvalidError](err); !invalid {
				t.Errorf("%s: %v", what, err)
			}
		}
		for what, call := range map[string]func() (int, error){
			"cursors": func() (int, error) {
				list, err := op.Cursors(ctx, "c", id, 9)
				return len(list), err
			},
			"a cursor": func() (int, error) { return op.SetCursor(ctx, "c", id, operate.CursorTarget{Now: true}) },
			"letters": func() (int, error) {
				list, err := op.DeadLetters(ctx, operate.DeadLetterFilter{Consumer: "c", Topic: id, Key: id, Kind: id, Reason: id + `\`, Text: id})
				return len(list), err
			},
			"parked": func() (int, error) {
				list, err := op.Parked(ctx, operate.ParkedFilter{Consumer: "c", Resource: id, Key: id})
				return len(list), err
			},
		} {
			if n, err := call(); n > 0 || err != nil {
				t.Errorf("%s of what is no text: %d, %v", what, n, err)
			}
		}
	})},
	{"Operator/Forgets_a_consumer_that_is_no_more", fresh(func(t testing.TB, f Factory, be backend.Backend) {
		can, ok := kit.Operator(t, be).(interface {
			Forget(ctx context.Context, consumer string) error
		})
		needs(t, ok, "the backend forgets no consumers")
		a, g, _ := buried(t, be, 2)
		if err := can.Forget(t.Context(), "c"); err == nil {
			t.Fatal("it is forgotten while it runs")
		}
		a.Releases(g.Ref)
		kit.OK(t, a.Session.Close(t.Context()))
		if err := can.Forget(t.Context(), "c"); err == nil {
			t.Fatal("it is forgotten with its dead letters")
		}
		kit.Equal(t, "purged", kit.Must[int](t)(a.Operator().Purge(t.Context(), operate.DeadLetterFilter{Consumer: "c"})), 2)
		kit.OK(t, can.Forget(t.Context(), "c"))
		kit.Equal(t, "consumers", len(kit.Must[[]operate.ConsumerStatus](t)(a.Operator().Status(t.Context()))), 0)
		b := join(t, f.Again(t, be), perTopic(), long).Registers("x")
		if again := b.Takes(); len(b.Reads("x", again.Cursor, 9).Messages) == 0 {
			t.Error("a consumer of its name does not begin again")
		}
	})},
	{"Check/Accepts_a_backend_that_is_ready", func(t testing.TB, f Factory) {
		kit.OK(t, f.New(t).Check(t.Context(), nil))
	}},
}
