package leasetest

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
)

// badPayloads are the run-time bad inputs: what cannot be decoded becomes a dead
// letter with a reason, what can be decoded is handled.
var badPayloads = []struct {
	name    string
	payload []byte
	headers map[string]string
	decodes bool
}{
	{"empty", nil, nil, false},
	{"null", []byte(`null`), nil, false},
	{"wrong JSON type", []byte(`{"n":"SECRET"}`), nil, false},
	{"an array", []byte(`["SECRET"]`), nil, false},
	{"duplicate keys", []byte(`{"n":1,"n":2}`), nil, true},
	{"unknown fields", []byte(`{"n":2,"other":[1,2,3]}`), nil, true},
	{"invalid UTF-8", []byte("{\"n\":3,\"key\":\"\xff\xfe\"}"), nil, false},
	{"number overflow", []byte(`{"n":99999999999999999999}`), nil, false},
	{"a fraction", []byte(`{"n":12.5}`), nil, false},
	{"depth 20,000", []byte(`{"n":4,"key":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`), nil, false},
	{"truncated", []byte(`{"n":4,"key":"SECRET`), nil, false},
	{"trailing data", []byte(`{"n":5} SECRET`), nil, false},
	{"4 MiB", append(append([]byte(`{"n":6,"key":"`), bytes.Repeat([]byte("a"), 4<<20)...), `"}`...), nil, false},
	{"NUL bytes", []byte{0, 0, 0}, nil, false},
	{"forged attempt and id", []byte(`{"n":7}`), map[string]string{"attempt": "-1", "Attempt": "1000000000", "id": "1", "epoch": "9"}, true},
}

var payloadScenarios = []check{
	{"Bad_payloads_become_dead_letters_and_their_neighbours_are_handled", inWorld(func(t testing.TB, w *world) {
		good := 0
		for i, b := range badPayloads {
			w.publish(event("x", "k", 100+i), backend.Event{Topic: "x", Key: "k", Kind: "order", Payload: b.payload, Headers: b.headers})
			good++
			if b.decodes {
				good++
			}
		}
		w.start(spec(), fine)
		w.finished(good)
		d := w.dead()
		kit.Equal(t, "handled", len(w.successes()), good)
		kit.Equal(t, "handled and dead letters", good+len(d), 2*len(badPayloads))
		firstAttempts(t, w.successes())
		i := 0
		for _, b := range badPayloads {
			if b.decodes {
				continue
			}
			if d[i].Size != len(b.payload) || d[i].Reason == "" || strings.Contains(d[i].Reason, "SECRET") {
				t.Fatalf("%s: dead letter of %d bytes with reason %q", b.name, d[i].Size, d[i].Reason)
			}
			i++
		}
	})},
	{"Bad_payloads_in_a_batch_leave_the_rest_of_it", inWorld(func(t testing.TB, w *world) {
		es := events("x", 12)
		es[3].Payload, es[8].Payload = []byte(`{"n":"x"}`), []byte(`{`)
		w.publish(es...)
		seen := make(chan int, 1000)
		w.startWith(spec(), func(*process) []lease.Handler {
			return []lease.Handler{lease.Batch("order", func(_ context.Context, ms []lease.Message[payload]) error {
				for _, m := range ms {
					seen <- m.Payload.N
				}
				return nil
			})}
		})
		w.drained()
		var got []int
		for range 10 {
			got = append(got, <-seen)
		}
		equalSlices(t, "handled", got, []int{1, 2, 3, 5, 6, 7, 8, 10, 11, 12})
		kit.Equal(t, "handled more", len(seen), 0)
		kit.Equal(t, "dead letters", len(w.dead()), 2)
	})},
	{"Oversize_payloads_become_dead_letters_unread", inWorld(func(t testing.TB, w *world) {
		w.publish(event("x", "k", 1), backend.Event{Topic: "x", Key: "k", Kind: "order", Payload: bytes.Repeat([]byte("a"), 101)}, event("x", "k", 3))
		w.start(spec(), fine, lease.WithMaxPayload(100))
		w.finished(2)
		d := w.deadLetters(1)
		says(t, d[0], "101", "100") // size and limit
	})},
	{"Unknown_kinds_become_dead_letters_or_are_skipped", func(t testing.TB, f Factory) {
		for _, unknown := range []lease.Unknown{lease.UnknownDeadLetter, lease.UnknownSkip} {
			w := newWorld(t, f)
			es := events("x", 3)
			es[1].Kind = "mystery"
			w.publish(es...)
			s := spec()
			s.Unknown, s.UnknownWait = unknown, -1
			w.start(s, fine)
			w.finished(2)
			d := w.dead()
			if unknown == lease.UnknownSkip {
				kit.Equal(t, "dead letters", len(d), 0)
				continue
			}
			kit.Equal(t, "dead letters", len(d), 1)
			says(t, d[0], "mystery")
		}
	}},
}
