package leasepg

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

const (
	fetchBytes   = 32 << 20 // of payload in one answer; one message may exceed it
	scanWindow   = 50_000   // ids a whole-log reader passes in one statement
	scanAttempts = 10       // statements without a match before it reports its progress

	plainRows = 1000 // messages that a read of slots looks at, for each of them, while there is no index by slot

	slotSpan = 250_000 // ids a reader of a slot passes in one statement, if it may have to pass over messages
	slotJump = 10_000  // ids without a message of a slot that are worth storing
)

// reader reads messages and watches for news of them.
type reader struct {
	*sessions
	publisher *publisher // of delayed events
	bell      *bell
	patterns  patterns
}

// Fetch reads the next messages of each item. It draws one xid when it finds any.
func (rd *reader) Fetch(ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
	out := make([]backend.Fetched, len(req.Items))
	err := func() error {
		if t := rd.tables.of(req.Consumer); t != nil {
			return rd.fetchTable(ctx, t, req, out)
		}
		switch req.Consumer.Per {
		case backend.PerTopic, backend.PerPartition, backend.PerStream:
			return rd.patterns.reads(req.Consumer, func(r *reading) (string, error) { return rd.fetchMany(ctx, req, r, out) })
		}
		for i := range req.Items {
			err := rd.patterns.reads(req.Consumer, func(r *reading) (string, error) { return rd.fetchLog(ctx, req, r, i, &out[i]) })
			if err != nil {
				return err
			}
		}
		return nil
	}()
	if err != nil {
		if errors.Is(err, backend.ErrSessionLost) {
			rd.estrange(err, func(s *session) bool { return slices.Contains(s.spec.Consumers, req.Consumer.Name) })
		}
		return nil, rd.fail("fetch messages of "+req.Consumer.Name, err)
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

// readLog runs one of the reads of sqlc/queries/log.sql and shares its rows out to reads.
// Rows beyond fetchBytes are left for the next read.
func (rd *reader) readLog(ctx context.Context, query func(q *leasedb.Queries) error, reads []read, head func(position)) (err error) {
	var c captured
	if err := query(rd.queries(&c)); !errors.Is(err, errCollected) {
		return err
	}
	var batch pgx.Batch
	if err := rd.queries(collector{&batch}).Steady(ctx); err != nil && !errors.Is(err, errCollected) {
		return err
	}
	batch.Queue(c.sql, c.args...)
	results := rd.pool.SendBatch(ctx, &batch)
	defer func() {
		if e := results.Close(); err == nil {
			err = e
		}
	}()
	if _, err := results.Exec(); err != nil {
		return err
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	var (
		bytes int
		last  *backend.Raw
	)
	place := func(p position) *backend.Raw {
		if last != nil {
			bytes += len(last.Payload)
		}
		r := &reads[p.item]
		if bytes >= fetchBytes {
			last = nil
			r.lateCut = r.lateCut || p.part == partLate
			r.cut = true
			return nil
		}
		if p.part == partLate {
			r.late++
		} else if p.x != 0 {
			r.x = p.x
		}
		r.ids = append(r.ids, p.id)
		r.messages = append(r.messages, backend.Raw{})
		last = &r.messages[len(r.messages)-1]
		return last
	}
	if !isBinary(rows) {
		return eachText(rows, head, place)
	}
	var s scanner
	return s.each(rows, head, place)
}

// judge holds the cursors that a statement read from against what it says of the server.
func judge(head position, reads []read) error {
	h, err := newHorizon(head.history, head.snap, head.last, 0)
	if err != nil {
		return err
	}
	for i := range reads {
		reads[i].at = h
		if err := reads[i].from.in(h); err != nil {
			return err
		}
	}
	return nil
}

// fetchLog reads on for an item whose resource is the whole log. It returns the patterns that
// count, when it was asked with others.
func (rd *reader) fetchLog(ctx context.Context, req backend.FetchRequest, what *reading, i int, out *backend.Fetched) (patterns string, err error) {
	item := req.Items[i]
	c, err := from(item.From)
	if err != nil {
		return "", err
	}
	s := logScan{consumer: req.Consumer.Name, limit: item.Limit, maxPayload: int32(req.MaxPayload), likes: what.likes, every: what.every,
		ledger: rd.ledgers.get(backend.PerGroup), ask: rd.askLog(backend.PerGroup)}
	for attempt := 1; ; attempt++ {
		query, err := s.query(ctx, c)
		if errors.Is(err, errFar) {
			var now leasedb.HorizonRow
			if now, err = rd.queries(rd.pool).Horizon(ctx); err == nil {
				c = c.pages(now.Snap)
				query, err = s.query(ctx, c)
			}
		}
		if err != nil {
			return "", err
		}
		reads := []read{{from: c, ids: make([]int64, 0, item.Limit+1), messages: make([]backend.Raw, 0, item.Limit+1)}}
		r := &reads[0]
		beyond := false // the log goes on where the window ends
		var head position
		err = rd.readLog(ctx, query, reads, func(p position) {
			head = p
			r.snap, r.x, r.top = p.snap, p.x, min(p.id, c.pos+scanWindow)
			beyond = p.id > r.top
			patterns = p.patterns
		})
		if err != nil || !what.holds(patterns) {
			return patterns, err
		}
		if err := judge(head, reads); err != nil {
			return "", err
		}
		*out = r.result(item.Resource, item.Limit)
		if r.from.suspect(r.at) {
			one := []backend.Fetched{*out}
			alone := backend.FetchRequest{Consumer: req.Consumer, Items: req.Items[i : i+1]}
			if err := rd.takeBack(ctx, nil, alone, r.at, []int{0}, reads, one); err != nil {
				return "", err
			}
			*out = one[0]
		}
		out.More = out.More || beyond
		if len(out.Messages) > 0 || !out.More || attempt == scanAttempts {
			return patterns, nil
		}
		c = out.Next.(*cursor) // no message for this consumer so far
	}
}

// logScan is what a whole-log reader asks for.
type logScan struct {
	consumer   string
	limit      int
	maxPayload int32
	every      bool
	likes      []string
	ledger     *ledger
	ask        ask
}

func (s *logScan) query(ctx context.Context, c *cursor) (func(*leasedb.Queries) error, error) {
	limit := int64(s.limit) + 1
	if c.lateSnap != "" {
		return func(q *leasedb.Queries) error {
			_, err := q.FetchLogLate(ctx, leasedb.FetchLogLateParams{
				Consumer: s.consumer, MaxPayload: s.maxPayload, After: c.latePos, Pos: c.pos, Snap: c.snap, LateSnap: c.lateSnap,
				Every: s.every, Likes: s.likes, Max: limit,
			})
			return err
		}, nil
	}
	late, err := c.late()
	if err != nil {
		return nil, err
	}
	if len(late) > fewPairs {
		q := []question{{xids: late}}
		if err := s.ledger.narrow(ctx, c.history, q, false, s.ask); err != nil {
			return nil, err
		}
		late = q[0].xids
	}
	if s.every && len(late) == 0 {
		return func(q *leasedb.Queries) error {
			_, err := q.FetchAll(ctx, leasedb.FetchAllParams{MaxPayload: s.maxPayload, Pos: c.pos, Max: limit})
			return err
		}, nil
	}
	return func(q *leasedb.Queries) error {
		_, err := q.FetchLog(ctx, leasedb.FetchLogParams{
			Consumer: s.consumer, Pos: c.pos, MaxPayload: s.maxPayload, Late: xidTexts(late), Every: s.every, Likes: s.likes,
			Max: limit, Upto: c.pos + scanWindow,
		})
		return err
	}, nil
}
