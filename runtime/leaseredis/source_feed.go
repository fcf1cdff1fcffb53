package leaseredis

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
)

const (
	sourceBlock    = 250 * time.Millisecond // of a read that waits, on one server
	sourcePatience = 12 * time.Second       // of the client for that, see ownClient
	sourceLeast    = 20 * time.Millisecond  // between reads that do not, right after news
	sourceMost     = time.Second            // and without news
	sourceVerify   = 5 * time.Second        // between looks whether a stream has begun again
	sourcePace     = 50 * time.Millisecond  // but so long for each, when they are very many
	sourceStale    = 2 * time.Second        // without a look, after which much may have come
)

// sourceFeed watches the streams of applications that one consumer reads, as far as this process holds them.
type sourceFeed struct {
	cat  *catalog
	info backend.ConsumerInfo
	ins  []input
	own  redis.UniversalClient // for reads that wait; nil if they cannot

	// Of the goroutine that watches.
	at      []position // told up to
	watched []bool     // at is known
	polled  time.Time  // when that was last looked at without a failure
	checked int        // the stream to look at next for whether it has begun again

	mu    sync.Mutex
	fresh map[string]bool
}

func newSourceFeed(cat *catalog, info backend.ConsumerInfo, s *StreamSource) *sourceFeed {
	n := len(s.Names)
	return &sourceFeed{
		cat: cat, info: info, ins: s.inputs(),
		at: make([]position, n), watched: make([]bool, n), fresh: map[string]bool{},
	}
}

// held lists the streams that this process may read: a process that takes one over reads it from its cursor.
func (f *sourceFeed) held() (which []int) {
	if f.info.Per == backend.PerGroup && !f.cat.holdings.has(f.info.Name, backend.Whole) {
		return nil
	}
	for i := range f.ins {
		if f.info.Per == backend.PerGroup || f.cat.holdings.has(f.info.Name, f.ins[i].name) {
			which = append(which, i)
		} else {
			f.watched[i] = false
		}
	}
	return which
}

// drain returns the streams with news since the last call.
func (f *sourceFeed) drain() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer clear(f.fresh)
	return slices.Collect(maps.Keys(f.fresh))
}

// add names a stream's resource in news.
func (f *sourceFeed) add(news *backend.News, stream string) {
	if f.info.Per == backend.PerGroup {
		stream = backend.Whole
	}
	news.Add(f.info.Name, stream)
}

// watch looks for news until ctx ends.
func (f *sourceFeed) watch(ctx context.Context, signal func()) {
	if !f.cat.clustered() { // the streams of a cluster are on many nodes
		if f.own = f.cat.ownClient(sourcePatience); f.own != nil {
			defer f.own.Close()
		}
	}
	wait := sourceLeast
	verified := time.Now()
	for ctx.Err() == nil {
		began := time.Now()
		which := f.held()
		if len(which) == 0 {
			if !pause(ctx, sourceBlock) {
				return
			}
			continue
		}
		names, waited, err := f.poll(ctx, which)
		if every := max(sourceVerify/time.Duration(len(which)), sourcePace); err == nil && time.Since(verified) > every {
			n := min(int(time.Since(verified)/every), len(which), describeKeys)
			verified = time.Now()
			var again []int
			again, err = f.begunAgain(ctx, which, n)
			names = append(names, again...)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			f.cat.reloadAfter(err)
			f.cat.warn("source "+f.info.Name, "looking for entries of streams failed, trying again", "consumer", f.info.Name, "error", err)
		}
		if len(names) > 0 {
			f.mu.Lock()
			for _, i := range names {
				f.fresh[f.ins[i].name] = true
			}
			f.mu.Unlock()
			signal()
			wait = sourceLeast
		} else {
			wait = min(wait*3/2, sourceMost)
		}
		rest := wait
		if waited && err == nil {
			rest = sourceLeast - time.Since(began)
		}
		if rest > 0 && !pause(ctx, rest) {
			return
		}
	}
}

// poll returns which streams have entries that were not told, and whether the server waited for some. An entry that
// brings news is sent whole, so where much may have come the streams are only described.
func (f *sourceFeed) poll(ctx context.Context, which []int) (names []int, waited bool, err error) {
	stale := time.Since(f.polled) > sourceStale
	var unknown, known []int
	for _, i := range which {
		if stale || !f.watched[i] {
			unknown = append(unknown, i)
		} else {
			known = append(known, i)
		}
	}
	if len(unknown) > 0 {
		if names, err = f.describe(ctx, unknown); err != nil {
			return nil, false, err
		}
	}
	if len(known) > 0 && len(names) == 0 {
		names, waited, err = f.follow(ctx, known)
	}
	if err == nil {
		f.polled = time.Now()
	}
	return names, waited, err
}

// follow asks for entries that follow the reported ones.
func (f *sourceFeed) follow(ctx context.Context, which []int) (names []int, waited bool, err error) {
	if f.own != nil {
		if names, err = f.block(ctx, which); err == nil {
			_, err = f.describe(ctx, names)
			return names, true, err
		}
		if !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, false, err
		}
	}
	reads := make([]*read, len(which))
	for k, i := range which {
		reads[k] = &read{key: f.ins[i].key, after: f.at[i], count: 1}
	}
	if err := f.cat.readAll(ctx, reads); err != nil {
		return nil, false, err
	}
	for k, r := range reads {
		switch {
		case redis.HasErrorPrefix(r.err, "WRONGTYPE"):
			f.cat.warnOther(f.info.Name, r.key)
		case r.err != nil:
			err = r.err
		case len(r.entries) > 0:
			names = append(names, which[k])
		}
	}
	if _, tellErr := f.describe(ctx, names); err == nil {
		err = tellErr
	}
	return names, false, err
}

// block reads streams with one command that waits a little for entries.
func (f *sourceFeed) block(ctx context.Context, which []int) ([]int, error) {
	args := &redis.XReadArgs{Count: 1, Block: sourceBlock}
	for _, i := range which {
		args.Streams = append(args.Streams, f.ins[i].key)
	}
	for _, i := range which {
		args.Streams = append(args.Streams, f.at[i].id())
	}
	streams, err := within(ctx, func(ctx context.Context) ([]redis.XStream, error) {
		return f.own.XRead(ctx, args).Result()
	})
	if err == redis.Nil {
		return nil, nil
	}
	var names []int
	for _, s := range streams {
		if i := slices.IndexFunc(f.ins, func(in input) bool { return in.key == s.Stream }); i >= 0 {
			names = append(names, i)
		}
	}
	return names, err
}

// describe notes that the present content of streams is reported, and returns those that have given an id that was not.
func (f *sourceFeed) describe(ctx context.Context, which []int) (news []int, err error) {
	if len(which) == 0 {
		return nil, nil
	}
	keys := make([]string, len(which))
	for k, i := range which {
		keys[k] = f.ins[i].key
	}
	infos, _, err := f.cat.describe(ctx, -1, keys)
	if err != nil {
		return nil, err
	}
	again := f.verify(ctx, which, infos)
	for k, i := range which {
		if infos[k].there {
			if !f.watched[i] || infos[k].last != f.at[i] {
				news = append(news, i)
			}
			f.at[i] = infos[k].last
		} else if infos[k].other {
			f.cat.warnOther(f.info.Name, keys[k])
		}
		f.watched[i] = true
	}
	return append(news, again...), nil
}

// begunAgain looks at the next n streams for whether their last ids are others than were reported: smaller ones.
func (f *sourceFeed) begunAgain(ctx context.Context, which []int, n int) ([]int, error) {
	var some []int
	for range n {
		f.checked = (f.checked + 1) % len(which)
		some = append(some, which[f.checked])
	}
	return f.describe(ctx, some) // a smaller id is another one, too
}

// present is the cursor behind all that an application's streams hold.
func (st *streams) present(ctx context.Context, s *StreamSource) (cursor, error) {
	infos, _, err := st.describe(ctx, -1, s.Names)
	if err != nil {
		return "", err
	}
	at := make([]position, len(infos))
	for i, info := range infos {
		at[i] = info.last
	}
	return cursorAt(s.inputs(), at), nil // the form with names serves resources of one stream and of all
}
