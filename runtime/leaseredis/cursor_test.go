package leaseredis

import (
	"fmt"
	"maps"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/leasegen/leasegen/runtime/backend"
)

func anyPosition(t *rapid.T) position {
	return position{rapid.Uint64().Draw(t, "ms"), rapid.OneOf(rapid.Just(uint64(0)), rapid.Uint64()).Draw(t, "seq")}
}

// A cursor says the positions it was made of, for whatever inputs.
func TestCursorsKeepPositions(t *testing.T) {
	b := New(nil)
	rapid.Check(t, func(t *rapid.T) {
		tags := rapid.IntRange(1, 5).Draw(t, "tags")
		sh := &shape{tags: tags, slots: 16}
		info := rapid.SampledFrom([]backend.ConsumerInfo{
			{Name: "a", Per: backend.PerTopic}, {Name: "b", Per: backend.PerGroup}, {Name: "c", Per: backend.PerStream},
			{Name: "d", Per: backend.PerTopic, Source: StreamSource{Names: []string{"x", "y"}}},
			{Name: "e", Per: backend.PerGroup, Source: StreamSource{Names: []string{"x", "y, {\"", "ü"}}},
		}).Draw(t, "consumer")
		ins := b.inputsOf(sh, info, "x")
		at := make([]position, len(ins))
		for i := range at {
			at[i] = anyPosition(t)
		}
		c := cursorAt(ins, at)
		for i, p := range c.positions(ins) {
			if p != at[i] {
				t.Fatalf("%q: position %d is %v, want %v", c, i, p, at[i])
			}
		}
		if c != cursorAt(ins, at) {
			t.Fatal("two cursors of the same positions differ")
		}
		for i, in := range ins {
			n, p, found := findMessage(ins, messageID(in, at[i]))
			if at[i] != (position{}) && (!found || n != i || p != at[i]) {
				t.Fatalf("message %q was found as %d %v %v", messageID(in, at[i]), n, p, found)
			}
		}
	})
}

// The cursor of all tags serves a topic, which is under one: that is where consumers begin.
func TestATopicFindsItsPartOfACursorOfAllTags(t *testing.T) {
	sh := &shape{tags: 3, slots: 16}
	all := ofTags([]position{{1, 0}, {2, 0}, {3, 7}})
	b := New(nil)
	for i := range 20 {
		topic := fmt.Sprint("t", i)
		ins := b.inputsOf(sh, backend.ConsumerInfo{Per: backend.PerTopic}, topic)
		if got := all.positions(ins)[0].ms; got != uint64(sh.tagOf(topic)+1) {
			t.Fatalf("topic %s under tag %d begins at %d", topic, sh.tagOf(topic), got)
		}
	}
	if c := ofTags(make([]position, 3)); c != "" {
		t.Errorf("the beginning is %q", c)
	}
}

func TestCursorsThatAreNone(t *testing.T) {
	ins := []input{{key: "k", tag: 0}}
	for _, c := range []cursor{"", "x", "-", "5-x", "{", `{"a":1}`, ",", "1e9", "99999999999999999999"} {
		if at := c.positions(ins)[0]; at != (position{}) {
			t.Errorf("%q is %v, want the beginning", c, at)
		}
	}
	for _, id := range []string{"", "-", "5", "x-0", "5-x", "5--1", "5-9", "5-1-", "5-0/other"} {
		if n, at, found := findMessage(ins, id); found {
			t.Errorf("%q was found as %d %v", id, n, at)
		}
	}
}

// A packed message comes out as it went in, and one that was damaged is an error.
func TestPackedMessages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := backend.Raw{
			ID: rapid.String().Draw(t, "id"), Topic: rapid.String().Draw(t, "topic"), Key: rapid.String().Draw(t, "key"),
			Kind: rapid.String().Draw(t, "kind"), Payload: rapid.SliceOf(rapid.Byte()).Draw(t, "payload"),
			Headers: rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "headers"),
		}
		if rapid.Bool().Draw(t, "published") {
			m.PublishedAt = time.UnixMicro(rapid.Int64Range(1, math.MaxInt32).Draw(t, "at"))
		}
		packed := packMessage(m)
		got, err := unpackMessage(packed)
		if err != nil {
			t.Fatal(err)
		}
		if got.ID != m.ID || got.Topic != m.Topic || got.Key != m.Key || got.Kind != m.Kind || string(got.Payload) != string(m.Payload) ||
			!maps.Equal(got.Headers, m.Headers) || !got.PublishedAt.Equal(m.PublishedAt) || got.Size != len(m.Payload) {
			t.Fatalf("got %+v, want %+v", got, m)
		}
		head := len(packed) - len(m.Payload)
		if _, err := unpackMessage(packed[:rapid.IntRange(0, head-1).Draw(t, "cut")]); err == nil {
			t.Fatal("a message that was cut was read")
		}
	})
}

// For any answer of a server, reading it ends with entries or an error.
func TestRepliesThatAreNone(t *testing.T) {
	good := "*1\r\n*2\r\n$3\r\n5-1\r\n*2\r\n$1\r\na\r\n$2\r\nbc\r\n"
	es, err := parseEntries([]byte(good))
	if err != nil || len(es) != 1 || es[0].at != (position{5, 1}) {
		t.Fatalf("%+v, %v", es, err)
	}
	for name, value := range es[0].fields {
		if string(name) != "a" || string(value) != "bc" {
			t.Errorf("field %q has %q", name, value)
		}
	}
	for n := range good {
		if es, err := parseEntries([]byte(good[:n])); err == nil {
			t.Errorf("%q was read as %+v", good[:n], es)
		}
	}
	for _, bad := range []string{"+OK\r\n", "$-1\r\n", ":1\r\n", "*1\r\n*3\r\n", "*1\r\n*2\r\n$-1\r\n"} {
		if es, err := parseEntries([]byte(bad)); err == nil {
			t.Errorf("%q was read as %+v", bad, es)
		}
	}
	if es, err := parseEntries([]byte("*0\r\n")); err != nil || len(es) != 0 {
		t.Errorf("%+v, %v", es, err)
	}
}
