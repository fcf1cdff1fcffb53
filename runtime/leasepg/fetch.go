package leasepg

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

const (
	fetchBytes   = 32 << 20  // payload in one answer
	fetchLeast   = 256 << 10 // of it, what each resource may have
	scanWindow   = 50_000    // ids a whole-log reader passes in one statement
	scanAttempts = 10        // statements without a match before it reports its progress
)

// Fetch reads the next messages of each item. It draws one xid when it finds any.
func (b *Backend) Fetch(ctx context.Context, req lease.FetchRequest) ([]lease.Fetched, error) {
	out := make([]lease.Fetched, len(req.Items))
	err := func() error {
		if req.Consumer.Per == lease.PerTopic {
			return b.fetchTopics(ctx, req, out)
		}
		for i := range req.Items {
			if err := b.fetchLog(ctx, req, i, &out[i]); err != nil {
				return err
			}
		}
		return nil
	}()
	if err != nil {
		return nil, b.fail("fetch messages of "+req.Consumer.Name, err)
	}
	return out, nil
}

// captured keeps what a generated query would have sent, for a scanner of our own.
type captured struct {
	sql  string
	args []any
}

func (c *captured) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, errCollected
}

func (c *captured) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	c.sql, c.args = sql, args
	return nil, errCollected
}

func (c *captured) QueryRow(context.Context, string, ...any) pgx.Row { return collectedRow{} }

// readLog runs one of the reads of sqlc/queries/log.sql and hands each row to each.
func (b *Backend) readLog(ctx context.Context, query func(q *leasedb.Queries) error, each func(*row)) error {
	var c captured
	if err := query(b.queries(&c)); !errors.Is(err, errCollected) {
		return err
	}
	rows, err := b.pool.Query(ctx, c.sql, append([]any{binaryColumns}, c.args...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	var (
		s scanner
		r row
	)
	for rows.Next() {
		if err := s.scan(rows, &r); err != nil {
			return err
		}
		each(&r)
	}
	return rows.Err()
}

// fetchTopics reads many topics in one statement.
func (b *Backend) fetchTopics(ctx context.Context, req lease.FetchRequest, out []lease.Fetched) error {
	// Empty arrays, since nil would be NULL.
	p := leasedb.FetchTopicsLateParams{
		MaxPayload: int32(req.MaxPayload),
		MaxBytes:   max(fetchBytes/int64(max(len(req.Items), 1)), fetchLeast),
		Items:      []int32{}, Topics: []string{}, Positions: []int64{}, Limits: []int64{},
	}
	reads := make([]read, len(req.Items))
	for i, item := range req.Items {
		c, err := from(item.From)
		if err != nil {
			return err
		}
		reads[i].from = c
		late, err := c.late()
		if err != nil {
			return err
		}
		limit := int64(item.Limit) + 1
		for _, x := range late {
			p.LateItems, p.LateTopics = append(p.LateItems, int32(i)), append(p.LateTopics, item.Resource)
			p.LateAfter, p.LateUpto = append(p.LateAfter, c.latePos), append(p.LateUpto, c.pos)
			p.LateXids, p.LateSnaps = append(p.LateXids, x), append(p.LateSnaps, c.lateSnap)
			p.LateLimits = append(p.LateLimits, limit)
		}
		if c.lateSnap == "" {
			p.Items, p.Topics = append(p.Items, int32(i)), append(p.Topics, item.Resource)
			p.Positions, p.Limits = append(p.Positions, c.pos), append(p.Limits, limit)
		}
	}
	query := func(q *leasedb.Queries) error { _, err := q.FetchTopicsLate(ctx, p); return err }
	if len(p.LateItems) == 0 {
		query = func(q *leasedb.Queries) error {
			_, err := q.FetchTopics(ctx, leasedb.FetchTopicsParams{
				MaxPayload: p.MaxPayload, Items: p.Items, Topics: p.Topics, Positions: p.Positions, Limits: p.Limits, MaxBytes: p.MaxBytes,
			})
			return err
		}
	}
	var snap string
	err := b.readLog(ctx, query, func(r *row) {
		if r.part == partHead {
			snap = r.snapshot()
			return
		}
		r.Topic = req.Items[r.item].Resource
		reads[r.item].add(r)
	})
	if err != nil {
		return err
	}
	for i, item := range req.Items {
		reads[i].snap = snap
		reads[i].finish(p.MaxBytes)
		out[i] = reads[i].result(item.Resource, item.Limit)
	}
	return nil
}

// fetchLog reads on for an item whose resource is the whole log.
func (b *Backend) fetchLog(ctx context.Context, req lease.FetchRequest, i int, out *lease.Fetched) error {
	item := req.Items[i]
	c, err := from(item.From)
	if err != nil {
		return err
	}
	s := logScan{limit: item.Limit, maxPayload: int32(req.MaxPayload), likes: likes(req.Consumer.Topics),
		every: slices.Contains(req.Consumer.Topics, "*")}
	for attempt := 1; ; attempt++ {
		r := read{from: c}
		query, err := s.query(ctx, c)
		if err != nil {
			return err
		}
		beyond := false // the log goes on where the window ends
		err = b.readLog(ctx, query, func(w *row) {
			if w.part == partHead {
				r.snap, r.x, r.top = w.snapshot(), w.x, min(w.id, c.pos+scanWindow)
				beyond = w.id > r.top
				return
			}
			r.add(w)
		})
		if err != nil {
			return err
		}
		r.finish(fetchBytes)
		*out = r.result(item.Resource, item.Limit)
		out.More = out.More || beyond
		if len(out.Messages) > 0 || !out.More || attempt == scanAttempts {
			return nil
		}
		c = out.Next.(*cursor) // nothing for this consumer so far
	}
}

// logScan is what a whole-log reader asks for.
type logScan struct {
	limit      int
	maxPayload int32
	every      bool
	likes      []string
}

func (s *logScan) query(ctx context.Context, c *cursor) (func(*leasedb.Queries) error, error) {
	limit := int64(s.limit) + 1
	if c.lateSnap != "" {
		return func(q *leasedb.Queries) error {
			_, err := q.FetchLogLate(ctx, leasedb.FetchLogLateParams{
				MaxPayload: s.maxPayload, After: c.latePos, Pos: c.pos, Snap: c.snap, LateSnap: c.lateSnap,
				Every: s.every, Likes: s.likes, Max: limit,
			})
			return err
		}, nil
	}
	late, err := c.late()
	if err != nil {
		return nil, err
	}
	if s.every && len(late) == 0 {
		return func(q *leasedb.Queries) error {
			_, err := q.FetchAll(ctx, leasedb.FetchAllParams{MaxPayload: s.maxPayload, Pos: c.pos, Max: limit, MaxBytes: fetchBytes})
			return err
		}, nil
	}
	return func(q *leasedb.Queries) error {
		_, err := q.FetchLog(ctx, leasedb.FetchLogParams{
			Pos: c.pos, MaxPayload: s.maxPayload, Late: append([]string{}, late...), Every: s.every, Likes: s.likes,
			Max: limit, Upto: c.pos + scanWindow, MaxBytes: fetchBytes,
		})
		return err
	}, nil
}

func (r *read) add(w *row) {
	if w.part == partLate {
		r.late = append(r.late, w.message)
		return
	}
	r.fresh = append(r.fresh, w.message)
	if w.x != 0 {
		r.x = w.x
	}
}

// finish puts the messages in order and notes whether the bound on bytes cut them short.
func (r *read) finish(maxBytes int64) {
	for _, part := range [][]message{r.late, r.fresh} {
		if !slices.IsSortedFunc(part, byID) {
			slices.SortFunc(part, byID)
		}
	}
	var bytes int64
	for i := range r.fresh {
		bytes += int64(r.fresh[i].Size)
	}
	r.more = r.more || bytes >= maxBytes
}
