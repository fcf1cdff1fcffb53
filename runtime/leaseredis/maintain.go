package leaseredis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	maintainToken  = time.Minute      // how long one replica keeps others from the housekeeping
	forgottenAfter = 24 * time.Hour   // how long a stream must have been without work to be forgotten
	sweepEvery     = 10 * time.Minute // how often such streams are looked for
	maintainStep   = 500              // what one script call deletes at most
)

// keeper keeps the namespace to its bounds.
type keeper struct {
	*catalog
	trimmer *trimmer
	ledger  *ledger
	maxDead int // see WithMaxDeadLetters
}

// Maintain trims the log, keeps dead letters and executed items to their bounds, and forgets
// sessions and streams that are gone. One replica at a time does it; for others there is no work
// to do.
func (k *keeper) Maintain(ctx context.Context, consumers []backend.ConsumerInfo) (operate.MaintainReport, error) {
	var r operate.MaintainReport
	fail := func(what string, err error) error { return fmt.Errorf("leaseredis: housekeeping: %s: %w", what, err) }
	sh, err := k.shape(ctx)
	if err != nil {
		return r, fail("prepare", err)
	}
	names := make([]string, len(consumers))
	for i, info := range consumers {
		names[i] = info.Name
	}
	release, err := k.takeToken(ctx, sh, names, "maintaining", maintainToken)
	if err != nil {
		return r, fail("take the token", err)
	}
	if release == nil {
		return r, nil
	}
	defer release()
	var errs []error // a failure does not keep the rest from being done
	add := func(n *int, what string) func(int, error) {
		return func(some int, err error) {
			*n += some
			if err != nil {
				errs = append(errs, fail(what, err))
			}
		}
	}
	add(&r.SegmentsDropped, "trim the log")(k.trimmer.trim(ctx, sh))
	add(&r.SessionsForgotten, "forget sessions")(k.forgetSessions(ctx, sh, names))
	for _, info := range consumers {
		if _, err := k.narrow(ctx, sh, info); err != nil {
			errs = append(errs, fail("drop patterns of "+info.Name, err))
		}
		if info.Keep > 0 {
			add(&r.DeadLettersExpired, "expire dead letters of "+info.Name)(k.expireDead(ctx, sh, info))
		}
		limit := info.Max
		if limit == 0 {
			limit = k.maxDead
		}
		if limit > 0 {
			dropped, err := k.boundDead(ctx, sh, info.Name, limit)
			add(&r.DeadLettersDropped, "bound dead letters of "+info.Name)(dropped, err)
			if dropped > 0 {
				k.log.Warn("dead letters were dropped, the oldest first: there are more than are kept",
					"consumer", info.Name, "dropped", dropped, "kept", limit)
			}
		}
		if info.OnceKeep > 0 {
			add(&r.OnceForgotten, "forget items of "+info.Name)(k.forgetItems(ctx, sh, info))
		}
		if info.Per == backend.PerStream {
			add(&r.StreamsForgotten, "forget streams of "+info.Name)(k.forgetStreams(ctx, sh, info))
		}
	}
	return r, errors.Join(errs...)
}

// takeToken takes a token of the namespace, where the consumers reach it, and returns how to give it back; nil when somebody else has it.
func (k *keeper) takeToken(ctx context.Context, sh *shape, consumers []string, name string, ttl time.Duration) (release func(), err error) {
	holder := newAttempt()
	tag := k.reach(sh, consumers...)[0]
	reply, err := k.run(ctx, tag, scripts.token, name, holder, ttl.Milliseconds())
	if err != nil || number(reply) == 0 {
		return nil, err
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		k.run(ctx, tag, scripts.token, name, holder, 0) // else it expires
	}, nil
}

// expireDead deletes dead letters that are older than they are kept.
func (k *keeper) expireDead(ctx context.Context, sh *shape, info backend.ConsumerInfo) (n int, err error) {
	err = k.everyTag(ctx, sh, []string{info.Name}, scripts.expiredead, func(v any) int {
		n += int(number(v))
		return int(number(v))
	}, info.Name, info.Keep.Microseconds())
	return n, err
}

// forgetItems forgets items that were executed, or given up on, before they are kept.
func (k *keeper) forgetItems(ctx context.Context, sh *shape, info backend.ConsumerInfo) (n int, err error) {
	for _, tag := range k.reach(sh, info.Name) {
		for kept := 0; ; {
			reply, err := k.run(ctx, tag, scripts.forgetonce, info.Name, info.OnceKeep.Microseconds(), kept, maintainStep)
			if err != nil {
				return n, err
			}
			page := list(reply)
			n += int(number(page[1]))
			dropped, running, err := k.dropEnded(ctx, sh, tag, info, list(page[2]))
			n += dropped
			if err != nil {
				return n, err
			}
			kept += running
			if number(page[0]) < maintainStep {
				break
			}
		}
	}
	return n, nil
}

// dropEnded forgets those items whose leases have ended, and says how many still run.
func (k *keeper) dropEnded(ctx context.Context, sh *shape, tag int, info backend.ConsumerInfo, begun []any) (dropped, running int, err error) {
	if len(begun) == 0 {
		return 0, 0, nil
	}
	items := make([]begunItem, len(begun))
	for i, v := range begun {
		v := list(v)
		items[i] = begunItem{text(v[0]), text(v[1]), text(v[2]), text(v[3])}
	}
	executing, err := k.ledger.executing(ctx, sh, info.Name, items)
	if err != nil {
		return 0, 0, err
	}
	args, n := []any{info.Name, 0}, 0
	for i, it := range items {
		if !executing[i] {
			args = append(args, it.item, it.session, it.resource, it.epoch)
			n++
		}
	}
	args[1] = n
	reply, err := k.run(ctx, tag, scripts.droponce, args...)
	if err != nil {
		return 0, 0, err
	}
	dropped = int(number(reply))
	return dropped, len(items) - dropped, nil
}

// forgetStreams drops streams that have been without work for long and of which no message is
// left. The epoch of one that comes again is higher: it is at least the time.
func (k *keeper) forgetStreams(ctx context.Context, sh *shape, info backend.ConsumerInfo) (n int, err error) {
	if release, err := k.takeToken(ctx, sh, []string{info.Name}, "swept:"+info.Name, sweepEvery); err != nil || release == nil {
		return 0, err
	}
	for _, tag := range k.reach(sh, info.Name) {
		choose := func(forget bool, names []string) ([]string, error) {
			args := []any{info.Name, forgottenAfter.Microseconds(), flag(forget)}
			reply, err := k.run(ctx, tag, scripts.forgetstreams, with(args, names...)...)
			return texts(reply), err
		}
		err := k.resources(ctx, tag, info.Name, "", func(names []string) error {
			idle, err := choose(false, names)
			if err != nil || len(idle) == 0 {
				return err
			}
			if idle, err = k.withoutMessages(ctx, sh, info, idle); err != nil || len(idle) == 0 {
				return err
			}
			gone, err := choose(true, idle)
			n += len(gone)
			return err
		})
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// withoutMessages returns the streams of which the log holds no message.
func (k *keeper) withoutMessages(ctx context.Context, sh *shape, info backend.ConsumerInfo, streams []string) ([]string, error) {
	type part struct{ stream, key string }
	var parts []part
	for _, name := range streams {
		for _, in := range k.inputsOf(sh, info, name) {
			parts = append(parts, part{name, in.key})
		}
	}
	lengths, err := askEach(ctx, k.shards, len(parts),
		func(pipe redis.Pipeliner, i int) *redis.IntCmd { return pipe.XLen(ctx, parts[i].key) },
		func(i int) string { return "count the messages of stream " + parts[i].stream })
	if err != nil {
		return nil, err
	}
	left := map[string]int64{}
	for i, n := range lengths {
		left[parts[i].stream] += n
	}
	return slices.DeleteFunc(streams, func(name string) bool { return left[name] > 0 }), nil
}
