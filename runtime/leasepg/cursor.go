package leasepg

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/leasegen/leasegen/runtime/backend"
)

// cursor is how far one lease has got. It does not change once it was handed out.
//
// "id > pos" alone would lose messages whose transaction commits late, so the cursor
// remembers the snapshot it has read with. A message with an id up to pos that snap did
// not show drew its id, and before that its xid, before snap was taken. x was drawn
// after snap, by the statement that read. So such a message can only be found
//
//   - among the transactions that snap lists as running, or
//   - from snap's upper bound on, below x,
//
// which are a handful of transactions, mostly without messages. No read ever waits for
// other transactions to end.
type cursor struct {
	pos  int64  // every message up to here that snap shows has been read
	snap string // xmin:xmax:running, as PostgreSQL writes it; empty at the start of the log
	x    uint64 // an xid drawn after snap, and after whatever read pos

	// Of what the cursor is, see history.go. Neither is stored: what is stored is as old as the
	// server that it is stored on.
	history string
	file    int64 // of a table; 0 when it is not known

	// While more messages turn out to be late than fit in a batch: of those that
	// lateSnap shows and snap does not, the ones up to latePos have been read.
	lateSnap string
	latePos  int64
}

// from returns the cursor in c. Nil is the start of the retained log.
func from(c backend.Cursor) (*cursor, error) {
	switch c := c.(type) {
	case nil:
		return &cursor{}, nil
	case *cursor:
		return c, nil
	}
	return nil, fmt.Errorf("the cursor is a %T of another backend", c)
}

// storedCursor reads what a lease row holds.
func storedCursor(pos int64, snap, x, lateSnap string, latePos int64) (*cursor, error) {
	c := &cursor{pos: pos, snap: snap, lateSnap: lateSnap, latePos: latePos}
	if x != "" {
		var err error
		if c.x, err = strconv.ParseUint(x, 10, 64); err != nil {
			return nil, fmt.Errorf("stored xid: %w", err)
		}
	}
	return c, nil
}

func (c *cursor) xText() string {
	if c.x == 0 {
		return ""
	}
	return strconv.FormatUint(c.x, 10)
}

// late returns the transactions whose messages c should have shown and could not. There
// are as many as ran at the moment of the read, and began until it drew x. While late messages are
// read page by page there are none.
func (c *cursor) late() ([]uint64, error) {
	if c.pos == 0 || c.snap == "" || c.lateSnap != "" {
		return nil, nil
	}
	var out []uint64
	parts := strings.Split(c.snap, ":")
	if len(parts) != 3 {
		return nil, fmt.Errorf("snapshot %q is not xmin:xmax:running", c.snap)
	}
	top, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("snapshot %q: %w", c.snap, err)
	}
	if parts[2] != "" {
		for running := range strings.SplitSeq(parts[2], ",") {
			x, err := strconv.ParseUint(running, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("snapshot %q: %w", c.snap, err)
			}
			out = append(out, x)
		}
	}
	if c.x > top && c.x-top > farApart {
		return nil, errFar
	}
	for x := top; x < c.x; x++ {
		out = append(out, x)
	}
	return out, nil
}

// read is what one statement found for one cursor: late messages, which were missing
// before from.pos, and then those beyond it, both in the order of ids.
type read struct {
	from *cursor
	at   horizon
	snap string // of the statement
	x    uint64 // drawn by the statement, after its snapshot
	top  int64  // as far as the statement looked; 0 when not beyond its messages

	ids      []int64
	messages []backend.Raw
	late     int  // so many of them
	lateCut  bool // there are more late ones than these
	cut      bool // there are more beyond from.pos
	beyond   bool // the log goes on where the statement stopped looking
}

func (r *read) cursor(pos int64, snap string, x uint64) *cursor {
	return &cursor{pos: pos, snap: snap, x: x, history: r.at.history, file: r.at.file}
}

// result makes the answer for a resource, of at most limit messages.
func (r *read) result(resource string, limit int) backend.Fetched {
	late, total := r.late, len(r.messages)
	if late > limit {
		late, r.lateCut = limit, true
	}
	switch {
	case r.lateCut:
		total = late // they come first
	case total > limit:
		total, r.cut = limit, true
	}
	paged := r.from.lateSnap != "" // only late messages were looked for
	lateSnap := r.snap
	if paged {
		lateSnap = r.from.lateSnap
	}
	// caughtUp is the cursor when no late message is left. x stays good: it bounds the
	// transactions that can have ids up to pos, and pos has not moved.
	caughtUp := r.from
	if !r.lateCut && (paged || late > 0) {
		caughtUp = r.cursor(r.from.pos, lateSnap, r.from.x)
	}
	at := func(n int) *cursor { // after n messages, one at least
		switch {
		case n > late:
			return r.cursor(r.ids[n-1], r.snap, r.x)
		case n == late && !r.lateCut:
			return caughtUp
		}
		c := r.cursor(r.from.pos, r.from.snap, r.from.x)
		c.lateSnap, c.latePos = lateSnap, r.ids[n-1]
		return c
	}
	next := caughtUp
	if total > 0 {
		next = at(total)
	}
	if !r.lateCut && !r.cut && r.top > next.pos {
		next = r.cursor(r.top, r.snap, r.x)
	}
	return backend.Fetched{
		Resource: resource,
		Messages: r.messages[:total:total],
		Next:     next,
		More:     r.lateCut || paged || r.cut,
		Cut: func(n int) backend.Cursor {
			switch n {
			case total:
				return next
			case 0:
				return r.from
			}
			return at(n)
		},
	}
}
