package leaseredis

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

func TestACommitWhoseReplyWasLostIsStoredOnce(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		a.publishes(5, "x")
		g := a.takesOne("x")
		got := a.reads(g, 9)
		id := a.ids(got.Messages)
		first := a.next(g, backend.Progress{Cursor: got.Next, Mark: "m",
			Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 1, Error: "e"}, {ID: id[1], Lane: "k"}},
			Dead: []backend.Dead{{ID: id[2], Attempt: 1, Reason: "r"}}})
		second := a.next(g, backend.Progress{Done: id[:1], Dead: []backend.Dead{{ID: id[1], Attempt: 3, Reason: "r"}}})
		faults := a.breaks()
		for _, p := range []backend.Progress{first, second} {
			faults.loseReply(scripts.commit)
			again(t, faults, func() error {
				_, err := a.Commit(t.Context(), a.ID, "c", []backend.Progress{p})
				return err
			})
		}
		kit.Equal(t, "dead letters", len(a.Dead()), 2)
		kit.Equal(t, "parked", len(a.Due().Messages), 0)
		left := []string{a.key("x", "pk:c:x"), a.key("x", "due:c:x"), a.key("x", "pr:c"), a.key("x", "lane:c:1:x:k")}
		n, err := a.client.Exists(t.Context(), left...).Result()
		kit.OK(t, err)
		kit.Equal(t, "keys left of parked messages", n, 0)
	})
}

func TestACommitThatWasOvertakenChangesNothing(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		a.publishes(3, "x")
		g := a.takesOne("x")
		got := a.reads(g, 9)
		late := a.next(g, backend.Progress{Cursor: got.Cut(1), Park: []backend.Park{{ID: got.Messages[0].ID, Lane: "k", Attempt: 1}}})
		a.Commits(a.next(g, backend.Progress{Cursor: got.Cut(2)}))
		a.Commits(late)
		kit.Equal(t, "parked", len(a.Due().Messages), 0)
		kit.OK(t, a.Release(t.Context(), a.ID, "c", []backend.Ref{g.Ref}))
		kit.Equal(t, "left", len(a.reads(a.takesOne("x"), 9).Messages), 1)
	})
}

func TestAMarkCountsOnceForEachOwner(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		g := a.takesOne("x")
		for owner := range 3 {
			kit.Equal(t, "counted before", g.MarkCount, owner)
			a.Commits(a.next(g, backend.Progress{Mark: "m"}))
			a.Commits(a.next(g, backend.Progress{Mark: "m"}))
			kit.OK(t, a.Release(t.Context(), a.ID, "c", []backend.Ref{g.Ref}))
			g = a.takesOne("x")
		}
		a.Commits(a.next(g, backend.Progress{}))
		kit.OK(t, a.Release(t.Context(), a.ID, "c", []backend.Ref{g.Ref}))
		g = a.takesOne("x")
		kit.Equal(t, "after progress", fmt.Sprint(g.Mark, g.MarkCount), "0")
	})
}

// An entry that is gone, and a crash or a foreign hand between the steps of a commit.
func TestAMessageThatSomebodyDeletedBecomesADeadLetterWithoutPayload(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		a.publishes(4, "x")
		g := a.takesOne("x")
		got := a.reads(g, 9)
		id := a.ids(got.Messages)
		topic := a.key("x", "t:x")
		entries, err := a.client.XRange(t.Context(), topic, "-", "+").Result()
		kit.OK(t, err)
		for _, i := range []int{0, 1} {
			kit.OK(t, a.client.XDel(t.Context(), topic, entries[i].ID).Err())
		}
		a.Commits(a.next(g, backend.Progress{Cursor: got.Next,
			Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 1, Error: "carrier: 503"}, {ID: id[2], Lane: "l", Attempt: 1, Error: "e"}},
			Dead: []backend.Dead{{ID: id[1], Attempt: 5, Reason: "gave up"}}}))
		ds := a.Dead()
		kit.Equal(t, "dead letters", len(ds), 2)
		for _, d := range ds {
			cause := map[string]string{id[0]: "carrier: 503", id[1]: "gave up"}[d.MessageID]
			if cause == "" || !strings.Contains(d.Reason, cause) || !strings.Contains(d.Reason, "deleted from the stream") || d.Size != 0 || d.Topic != "x" {
				t.Fatalf("dead letter %+v", d)
			}
		}
		p := a.Due()
		kit.Equal(t, "parked", len(p.Messages), 1)
		kit.Equal(t, "the message parked", p.Messages[0].ID, id[2])
		// A dead letter that never was is an error that names it, and no key is stored.
		for _, p := range []backend.Progress{
			{Park: []backend.Park{{ID: "9999999999999999-0", Lane: "k", Attempt: 1}}},
			{Dead: []backend.Dead{{ID: "nonsense", Attempt: 1}}},
		} {
			p.Cursor = cursor("")
			_, err := a.Commit(t.Context(), a.ID, "c", []backend.Progress{a.next(g, p)})
			if err == nil || !strings.Contains(err.Error(), "there is no message") || !strings.Contains(err.Error(), "x:") {
				t.Fatalf("got error %v", err)
			}
		}
		kit.OK(t, a.Release(t.Context(), a.ID, "c", []backend.Ref{g.Ref}))
		kit.Equal(t, "left", len(a.reads(a.takesOne("x"), 9).Messages), 0)
	})
}

func TestNothingIsLostBetweenReadingAMessageAndStoringIt(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		a.publishes(2, "x")
		g := a.takesOne("x")
		got := a.reads(g, 9)
		p := a.next(g, backend.Progress{Cursor: got.Next, Park: []backend.Park{{ID: got.Messages[0].ID, Lane: "k", Attempt: 1}}})
		faults := a.breaks()
		died := errors.New("the process died")
		faults.onCall(scripts.commit, func() error { return died })
		if _, err := a.Commit(t.Context(), a.ID, "c", []backend.Progress{p}); !errors.Is(err, died) {
			t.Fatalf("got %v", err)
		}
		kit.Equal(t, "parked", len(a.Due().Messages), 0)
		// Now the entries vanish between the two.
		faults.onCall(scripts.commit, func() error { return a.client.Del(t.Context(), a.key("x", "t:x")).Err() })
		a.Commits(p)
		faults.onCall(scripts.commit, nil)
		parked := a.Due()
		kit.Equal(t, "parked", len(parked.Messages), 1)
		kit.Equal(t, "its payload", string(parked.Messages[0].Payload), `{"n":0}`)
	})
}

// The message stays where it was until its dead letter can be stored.
func TestWithoutUsableDeadLetterKeysTheMessageStays(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		a.publishes(2, "x")
		g := a.takesOne("x")
		got := a.reads(g, 9)
		id := a.ids(got.Messages)
		a.Commits(a.next(g, backend.Progress{Cursor: got.Cut(1), Park: []backend.Park{{ID: id[0], Lane: "k", Attempt: 1}}}))
		p := a.next(g, backend.Progress{Cursor: got.Next, Dead: []backend.Dead{{ID: id[0], Attempt: 2, Reason: "r"}, {ID: id[1], Attempt: 1, Reason: "r"}}})
		for _, name := range []string{"dead:c", "dl:c", "dx:c:x"} {
			key := a.key("x", name)
			kit.OK(t, a.client.Set(t.Context(), key, "mine", 0).Err())
			_, err := a.Commit(t.Context(), a.ID, "c", []backend.Progress{p})
			if err == nil || !strings.Contains(err.Error(), key) {
				t.Fatalf("got error %v, want one that names %s", err, key)
			}
			kit.Equal(t, "parked", len(a.Due().Messages), 1)
			kit.OK(t, a.client.Del(t.Context(), key).Err())
		}
		a.Commits(p)
		kit.Equal(t, "dead letters", len(a.Dead()), 2)
		kit.Equal(t, "parked", len(a.Due().Messages), 0)
	})
}

// Progress is stored, and wholly, when the memory is full: what it leads to frees some.
func TestWithoutMemoryProgressIsStored(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	be := New(client, WithNamespace("oom"))
	a := join(t, be, perTopic())
	a.publishes(2, "x")
	g := a.takesOne("x")
	got := a.reads(g, 9)
	p := a.next(g, backend.Progress{Cursor: got.Next, Dead: []backend.Dead{{ID: got.Messages[0].ID, Attempt: 1, Reason: "r"}}})
	kit.OK(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	a.Commits(p)
	kit.Equal(t, "dead letters", len(a.Dead()), 1)
	kit.Equal(t, "stored cursor", client.HExists(t.Context(), a.key("x", "l:c:x"), "c").Val(), true)
}

// However many resources with due messages belong to others, and however many leases the session has besides.
func TestParkedMessagesOfManyOthersDoNotHideMine(t *testing.T) {
	for _, owned := range []int{1, 6000} {
		t.Run(fmt.Sprint(owned), func(t *testing.T) {
			eachSpread(t, func(t *testing.T, a *actor) {
				const others = 6000 // above what one call looks at under a tag
				b := a.another()
				sh, err := a.shape(t.Context())
				kit.OK(t, err)
				pipe := a.client.Pipeline()
				past := float64(time.Now().Add(-time.Minute).UnixMicro())
				for i := range others { // parked, and owned by others
					n := fmt.Sprintf("o%05d", i)
					pipe.ZAdd(t.Context(), a.prefix(sh.tagOf(n))+"pr:c", redis.Z{Score: past, Member: n})
				}
				for i := range owned - 1 {
					n := fmt.Sprintf("h%05d", i)
					pipe.SAdd(t.Context(), a.prefix(sh.tagOf(n))+"held:c:"+b.ID, n)
				}
				_, err = pipe.Exec(t.Context())
				kit.OK(t, err)
				b.publishes(1, "mine")
				g := b.takesOne("mine")
				got := b.reads(g, 1)
				b.Commits(b.next(g, backend.Progress{Cursor: got.Next, Park: []backend.Park{{ID: got.Messages[0].ID, Lane: "k", Attempt: 1}}}))
				for end := time.Now().Add(time.Minute); len(b.Due().Messages) == 0; {
					if time.Now().After(end) {
						t.Fatal("mine was not found")
					}
				}
				b.Commits(b.next(g, backend.Progress{Park: []backend.Park{{ID: got.Messages[0].ID, Lane: "k", Attempt: 2, After: time.Hour}}}))
				p := b.Due()
				if len(p.Messages) != 0 || p.Next < 0 || p.Next > time.Hour {
					t.Fatalf("parked: %+v", p)
				}
			})
		})
	}
}

func BenchmarkCommitCursors(b *testing.B) {
	const leases = 1000
	a := join(b, New(redistest.Shared(b).Client(b), WithNamespace(redistest.Namespace(b))), perTopic())
	names := make([]string, leases)
	for i := range names {
		names[i] = fmt.Sprint("t", i)
	}
	gs := a.takes(leases, names...)
	ps := make([]backend.Progress, len(gs))
	for b.Loop() {
		a.Seq++
		for i, g := range gs {
			ps[i] = backend.Progress{Ref: g.Ref, Seq: a.Seq, Cursor: cursor(fmt.Sprint(1795248728123456 + a.Seq))}
		}
		a.Commits(ps...)
	}
	b.ReportMetric(float64(b.N)*leases/b.Elapsed().Seconds()/1000, "cursors/ms")
}
