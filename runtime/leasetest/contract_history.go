package leasetest

import (
	"errors"
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
)

// historyChecks are what the contract says of sessions and positions of a history that is gone.
var historyChecks = []check{
	{"History/A_session_and_a_position_of_before_change_nothing", func(t testing.TB, f Factory) {
		if f.SetBack == nil {
			t.Skip("this backend is not set back here")
		}
		be := f.New(t)
		publish(t, be, events("x", 5)...)
		h := join(t, be, perTopic(), long).register("x")
		g := h.acquireOne()
		read := h.fetch("x", g.Cursor, 3)
		h.commit(backend.Progress{Ref: g.Ref, Seq: 1, Cursor: read.Next})
		restore := f.SetBack(t, be)
		publish(t, be, events("x", 50)...)
		ahead := h.fetch("x", read.Next, 100)
		equal(t, "read", len(ahead.Messages), 52)
		restore()
		publish(t, be, events("x", 4)...)

		// Each of these may fail for as long as the connections of before are replaced.
		definite := func(what string, try func() error) {
			t.Helper()
			eventually(t, what+" is refused", func() bool {
				err := try()
				if err == nil {
					t.Fatalf("%s succeeded", what)
				}
				return errors.Is(err, backend.ErrSessionLost) || errors.Is(err, backend.ErrFenced)
			})
		}
		definite("a commit", func() error {
			fenced, err := be.Commit(t.Context(), h.id, h.info.Name, []backend.Progress{{Ref: g.Ref, Seq: 2, Cursor: ahead.Next}})
			if err == nil && len(fenced) == 1 {
				return backend.ErrFenced
			}
			return err
		})
		definite("a fetch", func() error {
			_, err := be.Fetch(t.Context(), backend.FetchRequest{
				Consumer: h.info, MaxPayload: roomy, Items: []backend.FetchItem{{Resource: "x", From: ahead.Next, Limit: 9}},
			})
			return err
		})
		definite("a heartbeat", func() error { return h.sess.Heartbeat(t.Context()) })

		// The next incarnation goes on where the storage says, and finds all of it.
		next := &holder{t: t, be: be, id: newID(), info: h.info}
		sess, err := be.OpenSession(t.Context(), backend.SessionSpec{ID: next.id, TTL: long, Consumers: []string{h.info.Name}, Host: "host", PID: 7, Replaces: h.id})
		ok(t, err)
		next.sess = sess
		again := next.takeOver()
		if again.Epoch <= g.Epoch {
			t.Fatalf("epoch %d after %d", again.Epoch, g.Epoch)
		}
		rest := next.fetch("x", again.Cursor, 100)
		equal(t, "messages left", len(rest.Messages), 6) // two of before, four of after
		ok(t, sess.Close(t.Context()))
	}},
}
