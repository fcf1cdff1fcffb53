package leaseredis

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/operate"
)

// shards is the lower layer of the backend: how a command or a script reaches the server, or the node of a cluster that has its
// tag, and what is done when that is not where the client believes. It knows tags, scripts and the shape of a namespace, and nothing
// of leases.
type shards struct {
	client    redis.UniversalClient
	namespace string
	log       *slog.Logger
	observer  operate.Observer
	wanted    shape // what the options say; zero fields leave it to what is stored, or to the defaults
	misuse    error // what is wrong with the client or the options
	owner     shardsOwner

	shaping sync.Mutex
	shaped  atomic.Pointer[shape]

	reloading sync.Mutex   // held by who reloads the topology
	reloaded  time.Time    // when that was last begun
	troubled  atomic.Int64 // when an error was last seen that may come from an old topology, Unix time in ns

	warned sync.Map // text → time.Time, see warn
}

// shardsOwner is the layer above, as the shards see it.
type shardsOwner interface {
	// clientClosed and namespaceGone follow calls that failed.
	clientClosed()
	namespaceGone()
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
// context's deadline only if the client was told to. What f would have returned is unknown then.
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
	d.look(err)
	var zero T
	return zero, fmt.Errorf("leaseredis: %s: %w", what, err)
}

// askTags asks for something under each tag, in one round trip to each node. What is not there is the zero value.
func askTags[T any, C interface{ Result() (T, error) }](ctx context.Context, d *shards, tags int, what string, queue func(pipe redis.Pipeliner, prefix string) C) ([]T, error) {
	cmds := make([]C, tags)
	err := d.pipelined(ctx, func(pipe redis.Pipeliner) {
		for tag := range cmds {
			cmds[tag] = queue(pipe, d.prefix(tag))
		}
	})
	if err != nil {
		return nil, err
	}
	out := make([]T, tags)
	for tag, c := range cmds {
		v, err := c.Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("leaseredis: read %s%s: %w", d.prefix(tag), what, err)
		}
		out[tag] = v
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
			d.look(c.Err())
		}
		return struct{}{}, nil
	})
	d.look(err)
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
// may not have heard of the change, or hang, and requests that wait tell nothing until then.
const troubleLasts = 3 * time.Second

// look asks for the cluster's topology, again and again for a while, after an error that may come from an
// old one. go-redis by itself goes on asking the node that died until its own timer fires, after a minute.
func (d *shards) look(err error) {
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
// cluster it does nothing.
func (d *shards) reload(ctx context.Context, cause error) error {
	c, ok := d.client.(*redis.ClusterClient)
	if !ok {
		return nil
	}
	clients := d.owner.ownClients()
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

// operatorPatience is for how long what an operator asked for is tried again while the cluster
// changes.
const operatorPatience = 10 * time.Second

// repeat calls f again while it fails for reasons that pass: the cluster's layout changes, a node
// fails over, the namespace is created again.
func (d *shards) repeat(ctx context.Context, f func() error) error {
	deadline := time.Now().Add(operatorPatience)
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := f()
		if err == nil || ctx.Err() != nil || !moved(err) && !errors.Is(err, errShape) || time.Now().Add(wait).After(deadline) {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// pages reads a sorted set by score from min on. Members with one score come together, however many these
// are. A member whose score rises between two pages may come twice.
func (d *shards) pages(ctx context.Context, key, min string, each func([]redis.Z) error) error {
	read := func(by redis.ZRangeBy) ([]redis.Z, error) {
		return ask(ctx, d, key, func(ctx context.Context) ([]redis.Z, error) {
			return d.client.ZRangeByScoreWithScores(ctx, key, &by).Result()
		})
	}
	for {
		page, err := read(redis.ZRangeBy{Min: min, Max: "+inf", Count: scoresPage})
		if err != nil || len(page) == 0 {
			return err
		}
		whole := len(page) < scoresPage
		if !whole { // the next page begins above the last score
			top := page[len(page)-1].Score
			at := strconv.FormatFloat(top, 'f', -1, 64)
			equal, err := read(redis.ZRangeBy{Min: at, Max: at})
			if err != nil {
				return err
			}
			page = append(slices.DeleteFunc(page, func(z redis.Z) bool { return z.Score == top }), equal...)
			min = "(" + at
		}
		if err := each(page); err != nil || whole {
			return err
		}
	}
}

// scanSet passes on the members of a set, page by page, each once.
func (d *shards) scanSet(ctx context.Context, key string, each func([]string) error) error {
	seen := map[string]bool{} // a scan may tell of one twice
	for at := uint64(0); ; {
		type page struct {
			names []string
			next  uint64
		}
		p, err := ask(ctx, d, key, func(ctx context.Context) (p page, err error) {
			p.names, p.next, err = d.client.SScan(ctx, key, at, "", leasePage).Result()
			return p, err
		})
		if err != nil {
			return err
		}
		names := slices.DeleteFunc(p.names, func(n string) bool {
			was := seen[n]
			seen[n] = true
			return was
		})
		for some := range slices.Chunk(names, leasePage) {
			if err := each(some); err != nil {
				return err
			}
		}
		if at = p.next; at == 0 {
			return nil
		}
	}
}

// ranked yields the members of a sorted set, page by page, the lowest first.
func (d *shards) ranked(ctx context.Context, key string) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		for from := int64(0); ; from += parkedPage {
			names, err := ask(ctx, d, key, func(ctx context.Context) ([]string, error) {
				return d.client.ZRange(ctx, key, from, from+parkedPage-1).Result()
			})
			if len(names) == 0 && err == nil || !yield(names, err) || err != nil || len(names) < parkedPage {
				return
			}
		}
	}
}
