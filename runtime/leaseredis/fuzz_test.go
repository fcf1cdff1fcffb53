package leaseredis

import (
	"maps"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/leasegen/leasegen/runtime/backend"
)

// For any text in the place of an id, of a cursor or of a stored message, reading
// it ends; and what was written is read back as it was.

func FuzzMessageID(f *testing.F) {
	f.Add("1795248728123456-3", "stream", uint64(1795248728123456), uint64(0), uint8(3))
	f.Add("5-1/a/b", "a/b", uint64(5), uint64(1), uint8(0))
	f.Add("-", "", uint64(0), uint64(1), uint8(255))
	f.Add("1-2-3", "{lg0}:t:x", uint64(1<<53), uint64(1<<63), uint8(7))
	f.Fuzz(func(t *testing.T, id, name string, ms, seq uint64, tag uint8) {
		at := position{ms, seq}
		if got := parsePosition(at.String()); got != at {
			t.Errorf("position %v is read back as %v", at, got)
		}
		if got := parsePosition(at.id()); got != at {
			t.Errorf("position %v is read back as %v", at, got)
		}
		if at == (position{}) {
			return // no entry has it
		}
		log := make([]input, int(tag)+1)
		for i := range log {
			log[i].tag = i
		}
		others := []input{{tag: -1, name: name + "x"}, {tag: -1, name: name}}
		for want, ins := range map[int][]input{int(tag): log, 1: others} {
			id := messageID(ins[want], at)
			if n, got, ok := findMessage(ins, id); !ok || n != want || got != at {
				t.Errorf("message %q of input %d is found in %d at %v, %v", id, want, n, got, ok)
			}
		}
		for _, ins := range [][]input{log, others} {
			if n, _, ok := findMessage(ins, id); ok && (n < 0 || n >= len(ins)) {
				t.Errorf("message %q is found in input %d of %d", id, n, len(ins))
			}
		}
	})
}

func FuzzCursor(f *testing.F) {
	f.Add("", "a", "b", uint64(1), uint64(0), uint64(2))
	f.Add("1,2-1,3", "{", "}", uint64(1), uint64(7), uint64(0))
	f.Add(`{"a":"1-0","c":"5-5"}`, `"`, "a", uint64(0), uint64(0), uint64(3))
	f.Add(`{"a":1}`, "a", "", uint64(1<<63), uint64(1), uint64(1))
	f.Fuzz(func(t *testing.T, stored, a, b string, ms1, seq1, ms2 uint64) {
		at := []position{{ms1, seq1}, {ms: ms2}}
		forms := [][]input{{{tag: 0}, {tag: 1}}}
		if a != b && utf8.ValidString(a) && utf8.ValidString(b) {
			forms = append(forms, []input{{tag: -1, name: a, shared: true}, {tag: -1, name: b, shared: true}})
		}
		for _, ins := range forms {
			for _, p := range cursor(stored).positions(ins) {
				_ = p.after()
			}
			moved := cursor(stored).moved(ins, at)
			got := moved.positions(ins)
			if got[0] != at[0] || got[1] != at[1] {
				t.Errorf("%v with %q is stored as %q and read back as %v", at, stored, moved, got)
			}
		}
	})
}

func FuzzStoredMessage(f *testing.F) {
	f.Add("x", "1-0", "topic", "key", "kind", "payload", "h", "v", int64(1795248728123456))
	f.Add("\x01a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "", "", "", "", "", "", "", int64(-1))
	f.Fuzz(func(t *testing.T, stored, id, topic, key, kind, payload, header, value string, us int64) {
		if _, err := unpackMessage(stored); err != nil {
			_ = err.Error()
		}
		want := backend.Raw{ID: id, Topic: topic, Key: key, Kind: kind, Payload: []byte(payload)}
		if utf8.ValidString(header) && utf8.ValidString(value) {
			want.Headers = map[string]string{header: value}
		}
		if us > 0 && us < 1<<53 {
			want.PublishedAt = time.UnixMicro(us)
		}
		packed := packMessage(want)
		got, err := unpackMessage(packed)
		if err != nil || got.ID != id || got.Topic != topic || got.Key != key || got.Kind != kind || string(got.Payload) != payload ||
			got.Size != len(payload) || !maps.Equal(got.Headers, want.Headers) || !got.PublishedAt.Equal(want.PublishedAt) {
			t.Errorf("%+v is read back as %+v, %v", want, got, err)
		}
		for n := range min(len(packed)-len(payload), 64) {
			if _, err := unpackMessage(packed[:n]); err == nil {
				t.Errorf("%q, cut after %d bytes, is read", packed, n)
			}
		}
	})
}
