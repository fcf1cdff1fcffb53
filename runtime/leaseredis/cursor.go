package leaseredis

import (
	"cmp"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// cursor is how far a consumer has got on a resource, as it is stored with the lease: the
// position in its one stream; or of several, positions joined by commas in the order of tags,
// or a JSON object of positions by name when they are an application's streams. Empty is the
// beginning. A resource with one stream may have the cursor of several: its own part counts.
type cursor string

// position is the id of the last entry passed in one stream.
type position struct{ ms, seq uint64 }

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.ms, q.ms), cmp.Compare(p.seq, q.seq))
}

// end is the greatest id there is: no entry can follow it, and Redis refuses to be asked for those.
var end = position{math.MaxUint64, math.MaxUint64}

// farAhead is from where on an id of the log may be one that no clock gave; the server's clock decides.
func farAhead() position { return position{ms: uint64(time.Now().Add(24 * time.Hour).UnixMicro())} }

// never is an id of the log that no clock gives for centuries.
const never = 9e15

// String leaves out a sequence number of 0: messages of the log have none.
func (p position) String() string {
	if p.seq == 0 {
		return strconv.FormatUint(p.ms, 10)
	}
	return p.id()
}

// id is the whole id of the entry.
func (p position) id() string {
	return strconv.FormatUint(p.ms, 10) + "-" + strconv.FormatUint(p.seq, 10)
}

// after is where XRANGE begins to read what follows.
func (p position) after() string {
	if p == (position{}) {
		return "-"
	}
	return "(" + p.id()
}

// parsePosition reads "ms" or "ms-seq". Other texts are the beginning.
func parsePosition(s string) position {
	ms, seq, _ := strings.Cut(s, "-")
	var p position
	var err error
	if p.ms, err = strconv.ParseUint(ms, 10, 64); err != nil {
		return position{}
	}
	if seq != "" {
		if p.seq, err = strconv.ParseUint(seq, 10, 64); err != nil {
			return position{}
		}
	}
	return p
}

// input is one stream that a resource's messages come from.
type input struct {
	key  string
	tag  int    // of the log; -1 for an application's stream
	name string // of an application's stream
	// shared says that the resource has other streams, or may get others: the position is
	// stored under the stream's name.
	shared bool
}

// inputsOf returns the streams of a resource in the order that cursors have.
func (st *streams) inputsOf(sh *shape, info backend.ConsumerInfo, resource string) []input {
	if s := sourceOf(info); s != nil {
		if info.Per == backend.PerTopic {
			return []input{{key: resource, tag: -1, name: resource}}
		}
		return s.inputs()
	}
	switch info.Per {
	case backend.PerTopic:
		tag := sh.tagOf(resource)
		return []input{{key: st.topicKey(tag, resource), tag: tag}}
	case backend.PerCluster:
		return nil
	}
	if info.Announced {
		return nil
	}
	ins := make([]input, sh.tags)
	for tag := range ins {
		ins[tag] = input{key: st.viewKey(tag, info.Name, resource), tag: tag}
	}
	return ins
}

func (st *streams) topicKey(tag int, topic string) string { return st.prefix(tag) + "t:" + topic }

func (st *streams) viewKey(tag int, consumer, resource string) string {
	return st.prefix(tag) + "v:" + consumer + ":" + resource
}

// positions splits a cursor into those of the inputs.
func (c cursor) positions(ins []input) []position {
	at := make([]position, len(ins))
	switch {
	case c == "":
	case c[0] == '{':
		var byName map[string]string
		if json.Unmarshal([]byte(c), &byName) == nil {
			for i, in := range ins {
				at[i] = parsePosition(byName[in.name])
			}
		}
	case strings.Contains(string(c), ","):
		parts := strings.Split(string(c), ",")
		for i, in := range ins {
			if in.tag >= 0 && in.tag < len(parts) {
				at[i] = parsePosition(parts[in.tag])
			}
		}
	case len(ins) > 0 && !ins[0].shared:
		at[0] = parsePosition(string(c))
	}
	return at
}

// passed is the greatest id of a tag's log that the cursor has passed; 0 for cursors in an
// application's streams, which have ids of their own.
func (c cursor) passed(tag int) uint64 {
	switch {
	case strings.Contains(string(c), ","):
		parts := strings.Split(string(c), ",")
		if tag >= len(parts) {
			return 0
		}
		return parsePosition(parts[tag]).ms
	case c == "" || c[0] == '{' || strings.Contains(string(c), "-"):
		return 0
	}
	return parsePosition(string(c)).ms
}

// cursorAt is the cursor for positions in the inputs.
func cursorAt(ins []input, at []position) cursor { return cursor("").moved(ins, at) }

// moved is c with other positions in the inputs. Those of streams that are no inputs now stay:
// they may be again.
func (c cursor) moved(ins []input, at []position) cursor {
	switch {
	case len(ins) == 0:
		return ""
	case ins[0].tag < 0 && !ins[0].shared:
		return cursor(at[0].id())
	case len(ins) == 1 && ins[0].tag >= 0:
		return cursor(at[0].String())
	case ins[0].tag < 0:
		byName := make(map[string]string, len(ins))
		if c != "" && json.Unmarshal([]byte(c), &byName) != nil {
			clear(byName)
		}
		for i, in := range ins {
			if delete(byName, in.name); at[i] != (position{}) {
				byName[in.name] = at[i].id()
			}
		}
		b, err := json.Marshal(byName) // in the order of names
		if err != nil {
			panic(err) // strings
		}
		return cursor(b)
	}
	buf := make([]byte, 0, 18*len(at))
	for i, p := range at {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = append(buf, p.String()...)
	}
	return cursor(buf)
}
