package leasepg

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
	"github.com/leasegen/leasegen/runtime/operate"
)

// forgetAfter is how long ended sessions are kept, for people who look; restedFor how long
// streams without work are.
const (
	forgetAfter = time.Hour
	restedFor   = 24 * time.Hour
)

// Work that is done once for the whole fleet stays with the process that did it last; by another
// one when that has not done it for choreEvery, which is more than the runtime's pause.
const choreEvery = 75 * time.Second

const (
	dropsAtOnce   = 100
	heldBackLong  = time.Hour // a transaction that keeps the log from being shortened is reported from then on
	heldBackAgain = time.Hour
)

const (
	forgetRows   = 20_000 // items, ids and dead letters that are forgotten in one go
	countRows    = 10_000 // dead letters that one statement counts
	restingLooks = 100    // at streams that rest, in a transaction each
)

// resting is the lease after which the next look for streams to forget begins.
type resting struct {
	sync.Mutex
	consumer, resource string
}

// keeper does the housekeeping.
type keeper struct {
	*known
	id            string        // of this process, among those that share the schema
	heldBackAfter time.Duration // see heldBackLong
	heldBack      throttle
	resting       resting
}

// Maintain does the housekeeping. Replicas that race leave it to one.
func (k *keeper) Maintain(ctx context.Context, consumers []backend.ConsumerInfo) (operate.MaintainReport, error) {
	var r operate.MaintainReport
	mine := func(q *leasedb.Queries, chore string) (bool, error) {
		n, err := q.Chore(ctx, leasedb.ChoreParams{Name: chore, Process: k.id, Every: choreEvery})
		return n > 0, err
	}
	log := false // whether this process is the one that looks after the log
	var chores []backend.ConsumerInfo
	err := pgx.BeginFunc(ctx, k.pool, func(tx pgx.Tx) error {
		q := k.queries(tx)
		free, err := q.TryMaintain(ctx)
		if err != nil || !free {
			return err
		}
		if err := q.Steady(ctx); err != nil {
			return err
		}
		for _, c := range consumers {
			if own, err := mine(q, "consumer/"+c.Name); err != nil || !own {
				if err != nil {
					return err
				}
				continue
			}
			chores = append(chores, c)
			if c.Keep > 0 {
				n, err := q.ExpireDeadLetters(ctx, leasedb.ExpireDeadLettersParams{Consumer: c.Name, Keep: c.Keep, Max: forgetRows})
				if err != nil {
					return err
				}
				r.DeadLettersExpired += int(n)
			}
			if c.Max > 0 {
				n, err := boundDeadLetters(ctx, q, c)
				if err != nil {
					return err
				}
				r.DeadLettersDropped += n
			}
			if c.OnceKeep > 0 {
				n, err := q.ForgetOnce(ctx, leasedb.ForgetOnceParams{Consumer: c.Name, Keep: c.OnceKeep, Max: forgetRows})
				if err != nil {
					return err
				}
				r.OnceForgotten += int(n)
			}
		}
		if log, err = mine(q, "log"); err != nil || !log {
			return err
		}
		buried, err := q.BuryExpired(ctx) // those that owned no lease: no other process looks at them
		if err != nil {
			return err
		}
		if buried > 0 {
			if err := k.notify(ctx, wakeOwnership)(q); err != nil {
				return err
			}
		}
		ids, err := q.ForgetIDs(ctx, forgetRows)
		if err != nil {
			return err
		}
		r.IDsForgotten = int(ids)
		forgotten, err := q.ForgetSessions(ctx, forgetAfter)
		if err != nil {
			return err
		}
		r.SessionsForgotten = int(forgotten)
		end, err := q.LogEnd(ctx)
		if err != nil {
			return err
		}
		ahead, err := q.EnsureSegments(ctx, end.LastDrawn+segmentsAhead)
		if err != nil {
			return err
		}
		k.logEnd.Store(ahead)
		return nil
	})
	if err != nil {
		return r, k.fail("maintain", err)
	}
	for _, c := range consumers {
		if err := k.index(ctx, k.indexFor(c)); err != nil { // what was busy when the consumer was registered
			return r, k.fail("index the log for "+c.Name, err)
		}
	}
	for _, c := range chores {
		if err := k.narrow(ctx, c); err != nil {
			return r, k.fail("drop patterns of "+c.Name, err)
		}
	}
	if !log {
		return r, nil
	}
	// By themselves: registering streams, or reading the log, is not to wait for the rest.
	if r.StreamsForgotten, err = k.forgetStreams(ctx); err != nil {
		return r, k.fail("maintain", err)
	}
	for range dropsAtOnce { // in a transaction each
		dropped, err := k.queries(k.pool).DropSegments(ctx)
		if err != nil {
			return r, k.fail("maintain", err)
		}
		if dropped == 0 {
			break
		}
		r.SegmentsDropped += int(dropped)
	}
	if r.SegmentsDropped > 0 {
		begins, err := k.queries(k.pool).LogBegins(ctx)
		if err != nil {
			return r, k.fail("maintain", err)
		}
		k.log.Info("leasepg: dropped partitions of the log that every consumer has passed", "partitions", r.SegmentsDropped, "log_begins_at", begins)
	}
	return r, k.fail("maintain", k.tellHeldBack(ctx))
}

// boundDeadLetters drops dead letters, the oldest first, beyond as many as the consumer keeps.
func boundDeadLetters(ctx context.Context, q *leasedb.Queries, c backend.ConsumerInfo) (int, error) {
	before := int64(math.MaxInt64)
	for left := int64(c.Max); left > 0; left -= countRows {
		id, err := q.SkipDeadLetters(ctx, leasedb.SkipDeadLettersParams{Consumer: c.Name, Before: before, Number: min(left, countRows)})
		if err != nil || id == 0 {
			return 0, err
		}
		before = id
	}
	n, err := q.BoundDeadLetters(ctx, leasedb.BoundDeadLettersParams{Consumer: c.Name, Before: before, Max: forgetRows})
	return int(n), err
}

// forgetStreams forgets streams that have rested for long, and remembers where to go on the next time.
func (k *keeper) forgetStreams(ctx context.Context) (int, error) {
	if !k.resting.TryLock() {
		return 0, nil // another call is at it
	}
	defer k.resting.Unlock()
	forgotten := 0
	for range restingLooks {
		r, err := k.queries(k.pool).ForgetStreams(ctx, leasedb.ForgetStreamsParams{
			Older: restedFor, Consumer: k.resting.consumer, Resource: k.resting.resource})
		if err != nil {
			return forgotten, err
		}
		forgotten += int(r.Forgotten)
		if k.resting.consumer, k.resting.resource = r.Consumer, r.Resource; r.Consumer == "" {
			break
		}
	}
	return forgotten, nil
}

// HeldBack names the transaction that keeps the log from being shortened, and says for how long it has been open;
// it returns none for one that is not old. It may be in another database, which the operator of this one does not look at.
func (k *keeper) HeldBack(ctx context.Context) (transaction string, open time.Duration, err error) {
	h, err := k.queries(k.pool).HeldBack(ctx)
	if open = time.Duration(h.Seconds) * time.Second; err != nil || h.What == "" || open < k.heldBackAfter {
		return "", 0, k.fail("look for old transactions", err)
	}
	return h.What, open, nil
}

// tellHeldBack logs that, now and then.
func (k *keeper) tellHeldBack(ctx context.Context) error {
	transaction, open, err := k.HeldBack(ctx)
	if transaction != "" && k.heldBack.ready(time.Now(), heldBackAgain) {
		k.log.Warn("leasepg: the log cannot be shortened: an old transaction is open on the server; commit it or roll it back",
			"transaction", transaction, "open_for", open)
	}
	return err
}
