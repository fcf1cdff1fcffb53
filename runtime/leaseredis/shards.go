package leaseredis

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/operate"
)

// shards is the lower layer of the backend: how a command or a script reaches the server, or the node of a cluster that has its
// tag, and what is done when that is not where the client believes. It knows tags, scripts and the shape of a namespace, and no
// leases.
type shards struct {
	client    redis.UniversalClient
	namespace string
	log       *slog.Logger
	observer  operate.Observer
	wanted    shape // what the options say; zero fields leave it to what is stored, or to the defaults
	misuse    error // what is wrong with the client or the options
	above     shardsUser

	shaping sync.Mutex
	shaped  atomic.Pointer[shape]

	reloading sync.Mutex   // held by who reloads the topology
	reloaded  time.Time    // when that was last begun
	troubled  atomic.Int64 // when an error was last seen that may come from an old topology, Unix time in ns

	warned sync.Map // text → time.Time, see warn
}

// shardsUser is the layer above, as the shards see it.
type shardsUser interface {
	// clientClosed and namespaceGone follow calls that failed.
	clientClosed()
	namespaceGone()
	// sessionsChanged follows the hint that a session came or went.
	sessionsChanged()
	// ownClients are the cluster's clients that the application has not made.
	ownClients() []*redis.ClusterClient
}

// clustered reports that the client is one of a cluster.
func (d *shards) clustered() bool {
	_, ok := d.client.(*redis.ClusterClient)
	return ok
}

// prefix is what all keys of a tag begin with.
func (d *shards) prefix(tag int) string { return "{" + d.namespace + strconv.Itoa(tag) + "}:" }

// keys are what every script declares. The first is always there and the second never: while
// a cluster moves the slot of a tag from one node to another, a script that declares both is
// refused whole (TRYAGAIN), on the old node and on the new. Without that it would stop
// in the middle at the first key that has moved already.
func (d *shards) keys(tag int) []string {
	p := d.prefix(tag)
	return []string{p + "meta", p + "none"}
}

// within runs f, which does network calls, but returns when ctx ends: go-redis looks at a
// context's deadline only if the client is set to. The result of f is unknown then.
func within[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f(ctx)
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		var zero T
		return zero, ctx.Err()
	}
}

// ask makes one call of the server about what, a key. redis.Nil is no error, and the zero value.
func ask[T any](ctx context.Context, d *shards, what string, f func(context.Context) (T, error)) (T, error) {
	v, err := within(ctx, f)
	if err == nil || errors.Is(err, redis.Nil) {
		return v, nil
	}
	d.reloadAfter(err)
	var zero T
	return zero, fmt.Errorf("leaseredis: %s: %w", what, err)
}

// hget reads a field of a hash; empty when it is not there.
func (d *shards) hget(ctx context.Context, what, key, field string) (string, error) {
	return ask(ctx, d, what, func(ctx context.Context) (string, error) { return d.client.HGet(ctx, key, field).Result() })
}

// result is a command whose answer is a T.
type result[T any] interface{ Result() (T, error) }

// askTags asks for something under each tag, in one round trip to each node. A missing one is the zero value.
func askTags[T any, C result[T]](ctx context.Context, d *shards, tags int, what string,
	queue func(pipe redis.Pipeliner, prefix string) C) ([]T, error) {
	return askEach(ctx, d, tags, func(pipe redis.Pipeliner, tag int) C { return queue(pipe, d.prefix(tag)) },
		func(tag int) string { return "leaseredis: read " + d.prefix(tag) + what })
}

// askEach asks for n things in one round trip to each node. A missing one is the zero value; doing says what failed.
func askEach[T any, C result[T]](ctx context.Context, d *shards, n int,
	queue func(pipe redis.Pipeliner, i int) C, doing func(i int) string) ([]T, error) {
	cmds := make([]C, n)
	err := d.pipelined(ctx, func(pipe redis.Pipeliner) {
		for i := range cmds {
			cmds[i] = queue(pipe, i)
		}
	})
	if err != nil {
		return nil, err
	}
	out := make([]T, n)
	for i, c := range cmds {
		if out[i], err = c.Result(); err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("%s: %w", doing(i), err)
		}
	}
	return out, nil
}

// pipelined sends plain commands in one round trip to each node. Each has its own error;
// what is returned is that ctx has ended.
func (d *shards) pipelined(ctx context.Context, queue func(redis.Pipeliner)) error {
	ctx, cancel := d.patient(ctx, 1)
	defer cancel()
	_, err := within(ctx, func(ctx context.Context) (struct{}, error) {
		pipe := d.client.Pipeline()
		queue(pipe)
		cmds, _ := pipe.Exec(ctx) // each command has its own error
		for _, c := range cmds {
			d.reloadAfter(c.Err())
		}
		return struct{}{}, nil
	})
	d.reloadAfter(err)
	return err
}

// patient bounds a request to a cluster by the client's ReadTimeout, so that it is soon made again, where
// the topology says by then: go-redis itself asks a node that hangs up to four times, for so long
// each. The outcome is unknown, as with every lost reply.
func (d *shards) patient(ctx context.Context, rounds int) (context.Context, context.CancelFunc) {
	if c, ok := d.client.(*redis.ClusterClient); ok && c.Options().ReadTimeout > 0 {
		return context.WithTimeout(ctx, time.Duration(rounds)*c.Options().ReadTimeout)
	}
	return ctx, func() {}
}

// reloadEvery is how often the topology is asked for at most.
const reloadEvery = 500 * time.Millisecond

// troubleLasts is how long after the last error the topology is asked for: who is asked first
// may not have heard of the change, or hang, and requests that wait bring no error until then.
const troubleLasts = 3 * time.Second

// reloadAfter asks for the cluster's topology, again and again for a while, after an error that may come from an
// old one. go-redis by itself goes on asking the node that died until its own timer fires, after a minute.
func (d *shards) reloadAfter(err error) {
	if !moved(err) || !d.clustered() {
		return
	}
	d.troubled.Store(time.Now().UnixNano())
	if !d.reloading.TryLock() {
		return
	}
	go func() {
		defer d.reloading.Unlock()
		for wait := reloadEvery - time.Since(d.reloaded); ; wait = reloadEvery {
			time.Sleep(wait)
			d.reloaded = time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			again := d.reload(ctx, err)
			cancel()
			if errors.Is(again, redis.ErrClosed) || time.Since(time.Unix(0, d.troubled.Load())) > troubleLasts {
				return
			}
		}
	}()
}

// reload asks the cluster for its present topology, after an error that a change of it may have caused. Without a
// cluster it has no effect.
func (d *shards) reload(ctx context.Context, cause error) error {
	c, ok := d.client.(*redis.ClusterClient)
	if !ok {
		return nil
	}
	clients := d.above.ownClients()
	_, err := within(ctx, func(ctx context.Context) (struct{}, error) {
		c.ReloadState(ctx)
		for _, own := range clients {
			own.ReloadState(ctx)
		}
		return struct{}{}, nil
	})
	if d.observer != nil {
		d.observer.Observe(operate.ObservedTopology{Cause: cause, Err: err})
	}
	if err != nil {
		return fmt.Errorf("leaseredis: ask for the cluster's topology: %w", err)
	}
	return nil
}

// patience is for how long a call is tried again, after its first failure, while the cluster changes.
const patience = 10 * time.Second

// repeat calls f again while it fails for reasons that pass: the cluster's layout changes, a node
// fails over, the namespace is created again, a view is filled.
func (d *shards) repeat(ctx context.Context, f func() error) error {
	var began time.Time
	for tries := 1; ; tries++ {
		err := f()
		if began.IsZero() {
			began = time.Now()
		}
		if err == nil || ctx.Err() != nil || time.Since(began) > patience ||
			!moved(err) && !errors.Is(err, errShape) && !strings.Contains(err.Error(), onHold) {
			return err
		}
		wait := min(10*time.Millisecond<<min(tries, 6), 500*time.Millisecond)
		if !pause(ctx, wait/2+rand.N(wait/2)) {
			return err
		}
	}
}

// repeated is repeat for what an operator asks for.
func repeated[T any](ctx context.Context, d *shards, doing string, f func() (T, error)) (v T, err error) {
	err = d.repeat(ctx, func() (err error) {
		v, err = f()
		return err
	})
	if err != nil {
		var zero T
		return zero, fmt.Errorf("leaseredis: %s: %w", doing, err)
	}
	return v, nil
}

// pages yields the members of a sorted set by score from min on. Members with one score come together, however many
// these are. A member whose score rises between two pages may come twice.
func (d *shards) pages(ctx context.Context, key, min string) iter.Seq2[[]string, error] {
	read := func(by redis.ZRangeBy) ([]redis.Z, error) {
		return ask(ctx, d, key, func(ctx context.Context) ([]redis.Z, error) {
			return d.client.ZRangeByScoreWithScores(ctx, key, &by).Result()
		})
	}
	return func(yield func([]string, error) bool) {
		from := min
		for whole := false; !whole; {
			page, err := read(redis.ZRangeBy{Min: from, Max: "+inf", Count: scoresPage})
			if whole = len(page) < scoresPage; !whole { // the next page begins above the last score
				top := page[len(page)-1].Score
				at := strconv.FormatFloat(top, 'f', -1, 64)
				var equal []redis.Z
				equal, err = read(redis.ZRangeBy{Min: at, Max: at})
				page = append(slices.DeleteFunc(page, func(z redis.Z) bool { return z.Score == top }), equal...)
				from = "(" + at
			}
			names := make([]string, len(page))
			for i, z := range page {
				names[i] = z.Member.(string)
			}
			if len(names) == 0 && err == nil || !yield(names, err) || err != nil {
				return
			}
		}
	}
}

// scan returns all that a scan of a key finds, in pages of the size that it was begun with. It may find one twice.
func (d *shards) scan(ctx context.Context, key string, begin func(context.Context) *redis.ScanCmd) ([]string, error) {
	return ask(ctx, d, key, func(ctx context.Context) (all []string, err error) {
		it := begin(ctx).Iterator()
		for it.Next(ctx) {
			all = append(all, it.Val())
		}
		return all, it.Err()
	})
}

// members returns the members of a set.
func (d *shards) members(ctx context.Context, key string) ([]string, error) {
	names, err := d.scan(ctx, key, func(ctx context.Context) *redis.ScanCmd { return d.client.SScan(ctx, key, 0, "", leasePage) })
	slices.Sort(names)
	return slices.Compact(names), err
}

// scanned calls each with the members of a sorted set, part by part, each with the cursor that it was read with.
func (d *shards) scanned(ctx context.Context, key string, from uint64, each func(cursor uint64, names []string) (bool, error)) error {
	for {
		type page struct {
			names []string
			next  uint64
		}
		var p page
		if err := d.repeat(ctx, func() (err error) {
			p, err = ask(ctx, d, key, func(ctx context.Context) (p page, err error) {
				p.names, p.next, err = d.client.ZScan(ctx, key, from, "", scanPart).Result()
				return p, err
			})
			return err
		}); err != nil {
			return err
		}
		var names []string
		for i := 0; i < len(p.names); i += 2 { // each with its score
			names = append(names, p.names[i])
		}
		slices.Sort(names)
		if more, err := each(from, slices.Compact(names)); !more || err != nil || p.next == 0 {
			return err
		}
		from = p.next
	}
}

// scanPart is about how many members of a sorted set come at once, of one with more than 128.
const scanPart = 50
