package leasepg

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
	"github.com/leasegen/leasegen/runtime/leasepg/pgtable"
	"github.com/leasegen/leasegen/runtime/operate"
)

// A cursor is good only in the history of the server that gave it. When a standby that lacked
// writes is promoted, or a server recovers to an earlier time, ids and xids are given out again,
// to other messages: a cursor of before would pass over these. So a session and each cursor carry
// the history they are of; every read and every write that names them compares it, in the statement
// or transaction itself. Another one ends the session, and the next one reads all positions again,
// from leases that are as old as the server's log is.

// Raised by leasegen.expect.
const (
	foreignHistory = "LG001"
	notTheHandlers = "LG002" // the transaction is not the one that was begun for a handler
)

// horizon is how far a server has got: no id that it gave lies beyond.
type horizon struct {
	history string
	xmax    uint64 // of a snapshot: xids from here on have not been given
	last    int64  // position drawn last; -1 when that is not known
	file    int64  // of a table, see TableHorizon
}

func newHorizon(history, snap string, last, file int64) (horizon, error) {
	xmax, err := snapshotMax(snap)
	return horizon{history, xmax, last, file}, err
}

// snapshotMax is the first xid that a snapshot has not seen begin.
func snapshotMax(snap string) (uint64, error) {
	_, rest, _ := strings.Cut(snap, ":")
	xmax, _, ok := strings.Cut(rest, ":")
	n, err := strconv.ParseUint(xmax, 10, 64)
	if err != nil || !ok {
		return 0, fmt.Errorf("snapshot %q is not xmin:xmax:running", snap)
	}
	return n, nil
}

// future reports whether the cursor holds transactions that have not begun on the server.
func (c *cursor) future(h horizon) (bool, error) {
	if c.x >= h.xmax {
		return true, nil
	}
	for _, snap := range []string{c.snap, c.lateSnap} {
		if snap == "" {
			continue
		}
		if xmax, err := snapshotMax(snap); err != nil || xmax > h.xmax {
			return true, err
		}
	}
	return false, nil
}

// in returns ErrSessionLost, with a reason, unless the cursor is of the server's history.
func (c *cursor) in(h horizon) error {
	if c.history != "" && c.history != h.history {
		return fmt.Errorf("%w: a position is of the history %s, and the server has another, %s", backend.ErrSessionLost, c.history, h.history)
	}
	if future, err := c.future(h); err != nil {
		return err
	} else if future {
		return fmt.Errorf("%w: a position is from the future: it knows transaction %d, and the server's next is %d", backend.ErrSessionLost, c.x, h.xmax)
	}
	return nil
}

// expect is a step that fails with ErrSessionLost, and the transaction with it, when the server
// has another history than the session, or one of the cursors is from its future.
func (ss *sessions) expect(ctx context.Context, session string, cursors ...*cursor) step {
	return ss.expectIn(ctx, "", session, cursors...)
}

// expectIn is expect in the transaction of a handler, which has a mark.
func (ss *sessions) expectIn(ctx context.Context, mark, session string, cursors ...*cursor) step {
	var p leasedb.ExpectParams
	if s := ss.session(session); s != nil {
		p.History = s.history
	}
	var x uint64
	for _, c := range cursors {
		if p.History == "" {
			p.History = c.history
		}
		x = max(x, c.x)
	}
	if x > 0 {
		p.X = strconv.FormatUint(x, 10)
	}
	if mark != "" {
		return func(q *leasedb.Queries) error {
			return q.ExpectEffects(ctx, leasedb.ExpectEffectsParams{History: p.History, X: p.X, Effects: mark})
		}
	}
	return func(q *leasedb.Queries) error { return q.Expect(ctx, p) }
}

// estrange ends what this process has in memory of another history: the sessions given, and what
// was found out about the schema. The next heartbeat tells the runtime, which is asked to send
// it at once.
func (ss *sessions) estrange(reason error, concerned func(*session) bool) {
	ss.open.Range(func(_, v any) bool {
		if s := v.(*session); concerned(s) && !s.estranged.Swap(true) {
			ss.log.Warn("leasepg: the server was set back, or replaced by one that lacks writes: the session ends, and all positions are read again",
				"session", s.spec.ID, "reason", reason)
			s.raise()
		}
		return true
	})
	ss.forget()
}

// estrangeNamed is estrange for the session of one id.
func (ss *sessions) estrangeNamed(reason error, id string) {
	ss.estrange(reason, func(s *session) bool { return s.spec.ID == id })
}

// rescue looks at leases just granted. One whose stored cursor is from the future was written on
// another server, and its progress in this log is unknown: it begins again at
// the beginning, durably, before anyone reads on.
func (o *owner) rescue(ctx context.Context, on sender, session, consumer string, h horizon, grants []backend.Grant) error {
	var ahead []string
	for i := range grants {
		c := grants[i].Cursor.(*cursor)
		future, err := c.future(h)
		if err != nil {
			return err
		}
		if future {
			ahead = append(ahead, grants[i].Resource)
		}
	}
	if len(ahead) == 0 {
		return nil
	}
	var back []leasedb.TakeBackRow
	err := o.pipeline(ctx, on, durable(ctx), func(q *leasedb.Queries) (err error) {
		back, err = q.TakeBack(ctx, leasedb.TakeBackParams{Consumer: consumer, Session: session, Resources: ahead})
		return err
	})
	if err != nil {
		return err
	}
	at := make(map[string]int64, len(back))
	for _, r := range back {
		at[r.Resource] = r.Pos
	}
	var (
		resources []string
		from      int64
	)
	for i := range grants {
		if pos, ok := at[grants[i].Resource]; ok {
			grants[i].Cursor = &cursor{history: h.history}
			resources, from = append(resources, grants[i].Resource), max(from, pos)
		}
	}
	o.tellSetBack(consumer, resources, from, 0, "stored positions know transactions that have not begun on this server: they were written on another one")
	return nil
}

// tellSetBack says that positions were taken back, from as far as from.
func (sv *server) tellSetBack(consumer string, resources []string, from, to int64, reason string) {
	if len(resources) == 0 {
		return
	}
	sv.log.Warn("leasepg: positions were taken back, so that no message is skipped", "consumer", consumer, "resources", len(resources),
		"one_of_them", resources[0], "from", from, "to", to, "reason", reason)
	if sv.observer == nil {
		return
	}
	for _, r := range resources {
		sv.observer.Observe(operate.ObservedSetBack{Consumer: consumer, Resource: r, Reason: reason})
	}
}

// takeBack answers for the items whose cursors have passed positions that were given out again,
// because the sequence, or with it the table, was set back. Each goes on with what its snapshot did not
// show, wherever that stands, and so none is read twice.
func (rd *reader) takeBack(ctx context.Context, t *tableSource, req backend.FetchRequest, h horizon, suspects []int, reads []read, out []backend.Fetched) error {
	if len(suspects) == 0 {
		return nil
	}
	source := ""
	if t != nil {
		source = t.identity()
	}
	positions, xs := make([]int64, len(suspects)), make([]string, len(suspects))
	for i, n := range suspects {
		positions[i], xs[i] = reads[n].from.pos, reads[n].from.xText()
	}
	q := rd.queries(rd.pool)
	unseen, err := func() ([]int32, error) {
		if t == nil {
			return q.UnseenMessages(ctx, leasedb.UnseenMessagesParams{Positions: positions, Xs: xs})
		}
		return q.UnseenRows(ctx, leasedb.UnseenRowsParams{Source: source, Positions: positions, Xs: xs})
	}()
	if err != nil || len(unseen) == 0 {
		return err
	}
	to, err := q.TakenBack(ctx, leasedb.TakenBackParams{Last: h.last, Source: source})
	if err != nil {
		return err
	}
	x, err := strconv.ParseUint(to.X, 10, 64)
	if err != nil {
		return err
	}
	var (
		resources []string
		from      int64
	)
	for _, u := range unseen {
		n := suspects[u-1]
		was := reads[n].from
		next := &cursor{history: h.history, file: h.file, pos: to.Pos, snap: was.snap, x: x, lateSnap: to.Snap}
		out[n] = backend.Fetched{
			Resource: req.Items[n].Resource, Next: next, More: true,
			Cut: func(int) backend.Cursor { return next },
		}
		resources, from = append(resources, req.Items[n].Resource), max(from, was.pos)
	}
	rd.tellSetBack(req.Consumer.Name, resources, from, to.Pos, "positions that they had passed were given out again: the sequence or the table was set back")
	return nil
}

// suspect reports whether positions that the cursor has passed may have been given out again.
func (c *cursor) suspect(h horizon) bool {
	return c.snap != "" && c.lateSnap == "" && (c.pos > h.last && h.last >= 0 || c.file != h.file)
}

// name is the table's, quoted.
func (t *tableSource) name() string {
	schema, name, _ := strings.Cut(t.Table, ".")
	return pgx.Identifier{schema, name}.Sanitize()
}

// horizon is a query for how far the table has got.
func (ts *tables) horizon(ctx context.Context, t *tableSource, to *horizon) func(pgtable.Querier) error {
	return func(db pgtable.Querier) error {
		r, err := ts.queries(db).TableHorizon(ctx, leasedb.TableHorizonParams{Sequence: ts.sequence(t), Name: t.name()})
		if err != nil {
			return err
		}
		*to, err = newHorizon(r.History, r.Snap, r.Last, r.File)
		return err
	}
}
