package leaseredis

import (
	"fmt"
	"slices"
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

// buries makes n dead letters on each topic, and returns their message ids.
func (a *actor) buries(n int, topics ...string) (ids []string) {
	a.T.Helper()
	a.publishes(n, topics...)
	for _, g := range a.takes(len(topics), topics...) {
		got := a.reads(g, n)
		p := a.next(g, backend.Progress{Cursor: got.Next})
		for _, m := range got.Messages {
			p.Dead = append(p.Dead, backend.Dead{ID: m.ID, Attempt: 1, Reason: "r"})
			ids = append(ids, m.ID)
		}
		a.Commits(p)
	}
	return ids
}

// More poison than any bound.
func TestDeadLettersKeptAndDroppedAddUp(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		topics := []string{"a", "b", "c", "d", "e", "f", "g"}
		const each = 1430 // 10,010 in all
		a.buries(each, topics...)
		total := each * len(topics)
		kit.Equal(t, "buried", len(a.Dead()), total)
		first := a.Dead()[total-10_000]
		r, err := a.Maintain(t.Context(), []backend.ConsumerInfo{a.Info})
		kit.OK(t, err)
		kept := a.Dead()
		kit.Equal(t, "kept", len(kept), 10_000)
		kit.Equal(t, "kept and dropped", len(kept)+r.DeadLettersDropped, total)
		kit.Equal(t, "the oldest that is kept", kept[0].ID, first.ID)
		// Without a bound none goes.
		free := New(a.client, WithNamespace(a.namespace), WithMaxDeadLetters(0))
		r, err = free.Maintain(t.Context(), []backend.ConsumerInfo{a.Info})
		kit.OK(t, err)
		kit.Equal(t, "dropped without a bound", r.DeadLettersDropped, 0)
		n, err := a.Purge(t.Context(), operate.DeadLetterFilter{Consumer: "c"})
		kit.OK(t, err)
		kit.Equal(t, "purged", n, 10_000)
		for _, topic := range topics {
			for _, name := range []string{"dead:c", "dl:c", "dx:c:" + topic} {
				kit.Equal(t, name+" is left", a.client.Exists(t.Context(), a.key(topic, name)).Val(), 0)
			}
		}
	})
}

func TestDeadLettersAreListedAndMovedOverAllTags(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		topics := []string{"a", "b", "c", "d", "e"}
		ids := a.buries(450, topics...) // more than a page under each tag
		all := a.Dead()
		kit.Equal(t, "listed", len(all), len(ids))
		if !slices.IsSortedFunc(all, func(a, b operate.DeadLetterInfo) int { return a.DeadAt.Compare(b.DeadAt) }) {
			t.Fatal("the oldest do not come first")
		}
		kit.Equal(t, "size without payload", all[0].Size, len(`{"n":0}`))
		some, err := a.DeadLetters(t.Context(), operate.DeadLetterFilter{Limit: 7})
		kit.OK(t, err)
		for i, d := range some {
			kit.Equal(t, "of the oldest", d.ID, all[i].ID)
		}
		kit.Equal(t, "of the oldest", len(some), 7)
		one, err := a.DeadLetters(t.Context(), operate.DeadLetterFilter{IDs: []string{all[99].ID, "nonsense"}})
		kit.OK(t, err)
		kit.Equal(t, "found by id", fmt.Sprint(len(one), one[0].ID, one[0].Payload == nil), fmt.Sprint(1, all[99].ID, true))
		// A reply that is lost moves and counts no letter twice.
		a.Replay(t.Context(), operate.DeadLetterFilter{IDs: []string{all[0].ID}})
		a.Purge(t.Context(), operate.DeadLetterFilter{IDs: []string{all[1].ID}})
		faults := a.breaks()
		faults.err = &netError{}
		faults.loseReply(scripts.replay)
		n, err := a.Replay(t.Context(), operate.DeadLetterFilter{Topic: "c"})
		kit.OK(t, err)
		left := 450
		for _, d := range all[:2] {
			if d.Topic == "c" {
				left--
			}
		}
		kit.Equal(t, "replayed", n, left)
		faults.loseReply(scripts.purge)
		n, err = a.Purge(t.Context(), operate.DeadLetterFilter{Topic: "d"})
		kit.OK(t, err)
		left = 450
		for _, d := range all[:2] {
			if d.Topic == "d" {
				left--
			}
		}
		kit.Equal(t, "purged", n, left)
		kit.Equal(t, "replies lost", faults.lost, 2)
		parked := map[string]int{}
		p, err := a.FetchParked(t.Context(), backend.ParkedRequest{Session: a.ID, Consumer: a.Info, Limit: 5000, MaxPayload: 1 << 20})
		kit.OK(t, err)
		for _, m := range p.Messages {
			parked[m.ID]++
			kit.Equal(t, "attempt", m.Attempt, 0)
			kit.Equal(t, "lane", m.Lane, m.Key)
		}
		for _, d := range all {
			if want := flag(d.Topic == "c" || d.ID == all[0].ID); parked[d.MessageID] != want && d.ID != all[1].ID {
				t.Fatalf("message %s of %s is parked %d times", d.MessageID, d.Topic, parked[d.MessageID])
			}
		}
	})
}

// netError is what a broken connection gives.
type netError struct{}

func (*netError) Error() string   { return "connection reset by peer" }
func (*netError) Timeout() bool   { return false }
func (*netError) Temporary() bool { return false }
