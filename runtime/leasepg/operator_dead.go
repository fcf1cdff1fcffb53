package leasepg

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	operatorScan  = 5000     // rows that one statement looks at for an operator
	operatorRows  = 500      // that one statement returns whole, or changes
	operatorBytes = 4 << 20  // that these hold, if it is more than one row,
	movedBytes    = 16 << 20 // and of rows that are moved within the server
)

// deadSearch finds the dead letters that a filter selects, step by step.
type deadSearch struct {
	op     *operator
	p      leasedb.FindDeadLettersParams // After and Through are what is left to be looked at
	back   bool                          // from the newest on
	narrow bool                          // not all that is looked at is selected
	left   int64                         // to be found
	over   bool
}

// search begins a search. It goes back when all that is selected is wanted and the newest first.
func (op *operator) search(ctx context.Context, f operate.DeadLetterFilter, back bool) (*deadSearch, error) {
	s := &deadSearch{op: op, left: int64(f.Limit), back: back, p: leasedb.FindDeadLettersParams{
		Consumer: f.Consumer, Topic: like(f.Topic), Key: f.Key, Kind: f.Kind, Reason: like(f.Reason), Within: f.Text,
		MinAge: max(f.MinAge, 0), MaxAge: max(f.MaxAge, 0), Ids: []int64{}, Through: math.MaxInt64,
	}}
	s.narrow = f.Topic != "" || f.Key != "" || f.Kind != "" || f.Reason != "" || f.Text != "" || f.MinAge > 0 || f.MaxAge > 0
	if f.Limit == 0 {
		s.left = math.MaxInt64
	}
	for id, to := range map[string]*int64{f.After: &s.p.After, f.Through: &s.p.Through} {
		if id == "" {
			continue
		}
		ids, err := numbers("dead letter", []string{id})
		if err != nil {
			return nil, err
		}
		*to = ids[0]
	}
	// No row has text that the database cannot hold.
	s.over = !storable(f.Consumer, f.Topic, f.Key, f.Kind, f.Reason, f.Text)
	ids, err := numbers("dead letter", f.IDs)
	if err != nil || len(f.IDs) > 0 {
		slices.Sort(ids)
		s.p.Ids = slices.Compact(ids)
		return s, err
	}
	if f.MaxAge > 0 && f.Consumer != "" && !s.over {
		after, err := op.queries(op.pool).DeadLettersSince(ctx, leasedb.DeadLettersSinceParams{Consumer: f.Consumer, Age: f.MaxAge, Scan: 2 * operatorScan})
		if err != nil {
			return nil, err
		}
		s.p.After = max(s.p.After, after)
	}
	return s, nil
}

// storable reports whether texts can be sent to the database.
func storable(texts ...string) bool {
	return !slices.ContainsFunc(texts, func(t string) bool { return !utf8.ValidString(t) || strings.IndexByte(t, 0) >= 0 })
}

// next looks at the next dead letters, and returns how many these were and those of them that are selected, the oldest first.
// It has looked at all when none is left to look at.
func (s *deadSearch) next(ctx context.Context) (found []leasedb.FindDeadLettersRow, looked int, err error) {
	if s.over || s.left <= 0 {
		return nil, 0, nil
	}
	q, p := s.op.queries(s.op.pool), s.p
	if len(p.Ids) > 0 {
		n := min(len(p.Ids), operatorRows)
		p.Ids, s.p.Ids, s.over = p.Ids[:n], p.Ids[n:], n == len(p.Ids)
		looked = n
	} else if looked, err = s.turn(ctx, q, &p); err != nil || looked == 0 {
		return nil, 0, err
	}
	p.Max = min(s.left, operatorScan)
	err = s.op.pipeline(ctx, s.op.pool,
		func(q *leasedb.Queries) error { return q.Uncompiled(ctx) },
		func(q *leasedb.Queries) (err error) { found, err = q.FindDeadLetters(ctx, p); return err })
	s.left -= int64(len(found))
	return found, looked, err
}

// turn sets the ids between which to look next, and returns how many dead letters there are.
func (s *deadSearch) turn(ctx context.Context, q *leasedb.Queries, p *leasedb.FindDeadLettersParams) (int, error) {
	at := leasedb.DeadLetterRangeParams{Consumer: p.Consumer, After: p.After, Through: p.Through, Scan: operatorScan}
	if !s.narrow {
		at.Scan = min(at.Scan, s.left)
	}
	var r leasedb.DeadLetterRangeRow
	var err error
	if s.back {
		var back leasedb.DeadLetterRangeBackRow
		back, err = q.DeadLetterRangeBack(ctx, leasedb.DeadLetterRangeBackParams(at))
		r = leasedb.DeadLetterRangeRow(back)
		s.p.Through = r.First - 1
	} else {
		r, err = q.DeadLetterRange(ctx, at)
		s.p.After = r.Last
	}
	p.After, p.Through = r.First-1, r.Last
	return int(r.Number), err
}

// each calls do with what is selected, in parts of rows and bytes that a statement may load or move.
func (s *deadSearch) each(ctx context.Context, size func(leasedb.FindDeadLettersRow) int64, room int64, do func(ids []int64) error) error {
	for {
		found, looked, err := s.next(ctx)
		if err != nil || looked == 0 {
			return err
		}
		for len(found) > 0 {
			var ids []int64
			for left := room; len(found) > 0 && len(ids) < operatorRows && (len(ids) == 0 || size(found[0]) <= left); found = found[1:] {
				ids, left = append(ids, found[0].ID), left-size(found[0])
			}
			if err := do(ids); err != nil {
				return err
			}
		}
	}
}

// DeadLetters lists dead letters, the oldest first.
func (op *operator) DeadLetters(ctx context.Context, f operate.DeadLetterFilter) (out []operate.DeadLetterInfo, err error) {
	s, err := op.search(ctx, f, false)
	if err != nil {
		return nil, op.fail("dead letters", err)
	}
	p := leasedb.ListDeadLettersParams{WithPayload: len(f.IDs) == 1}
	err = s.each(ctx, func(r leasedb.FindDeadLettersRow) int64 { return r.Size }, operatorBytes, func(ids []int64) error {
		p.Ids = ids
		rows, err := op.queries(op.pool).ListDeadLetters(ctx, p)
		for _, r := range rows {
			out = append(out, operate.DeadLetterInfo{
				ID: strconv.FormatInt(r.ID, 10), Consumer: r.Consumer, Resource: r.Resource,
				MessageID: strconv.FormatInt(r.MessageID, 10), Topic: r.Topic, Key: r.Key, Kind: r.Kind,
				Payload: r.Payload, Size: int(r.Size), PublishedAt: r.PublishedAt, FirstFailed: r.FailedAt, DeadAt: r.DeadAt,
				Attempts: int(r.Attempts), Reason: r.Reason, Headers: decodeHeaders([]byte(r.Headers)),
			})
		}
		return err
	})
	return out, op.fail("dead letters", err)
}

// DeadLetterGroups counts dead letters by reason. With a Limit these are the oldest.
func (op *operator) DeadLetterGroups(ctx context.Context, f operate.DeadLetterFilter) (operate.DeadLetterGroups, error) {
	s, err := op.search(ctx, f, f.Limit == 0)
	if err != nil {
		return operate.DeadLetterGroups{}, op.fail("groups of dead letters", err)
	}
	var groups backend.DeadLetterGrouping
	last := int64(-1)
	for all := 0; ; {
		found, looked, err := s.next(ctx)
		if err != nil {
			return operate.DeadLetterGroups{}, op.fail("groups of dead letters", err)
		}
		if all += looked; looked == 0 || all > backend.GroupedDeadLetters {
			out := groups.Answer(looked > 0)
			if last >= 0 {
				out.Last = strconv.FormatInt(last, 10)
			}
			return out, nil
		}
		for _, r := range slices.Backward(found) {
			last = max(last, r.ID)
			groups.Add(operate.DeadLetterGroup{Consumer: r.Consumer, Kind: r.Kind, Reason: r.Reason, Count: 1, Oldest: r.DeadAt, Newest: r.DeadAt,
				Example: strconv.FormatInt(r.ID, 10)})
		}
	}
}

// Replay puts dead letters back for their consumers. One that died just before the one that Through names may come along
// though no list had it yet, since its transaction was under way.
func (op *operator) Replay(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	n, err := op.move(ctx, f, func(r leasedb.FindDeadLettersRow) int64 { return r.PayloadSize + r.Size }, func(ids []int64) (n int64, err error) {
		err = op.pipeline(ctx, op.pool, durable(ctx),
			func(q *leasedb.Queries) (err error) { n, err = q.ReplayDeadLetters(ctx, ids); return err },
			op.notify(ctx, wakeParked))
		return n, err
	})
	return n, op.fail("replay dead letters", err)
}

// Purge deletes dead letters, those that Through selects as Replay does.
func (op *operator) Purge(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	n, err := op.move(ctx, f, func(leasedb.FindDeadLettersRow) int64 { return 0 }, func(ids []int64) (int64, error) {
		return op.queries(op.pool).PurgeDeadLetters(ctx, ids)
	})
	return n, op.fail("purge dead letters", err)
}

// move calls do for what is selected of the dead letters that there are now, and returns how many it has moved.
func (op *operator) move(ctx context.Context, f operate.DeadLetterFilter, size func(leasedb.FindDeadLettersRow) int64, do func(ids []int64) (int64, error)) (int, error) {
	s, err := op.search(ctx, f, false)
	if err != nil {
		return 0, err
	}
	end, err := op.queries(op.pool).DeadLetterEnd(ctx)
	if err != nil {
		return 0, err
	}
	s.p.Through = min(s.p.Through, end)
	moved := 0
	err = s.each(ctx, size, movedBytes, func(ids []int64) error {
		n, err := do(ids)
		moved += int(n)
		return err
	})
	return moved, err
}

// numbers reads ids.
func numbers(of string, ids []string) ([]int64, error) {
	out := make([]int64, len(ids))
	for i, id := range ids {
		var err error
		if out[i], err = strconv.ParseInt(id, 10, 64); err != nil {
			return nil, operate.Invalid("%q is not the id of a %s, which is a number", id, of)
		}
	}
	return out, nil
}
