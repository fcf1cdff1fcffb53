package leasepg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

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
func (o *owner) Register(ctx context.Context, c backend.ConsumerInfo, resources []string) error {
	if err := backend.CheckNames(c.Name); err != nil {
		return err
	}
	if t := o.tables.of(c); t != nil {
		return o.fail("register resources of "+c.Name, o.registerTable(ctx, t, c, resources))
	}
	if len(c.Topics) > 0 {
		o.reads.Store(c.Name, c.Per)
	}
	kind := kind{c.Name, c.Per}
	if _, ok := o.kinds.Load(kind); !ok {
		if _, err := o.checkKind(ctx, c.Name, c.Per.String(), ""); err != nil {
			return o.fail("register resources of "+c.Name, err)
		}
		o.kinds.Store(kind, struct{}{})
	}
	if err := o.index(ctx, o.indexFor(c)); err != nil {
		return o.fail("index the log for "+c.Name, err)
	}
	// First what may note the present as the consumer's start: see DescribeConsumer.
	shared := func(q *leasedb.Queries) error { return q.ShareTopics(ctx, c.Name) }
	var left []string // streams that others were changing
	steps := append([]step{durable(ctx), boundLocks(ctx), shared, o.describe(ctx, c)}, o.registering(ctx, c, resources, &left)...)
	var sweeps []*sweep
	if resources == nil {
		sweeps = o.sweeps(ctx, c)
	}
	for _, s := range sweeps { // where there is little, it becomes known with the consumer
		steps = append(steps, steady(ctx), s.part)
	}
	err := o.pipeline(ctx, o.pool, steps...)
	for pace := leftOverPause; err == nil && len(left) > 0; pace = min(2*pace, 10*leftOverPause) {
		select {
		case <-time.After(pace):
			err = o.pipeline(ctx, o.pool, durable(ctx), boundLocks(ctx), shared, o.wantStreams(ctx, c.Name, left, &left))
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	for _, s := range sweeps {
		for err == nil && s.next() {
			err = o.pipeline(ctx, o.pool, durable(ctx), boundLocks(ctx), shared, steady(ctx), s.part)
		}
	}
	return o.fail("register resources of "+c.Name, o.held(ctx, err, "leasegen.topics/"+c.Name))
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

func (o *owner) sweeps(ctx context.Context, c backend.ConsumerInfo) []*sweep {
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
			Consumer: c.Name, First: keys.first, Max: sweepRows, Channel: o.schema.name, Payload: wakeWanted + c.Name,
		})
		keys.last = r.Last
		return err
	}
	if !o.byKey.done.Load() {
		keys.part = func(q *leasedb.Queries) error {
			return q.SweepUnindexed(ctx, leasedb.SweepUnindexedParams{Consumer: c.Name, Channel: o.schema.name, Payload: wakeWanted + c.Name})
		}
	}
	parked.part = func(q *leasedb.Queries) error {
		r, err := q.SweepParked(ctx, leasedb.SweepParkedParams{
			Consumer: c.Name, First: parked.first, Max: sweepRows, Channel: o.schema.name, Payload: wakeWanted + c.Name,
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
func (o *owner) checkKind(ctx context.Context, name, per, source string) (known bool, err error) {
	had, err := o.queries(o.pool).ConsumerKind(ctx, name)
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
		return true, fmt.Errorf("consumer %s has been per=%s before and now is per=%s: existing leases and cursors would be ignored; "+
			"give the consumer another name", name, had.Per, per)
	}
	return true, nil
}

func (o *owner) describe(ctx context.Context, c backend.ConsumerInfo) step {
	p := leasedb.DescribeConsumerParams{
		Name: c.Name, Per: c.Per.String(), Topics: sorted(c.Topics), Likes: likes(sorted(c.Topics)), Grace: c.Grace,
		Lock: c.Lock.String(), FromNow: c.From == backend.FromNow,
	}
	return func(q *leasedb.Queries) error { return q.DescribeConsumer(ctx, p) }
}

// leftOverPause is how long a row that others are changing is left to them.
const leftOverPause = 10 * time.Millisecond

// wantStreams makes streams wanted and returns in left those that others are changing.
func (o *owner) wantStreams(ctx context.Context, consumer string, streams []string, left *[]string) step {
	return func(q *leasedb.Queries) error {
		r, err := q.RegisterStreams(ctx, leasedb.RegisterStreamsParams{
			Consumer: consumer, Resources: streams, Channel: o.schema.name, Payload: wakeWanted + consumer,
		})
		*left = r.LeftOver
		return err
	}
}

// registering is Register for one kind of resource.
func (o *owner) registering(ctx context.Context, c backend.ConsumerInfo, resources []string, left *[]string) []step {
	switch c.Per {
	case backend.PerPartition:
		return []step{func(q *leasedb.Queries) error { _, err := q.RegisterSlots(ctx, c.Name); return err }}
	case backend.PerStream:
		if resources == nil {
			return nil // see sweeps
		}
		return []step{o.wantStreams(ctx, c.Name, resources, left)}
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
