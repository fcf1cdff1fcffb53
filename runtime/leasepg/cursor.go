package leasepg

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/leasegen/leasegen/runtime/lease"
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
// which are a handful of transactions, mostly without messages. Nothing ever waits for
// other transactions to end.
type cursor struct {
	pos  int64  // every message up to here that snap shows has been read
	snap string // xmin:xmax:running, as PostgreSQL writes it; empty at the start of the log
	x    uint64 // an xid drawn after snap, and after whatever read pos

	// While more messages turn out to be late than fit in a batch: of those that
	// lateSnap shows and snap does not, the ones up to latePos have been read.
	lateSnap string
	latePos  int64
}

// from returns the cursor in c. Nil is the start of the retained log.
func from(c lease.Cursor) (*cursor, error) {
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
// are at most as many as ran at the moment of the read.
func (c *cursor) late() ([]string, error) {
	if c.pos == 0 || c.snap == "" {
		return nil, nil
	}
	var out []string
	parts := strings.Split(c.snap, ":")
	if len(parts) != 3 {
		return nil, fmt.Errorf("snapshot %q is not xmin:xmax:running", c.snap)
	}
	top, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("snapshot %q: %w", c.snap, err)
	}
	if parts[2] != "" {
		out = strings.Split(parts[2], ",")
	}
	if c.x-top > 1_000_000 && c.x > top {
		return nil, fmt.Errorf("snapshot %q and xid %d are too far apart", c.snap, c.x)
	}
	for x := top; x < c.x; x++ {
		out = append(out, strconv.FormatUint(x, 10))
	}
	return out, nil
}

// read is what one statement found for one cursor.
type read struct {
	from *cursor
	snap string // of the statement
	x    uint64 // drawn by the statement, after its snapshot
	top  int64  // as far as the statement looked; 0 when not beyond its messages

	late, fresh []message // in order of ids; late ones were missing before from.pos
	more        bool      // there are fresh ones beyond
}

// message is a message with its position.
type message struct {
	id int64
	lease.Raw
}

// result makes the answer for a resource, of at most limit messages. Late messages come
// first: they are older than the fresh ones.
func (r *read) result(resource string, limit int) lease.Fetched {
	paged := r.from.lateSnap != "" // only late messages were looked for
	moreLate := len(r.late) > limit
	late := r.late[:min(len(r.late), limit)]
	fresh := r.fresh[:min(len(r.fresh), limit-len(late))]
	if len(fresh) < len(r.fresh) {
		r.more = true
	}

	lateSnap := r.snap
	if paged {
		lateSnap = r.from.lateSnap
	}
	// caughtUp is the cursor when no late message is left. x stays good: it bounds the
	// transactions that can have ids up to pos, and pos has not moved.
	caughtUp := r.from
	if paged || len(late) > 0 {
		caughtUp = &cursor{pos: r.from.pos, snap: lateSnap, x: r.from.x}
	}
	at := func(n int) *cursor { // after n messages, one at least
		switch {
		case n > len(late):
			return &cursor{pos: fresh[n-1-len(late)].id, snap: r.snap, x: r.x}
		case n == len(late) && !moreLate:
			return caughtUp
		}
		return &cursor{pos: r.from.pos, snap: r.from.snap, x: r.from.x, lateSnap: lateSnap, latePos: late[n-1].id}
	}
	total := len(late) + len(fresh)
	next := caughtUp
	if total > 0 {
		next = at(total)
	}
	if !moreLate && !r.more && r.top > next.pos {
		next = &cursor{pos: r.top, snap: r.snap, x: r.x}
	}

	f := lease.Fetched{Resource: resource, Next: next, More: moreLate || paged || r.more}
	if total > 0 {
		f.Messages = make([]lease.Raw, 0, total)
		for _, part := range [][]message{late, fresh} {
			for i := range part {
				f.Messages = append(f.Messages, part[i].Raw)
			}
		}
	}
	f.Cut = func(n int) lease.Cursor {
		switch n {
		case total:
			return next
		case 0:
			return r.from
		}
		return at(n)
	}
	return f
}
