package leaseredis_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// The ids of a tag may be far ahead of its clock: a master with a fast one was replaced by another. Code that reads
// several tags goes on at once, in order, and ids of the other tags follow.
func TestIdsThatAreAheadOfTheClocks(t *testing.T) {
	for _, ahead := range []time.Duration{50 * time.Second, 10 * time.Minute, 5 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			name := redistest.Namespace(t)
			c := redistest.Shared(t).Client(t)
			be := on(c, name, leaseredis.WithTags(2), leaseredis.WithLogger(discard))
			kit.OK(t, be.Register(t.Context(), grouped, nil))
			kit.OK(t, c.HSet(t.Context(), "{"+name+"1}:meta", "last", fmt.Sprint(time.Now().Add(ahead).UnixMicro())).Err())
			var want []backend.Event
			publish := func(from *leaseredis.Backend, tag int) {
				topic := "a"
				for i := 0; tagOf(topic, 2) != tag; i++ {
					topic = fmt.Sprint("a", i)
				}
				e := backend.Event{Topic: topic, Key: "k", Kind: "kind", Payload: fmt.Appendf(nil, `{"n":%d}`, len(want))}
				want = append(want, e)
				kit.OK(t, from.Publish(t.Context(), []backend.Event{e}))
			}
			publish(be, 1)
			publish(be, 0) // the same publisher: it comes after the first
			var at backend.Cursor = nil
			got := 0
			kit.Eventually(t, "both are read", func() bool {
				f := kit.Fetch(t, be, grouped, backend.Whole, at, 10)
				for _, m := range f.Messages {
					kit.Equal(t, "message", string(m.Payload), string(want[got].Payload))
					got++
				}
				at = f.Next
				return got == 2
			})
			// Another process that has seen neither.
			publish(on(c, name, leaseredis.WithLogger(discard)), 0)
			kit.Eventually(t, "the third is read", func() bool {
				f := kit.Fetch(t, be, grouped, backend.Whole, at, 10)
				at = f.Next
				return len(f.Messages) == 1 && string(f.Messages[0].Payload) == string(want[2].Payload)
			})
		})
	}
}
