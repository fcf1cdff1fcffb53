package leasetest

import (
	"errors"
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// historyChecks are what the contract says of sessions and positions of a history that is gone.
var historyChecks = []check{
	{"History/A_session_and_a_position_of_before_change_nothing", func(t testing.TB, f Factory) {
		needs(t, f.SetBack != nil, "this backend is not set back here")
		be := f.New(t)
		h, g, read := reading(t, be, 5)
		h.Commits(backend.Progress{Ref: g.Ref, Seq: 1, Cursor: read.Cut(3)})
		restore := f.SetBack(t, be)
		publish(t, be, events("x", 50)...)
		ahead := h.Reads("x", read.Cut(3), 100)
		kit.Equal(t, "read", len(ahead.Messages), 52)
		restore()
		publish(t, be, events("x", 4)...)

		// Each of these may fail for as long as the connections of before are replaced.
		definite := func(what string, try func() error) {
			t.Helper()
			kit.Eventually(t, what+" is refused", func() bool {
				err := try()
				if err == nil {
					t.Fatalf("%s succeeded", what)
				}
				return errors.Is(err, backend.ErrSessionLost) || errors.Is(err, backend.ErrFenced)
			})
		}
		definite("a commit", func() error {
			fenced, err := be.Commit(t.Context(), h.ID, h.Info.Name, []backend.Progress{{Ref: g.Ref, Seq: 2, Cursor: ahead.Next}})
			if err == nil && len(fenced) == 1 {
				return backend.ErrFenced
			}
			return err
		})
		definite("a fetch", func() error {
			_, err := be.Fetch(t.Context(), backend.FetchRequest{
				Consumer: h.Info, MaxPayload: kit.Roomy, Items: []backend.FetchItem{{Resource: "x", From: ahead.Next, Limit: 9}},
			})
			return err
		})
		definite("a heartbeat", func() error { return h.Session.Heartbeat(t.Context()) })

		// The next incarnation goes on where the storage says, and finds all of it.
		next := kit.Open(t, be, backend.SessionSpec{TTL: long, Replaces: h.ID}, h.Info)
		again := next.TakesOver()
		rises(t, again, g)
		rest := next.Reads("x", again.Cursor, 100)
		kit.Equal(t, "messages left", len(rest.Messages), 6) // two of before, four of after
		kit.OK(t, next.Session.Close(t.Context()))
	}},
}
