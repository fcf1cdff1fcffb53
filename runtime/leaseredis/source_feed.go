package leaseredis

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/lease"
)

const (
	sourceBlock    = 250 * time.Millisecond // of a read that waits, on one server
	sourcePatience = 12 * time.Second       // of the client for that, see ownClient
	sourceLeast    = 20 * time.Millisecond  // between reads that do not, right after news
	sourceMost     = time.Second            // and when nothing happens
	sourceVerify   = 5 * time.Second        // between looks for streams that have begun again
)

// sourceFeed watches the streams of applications that one consumer reads.
type sourceFeed struct {
	b    *Backend
	info lease.ConsumerInfo
	ins  []input
	own  redis.UniversalClient // for reads that wait; nil if they cannot
	at   []position            // told up to; of the goroutine that watches

	mu    sync.Mutex
	fresh map[string]bool
}

func newSourceFeed(b *Backend, info lease.ConsumerInfo, s *StreamSource) *sourceFeed {
	f := &sourceFeed{b: b, info: info, fresh: map[string]bool{}}
	for _, n := range s.Names {
		f.ins = append(f.ins, input{key: n, tag: -1, name: n})
	}
	f.at = make([]position, len(f.ins))
	return f
}

// take returns the streams with news since the last call.
func (f *sourceFeed) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for n := range f.fresh {
		out = append(out, n)
	}
	clear(f.fresh)
	return out
}

// add names a stream's resource in news.
func (f *sourceFeed) add(news *lease.News, stream string) {
	if news.Resources == nil {
		news.Resources = map[string][]string{}
	}
	if f.info.Per == lease.PerGroup {
		stream = lease.Whole
	}
	news.Resources[f.info.Name] = append(news.Resources[f.info.Name], stream)
}

// watch looks for news until ctx ends. What is there when it begins is news: telling too
// much costs a read, and a stream that cannot be looked at now is not forgotten.
func (f *sourceFeed) watch(ctx context.Context, signal func()) {
	if !f.b.clustered() { // the streams of a cluster are on many nodes
		if f.own = f.b.ownClient(sourcePatience); f.own != nil {
			defer f.own.Close()
		}
	}
	wait := sourceLeast
	verified := time.Now()
	for ctx.Err() == nil {
		began := time.Now()
		names, waited, err := f.poll(ctx)
		if err == nil && time.Since(verified) > sourceVerify {
			verified = time.Now()
			var again []int
			again, err = f.begunAgain(ctx)
			names = append(names, again...)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			f.b.look(err)
			f.b.warn("source "+f.info.Name, "looking for entries of streams failed, trying again", "consumer", f.info.Name, "error", err)
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
		pause := wait
		if waited && err == nil {
			pause = sourceLeast - time.Since(began)
		}
		if pause > 0 {
			t := time.NewTimer(pause)
			select {
			case <-t.C:
			case <-ctx.Done():
			}
			t.Stop()
		}
	}
}

// poll returns which streams have entries that were not told, and whether the server waited for some.
func (f *sourceFeed) poll(ctx context.Context) (names []int, waited bool, err error) {
	if f.own != nil {
		names, err = f.block(ctx)
		if err == nil {
			return names, true, f.tell(ctx, names)
		}
		if !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, false, err
		}
	}
	reads := make([]*read, len(f.ins))
	for i, in := range f.ins {
		reads[i] = &read{key: in.key, after: f.at[i], count: 1}
	}
	if err := f.b.readAll(ctx, reads); err != nil {
		return nil, false, err
	}
	for i, r := range reads {
		switch {
		case redis.HasErrorPrefix(r.err, "WRONGTYPE"):
			f.b.warn("type "+r.key, "a key that is to be a stream holds something else; it is read when it is one",
				"consumer", f.info.Name, "key", r.key)
		case r.err != nil:
			err = r.err
		case len(r.entries) > 0:
			names = append(names, i)
		}
	}
	if tellErr := f.tell(ctx, names); err == nil {
		err = tellErr
	}
	return names, false, err
}

// block reads all streams with one command that waits a little for entries.
func (f *sourceFeed) block(ctx context.Context) ([]int, error) {
	args := &redis.XReadArgs{Count: 1, Block: sourceBlock}
	for _, in := range f.ins {
		args.Streams = append(args.Streams, in.key)
	}
	for _, at := range f.at {
		args.Streams = append(args.Streams, at.id())
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

// tell notes that what streams hold now is told.
func (f *sourceFeed) tell(ctx context.Context, names []int) error {
	for _, i := range names {
		last, there, err := f.b.lastOf(ctx, f.ins[i].key)
		if err != nil {
			return err
		}
		if there {
			f.at[i] = last
		}
	}
	return nil
}

// begunAgain finds streams whose last id is below what was told.
func (f *sourceFeed) begunAgain(ctx context.Context) (names []int, err error) {
	for i, in := range f.ins {
		if f.at[i] == (position{}) {
			continue
		}
		last, there, err := f.b.lastOf(ctx, in.key)
		if redis.HasErrorPrefix(err, "WRONGTYPE") {
			continue
		}
		if err != nil {
			return names, err
		}
		if there && last.compare(f.at[i]) < 0 {
			f.at[i] = last
			names = append(names, i)
		}
	}
	return names, nil
}

// lastOf is the greatest id that a stream ever gave, and whether there is such a stream.
func (b *Backend) lastOf(ctx context.Context, key string) (last position, there bool, err error) {
	info, err := within(ctx, func(ctx context.Context) (*redis.XInfoStream, error) {
		return b.client.XInfoStream(ctx, key).Result()
	})
	switch {
	case err != nil && strings.Contains(err.Error(), "no such key"):
		return position{}, false, nil
	case err != nil:
		b.look(err)
		return position{}, false, err
	}
	return parsePosition(info.LastGeneratedID), true, nil
}

// present is the cursor behind all that an application's streams hold.
func (b *Backend) present(ctx context.Context, s *StreamSource) (cursor, error) {
	ins := make([]input, 0, len(s.Names))
	at := make([]position, 0, len(s.Names))
	for _, n := range s.Names {
		last, _, err := b.lastOf(ctx, n)
		if err != nil {
			return "", err
		}
		// The form with names serves resources of one stream and of all.
		ins, at = append(ins, input{key: n, tag: -1, name: n, shared: true}), append(at, last)
	}
	return cursorAt(ins, at), nil
}
