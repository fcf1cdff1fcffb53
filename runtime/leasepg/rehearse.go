package leasepg

import (
	"context"
	"math"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// The first time that a connection runs a statement the server parses and plans it, and reads what it knows of the tables: a
// process that takes over has run none of the statements that this needs, and would spend most of a handover on that. So it runs
// each while there is time, in a way that finds no row.

// rehearsed marks a connection on which statements were run. They depend on the schema and, those that read, on what owns.
type rehearsed struct {
	schema string
	per    backend.Per
}

const rehearsedKey = "leasegen.rehearsed"

// rehearse runs what a takeover of the consumers needs, once on each connection, and releases that. The survey that calls it is
// answered before: its process rests the longer the longer a survey takes. A failure holds up no work: the connection is as it was,
// or broken, which its next use finds. One connection at a time is taken from the application.
func (o *owner) rehearse(ctx context.Context, c *pgxpool.Conn, consumers []string) {
	if !o.keeps(c.Conn()) || !o.rehearsing.CompareAndSwap(false, true) {
		c.Release()
		return
	}
	scenes := o.scenes(ctx, c.Conn(), consumers)
	if len(scenes) == 0 {
		o.rehearsing.Store(false)
		c.Release()
		return
	}
	go func() {
		defer o.rehearsing.Store(false)
		defer c.Release()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
		defer cancel()
		o.perform(ctx, c.Conn(), scenes)
	}()
}

// scenes are the transactions that a connection has not rehearsed yet.
func (o *owner) scenes(ctx context.Context, c *pgx.Conn, consumers []string) (scenes [][]step) {
	done, _ := c.PgConn().CustomData()[rehearsedKey].(map[rehearsed]bool)
	if done == nil {
		done = map[rehearsed]bool{}
		c.PgConn().CustomData()[rehearsedKey] = done
	}
	first := func(per backend.Per) bool {
		key := rehearsed{o.schema.name, per}
		was := done[key]
		done[key] = true
		return !was
	}
	if first(0) {
		scenes = append(scenes, o.emptyHanded(ctx, c))
	}
	for _, name := range consumers {
		if per, ok := o.reads.Load(name); ok && first(per.(backend.Per)) {
			scenes = append(scenes, reads(ctx, per.(backend.Per)))
		}
	}
	return scenes
}

// rehearse runs what the end of the session needs, and of one that leads by advisory locks its beginning.
func (s *session) rehearse(ctx context.Context) {
	_ = s.use(ctx, func(ctx context.Context, c *pgx.Conn) error {
		if !s.ss.keeps(c) {
			return nil
		}
		scenes := [][]step{append(s.ss.closing(ctx, "", []string{}), func(q *leasedb.Queries) error { return q.Unlock(ctx, []int64{}) }, hasty(ctx))}
		if s.spec.Advisory {
			scenes = append(scenes, s.ss.emptyHanded(ctx, c))
		}
		s.ss.perform(ctx, c, scenes)
		return nil
	})
}

// perform runs transactions until one fails. None waits long for a lock, or has one for long: takeovers need them.
func (sv *server) perform(ctx context.Context, c *pgx.Conn, scenes [][]step) {
	for _, steps := range scenes {
		steps = append([]step{func(q *leasedb.Queries) error { return q.Impatient(ctx) }}, steps...)
		if sv.pipeline(ctx, c, steps...) != nil {
			return
		}
	}
}

// keeps reports that a connection keeps the statements that it has run.
func (sv *server) keeps(c *pgx.Conn) bool {
	return !sv.pooled.Load() && c.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement
}

// emptyHanded acquires no lease, for no session. The attempt is the connection's own: others that rehearse are not waited for. Once
// is enough, since the plans are steady.
func (ss *sessions) emptyHanded(ctx context.Context, c *pgx.Conn) []step {
	req := backend.AcquireRequest{Attempt: strconv.Itoa(int(c.PgConn().PID()))}
	return ss.acquiring(ctx, req, &acquisition{})
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
