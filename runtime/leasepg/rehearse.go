package leasepg

import (
	"context"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// The first time that a connection runs a statement the server parses and plans it, and reads what it knows of the tables: a
// process that takes over has run none of the statements that this needs, and would spend most of a handover on that. So it runs
// each while there is time, in a way that finds no row.

// rehearsals is how often a statement is run whose plan depends on its arguments: then the server has settled on a plan.
const rehearsals = 6

// rehearsed marks a connection on which statements were run. They depend on the schema and, those that read, on what owns.
type rehearsed struct {
	schema string
	per    backend.Per
}

const rehearsedKey = "leasegen.rehearsed"

// rehearse runs what a takeover of the consumers needs, once on each connection. A failure holds up no work: the connection is
// as it was, or broken, which its next use finds.
func (o *owner) rehearse(ctx context.Context, c *pgx.Conn, consumers []string) {
	if !o.keeps(c) {
		return
	}
	done, _ := c.PgConn().CustomData()[rehearsedKey].(map[rehearsed]bool)
	if done == nil {
		done = map[rehearsed]bool{}
		c.PgConn().CustomData()[rehearsedKey] = done
	}
	var steps []step
	once := func(per backend.Per, add func() []step) {
		if key := (rehearsed{o.schema.name, per}); !done[key] {
			done[key] = true
			steps = append(steps, add()...)
		}
	}
	once(0, func() []step { return o.acquisitions(ctx) })
	for _, name := range consumers {
		if per, ok := o.reads.Load(name); ok {
			once(per.(backend.Per), func() []step { return reads(ctx, per.(backend.Per)) })
		}
	}
	if len(steps) > 0 {
		_ = o.pipeline(ctx, c, steps...)
	}
}

// rehearse runs what the end of the session needs, and of one that leads by advisory locks its beginning.
func (s *session) rehearse(ctx context.Context) {
	_ = s.use(ctx, func(ctx context.Context, c *pgx.Conn) error {
		if !s.ss.keeps(c) {
			return nil
		}
		steps := append(s.ss.closing(ctx, "", []string{}), func(q *leasedb.Queries) error { return q.Unlock(ctx, []int64{}) })
		if s.spec.Advisory {
			steps = append(steps, s.ss.acquisitions(ctx)...)
		}
		_ = s.ss.pipeline(ctx, c, append(steps, hasty(ctx))...)
		return nil
	})
}

// keeps reports that a connection keeps the statements that it has run.
func (sv *server) keeps(c *pgx.Conn) bool {
	return !sv.pooled.Load() && c.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement
}

// acquisitions are steps that acquire no lease, for no session.
func (ss *sessions) acquisitions(ctx context.Context) (steps []step) {
	for range rehearsals {
		steps = append(steps, ss.acquiring(ctx, backend.AcquireRequest{}, &acquisition{})...)
	}
	return steps
}

// reads are steps that read no row of the log.
func reads(ctx context.Context, per backend.Per) []step {
	items, names, numbers := []int32{}, []string{}, []int64{}
	steady := steady(ctx)
	switch per {
	case backend.PerTopic:
		return []step{steady, func(q *leasedb.Queries) error {
			_, err := q.FetchTopics(ctx, leasedb.FetchTopicsParams{Items: items, Names: names, Positions: numbers, Limits: numbers})
			return err
		}}
	case backend.PerPartition:
		return []step{steady, func(q *leasedb.Queries) error {
			_, err := q.FetchSlots(ctx, leasedb.FetchSlotsParams{Items: items, Names: names, Positions: numbers, Limits: numbers, Likes: names})
			return err
		}}
	case backend.PerStream:
		return []step{steady, func(q *leasedb.Queries) error {
			_, err := q.FetchStreams(ctx, leasedb.FetchStreamsParams{Items: items, Names: names, Positions: numbers, Limits: numbers, Likes: names})
			return err
		}}
	}
	return []step{steady,
		func(q *leasedb.Queries) error {
			_, err := q.FetchAll(ctx, leasedb.FetchAllParams{Pos: math.MaxInt64, Max: 1})
			return err
		},
		func(q *leasedb.Queries) error {
			_, err := q.FetchLog(ctx, leasedb.FetchLogParams{Pos: math.MaxInt64, Upto: math.MaxInt64, Late: names, Likes: names, Max: 1})
			return err
		}}
}
