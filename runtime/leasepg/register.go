package leasepg

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// likes translates topic patterns for LIKE.
func likes(patterns []string) []string {
	out := make([]string, len(patterns))
	for i, p := range patterns {
		out[i] = like(p)
	}
	return out
}

var likeEscapes = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`, `*`, `%`)

func like(pattern string) string { return likeEscapes.Replace(pattern) }

// Register makes resources known. When they are known already it only reads.
func (b *Backend) Register(ctx context.Context, c backend.ConsumerInfo, resources []string) error {
	if t := b.tables.of(c); t != nil {
		return b.fail("register resources of "+c.Name, b.registerTable(ctx, t, c, resources))
	}
	kind := kind{c.Name, c.Per}
	if _, ok := b.kinds.Load(kind); !ok {
		if _, err := b.checkKind(ctx, c.Name, c.Per.String(), ""); err != nil {
			return b.fail("register resources of "+c.Name, err)
		}
		b.kinds.Store(kind, struct{}{})
	}
	if err := b.index(ctx, b.indexFor(c)); err != nil {
		return b.fail("index the log for "+c.Name, err)
	}
	// First what may note the present as the consumer's start: see DescribeConsumer.
	shared := func(q *leasedb.Queries) error { return q.ShareTopics(ctx, c.Name) }
	var left []string // streams that others were changing
	steps := append([]step{durable(ctx), boundLocks(ctx), shared, b.describe(ctx, c)}, b.registering(ctx, c, resources, &left)...)
	var sweeps []*sweep
	if resources == nil {
		sweeps = b.sweeps(ctx, c)
	}
	for _, s := range sweeps { // where there is little, it becomes known with the consumer
		steps = append(steps, steady(ctx), s.part)
	}
	err := b.pipeline(ctx, b.pool, steps...)
	for pace := leftOverPause; err == nil && len(left) > 0; pace = min(2*pace, 10*leftOverPause) {
		select {
		case <-time.After(pace):
			err = b.pipeline(ctx, b.pool, durable(ctx), boundLocks(ctx), shared, b.wantStreams(ctx, c.Name, left, &left))
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	for _, s := range sweeps {
		for err == nil && s.next() {
			err = b.pipeline(ctx, b.pool, durable(ctx), boundLocks(ctx), shared, steady(ctx), s.part)
		}
	}
	return b.fail("register resources of "+c.Name, b.held(ctx, err, "leasegen.topics/"+c.Name))
}

// boundLocks keeps the transaction from waiting long for a lock that a stranger can hold.
func boundLocks(ctx context.Context) step {
	return func(q *leasedb.Queries) error { return q.BoundLocks(ctx) }
}

// sweepRows is how many topics or keys of the log one statement looks at.
const sweepRows = 100

// sweep makes known what is in the log, some of it at a time, each time in a transaction of its own.
type sweep struct {
	part        step
	first, last string // names that a part begins with, and ended with; last is empty at the end
}

func (s *sweep) next() bool {
	s.first = s.last + "\x01" // the next name there can be, by bytes
	return s.last != ""
}

func (b *Backend) sweeps(ctx context.Context, c backend.ConsumerInfo) []*sweep {
	switch {
	case c.Per == backend.PerTopic:
		s := &sweep{}
		s.part = func(q *leasedb.Queries) (err error) {
			s.last, err = q.RegisterTopics(ctx, leasedb.RegisterTopicsParams{Consumer: c.Name, First: s.first, Max: sweepRows})
			return err
		}
		return []*sweep{s}
	case c.Per != backend.PerStream || c.Announced: // only the application can name announced streams
		return nil
	}
	keys, parked := &sweep{}, &sweep{}
	keys.part = func(q *leasedb.Queries) error {
		r, err := q.SweepStreams(ctx, leasedb.SweepStreamsParams{
			Consumer: c.Name, First: keys.first, Max: sweepRows, Channel: b.schema.name, Payload: wakeWanted + c.Name,
		})
		keys.last = r.Last
		return err
	}
	if !b.byKey.done.Load() {
		keys.part = func(q *leasedb.Queries) error {
			return q.SweepUnindexed(ctx, leasedb.SweepUnindexedParams{Consumer: c.Name, Channel: b.schema.name, Payload: wakeWanted + c.Name})
		}
	}
	parked.part = func(q *leasedb.Queries) error {
		r, err := q.SweepParked(ctx, leasedb.SweepParkedParams{
			Consumer: c.Name, First: parked.first, Max: sweepRows, Channel: b.schema.name, Payload: wakeWanted + c.Name,
		})
		parked.last = r.Last
		return err
	}
	return []*sweep{keys, parked}
}

// kind is a consumer of the log that was found to be what it was before.
type kind struct {
	name string
	per  backend.Per
}

// checkKind refuses a consumer whose resources or cursors mean something else to one that had
// its name before, and tells whether there was one.
func (b *Backend) checkKind(ctx context.Context, name, per, source string) (known bool, err error) {
	had, err := b.queries(b.pool).ConsumerKind(ctx, name)
	whole := func(per string) bool { return per == backend.PerGroup.String() || per == backend.PerCluster.String() }
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, err
	case had.Source != source:
		return true, fmt.Errorf("consumer %s has read %s before and now reads %s: its cursors would pass over messages, or repeat them; "+
			"give the consumer another name", name, describeSource(had.Source), describeSource(source))
	case had.Per != per && !(whole(had.Per) && whole(per)):
		return true, fmt.Errorf("consumer %s has been per=%s before and now is per=%s: it would begin again, beside the leases that it had; "+
			"give the consumer another name", name, had.Per, per)
	}
	return true, nil
}

func (b *Backend) describe(ctx context.Context, c backend.ConsumerInfo) step {
	p := leasedb.DescribeConsumerParams{
		Name: c.Name, Per: c.Per.String(), Topics: sorted(c.Topics), Likes: likes(sorted(c.Topics)), Grace: c.Grace,
		Lock: c.Lock.String(), FromNow: c.From == backend.FromNow,
	}
	return func(q *leasedb.Queries) error { return q.DescribeConsumer(ctx, p) }
}

// leftOverPause is how long a row that others are changing is left to them.
const leftOverPause = 10 * time.Millisecond

// wantStreams makes streams wanted and returns in left those that others are changing.
func (b *Backend) wantStreams(ctx context.Context, consumer string, streams []string, left *[]string) step {
	return func(q *leasedb.Queries) error {
		r, err := q.RegisterStreams(ctx, leasedb.RegisterStreamsParams{
			Consumer: consumer, Resources: streams, Channel: b.schema.name, Payload: wakeWanted + consumer,
		})
		*left = r.LeftOver
		return err
	}
}

// registering is Register for one kind of resource.
func (b *Backend) registering(ctx context.Context, c backend.ConsumerInfo, resources []string, left *[]string) []step {
	switch c.Per {
	case backend.PerPartition:
		return []step{func(q *leasedb.Queries) error { _, err := q.RegisterSlots(ctx, c.Name); return err }}
	case backend.PerStream:
		if resources == nil {
			return nil // see sweeps
		}
		return []step{b.wantStreams(ctx, c.Name, resources, left)}
	case backend.PerTopic:
		if resources == nil {
			return nil // see sweeps
		}
	default:
		resources = []string{backend.Whole}
	}
	return []step{func(q *leasedb.Queries) error {
		_, err := q.RegisterResources(ctx, leasedb.RegisterResourcesParams{Consumer: c.Name, Resources: resources})
		return err
	}}
}

// logIndex is an index of the log that readers of one kind need, see index_log.
type logIndex struct {
	column string
	done   atomic.Bool
	tried  throttle
}

const (
	indexAgain       = 10 * time.Second
	lockNotAvailable = "55P03"
)

func (b *Backend) indexFor(c backend.ConsumerInfo) *logIndex {
	switch {
	case c.Source != nil || c.Announced:
	case c.Per == backend.PerPartition:
		return &b.bySlot
	case c.Per == backend.PerStream:
		return &b.byKey
	}
	return nil
}

// index makes sure that the log has the index that readers of slots and streams need. It
// does not insist: a partition of the log in which a transaction stays open is read slowly
// until a later try.
func (b *Backend) index(ctx context.Context, i *logIndex) error {
	if i == nil || i.done.Load() || !i.tried.ready(time.Now(), indexAgain) {
		return nil
	}
	q := b.queries(b.pool)
	for before := int32(math.MaxInt32); ; {
		done, err := q.LogIndexed(ctx, i.column)
		if done {
			i.done.Store(true)
		}
		if err != nil || done {
			return err
		}
		left, err := q.IndexLog(ctx, i.column)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == lockNotAvailable {
			err, left = nil, before // another replica is at it
		}
		switch {
		case err != nil:
			return err
		case left >= before:
			b.log.Warn("leasepg: a part of the log has no index by "+i.column+" yet: another replica makes it, or a transaction that wrote there is open; "+
				"until then it is read slowly", "again_in", indexAgain)
			return nil
		}
		before = left
	}
}
