package leaseredis

import (
	"context"
	"fmt"
	"sync"

	"github.com/leasegen/leasegen/runtime/operate"
)

// The writer of a stream trims it, too, and may delete what was not read. Redis 7 counts the entries that it was ever
// given: those up to a position are that number less those behind it. When this rises by more than were read, some were deleted
// before they were. When it falls, the stream is another one than before, of which no entry was read.
//
// An older server does not count. There it is noticed when the first unread entry goes while none is read.

// streamReads is how far this process has read streams of applications.
type streamReads struct {
	mu sync.Mutex
	of map[[2]string]*streamRead // consumer, stream
}

type streamRead struct {
	at     position // read so far
	base   position // and from where on n entries were read
	n      int64
	known  bool  // passed is
	passed int64 // entries of the stream up to base, or deleted
	unread position
	again  bool // another stream has its name: it is read from its beginning
	stored string
}

// moved notes that n entries were read, from one position to another.
func (r *streamReads) moved(consumer, stream string, from, to position, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.of[[2]string{consumer, stream}]
	if s == nil {
		s = &streamRead{at: from, base: from}
		r.of[[2]string{consumer, stream}] = s
	}
	if s.at != from {
		*s = streamRead{at: from, base: from, again: s.again, stored: s.stored}
	}
	if to != from {
		s.unread = position{}
	}
	s.at, s.n = to, s.n+n
}

// begins reports, once, that a stream is to be read from its beginning.
func (r *streamReads) begins(consumer, stream string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.of[[2]string{consumer, stream}]
	if s == nil || !s.again {
		return false
	}
	delete(r.of, [2]string{consumer, stream})
	return true
}

// lostEntries is what was found out about a stream.
type lostEntries struct {
	n     int64 // entries deleted before they were read; -1: some
	again bool  // it is another stream
	store string
}

// verify compares what was read of a stream with what the server reports of it. before is what was stored of it, if the
// position is one that it was stored with.
func (r *streamReads) verify(consumer, stream string, info streamInfo, before func() (at position, passed int64, ok bool)) (out lostEntries) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.of[[2]string{consumer, stream}]
	if s == nil || !info.there || s.again {
		return out
	}
	if !s.known && info.counted {
		if at, passed, ok := before(); ok && at == s.base {
			s.known, s.passed = true, passed
		}
	}
	if s.known && info.counted && info.added < s.passed {
		s.again = true
		return lostEntries{again: true}
	}
	if s.at.compare(info.last) > 0 {
		return out // it was read on since
	}
	ahead := info.length == 0 || s.at.compare(info.top) >= 0
	behind := info.length > 0 && s.at.compare(info.first) < 0
	switch {
	case info.counted && (ahead || behind):
		passed := info.added
		if behind {
			passed -= info.length
		}
		if s.known && passed > s.passed+s.n {
			out.n = passed - s.passed - s.n
		}
		s.base, s.n, s.passed, s.known = s.at, 0, passed, true
	case behind && s.unread != (position{}) && info.first.compare(s.unread) > 0:
		out.n = -1
	}
	if behind {
		s.unread = info.first
	}
	if stored := fmt.Sprint(s.base.id(), " ", s.passed); s.known && stored != s.stored {
		s.stored, out.store = stored, stored
	}
	return out
}

// verify reports entries of streams that were deleted before they were read, and returns the streams that are to be read
// again. Its position is stored, for the next owner of the streams.
func (f *sourceFeed) verify(ctx context.Context, which []int, infos []streamInfo) (again []int) {
	cat, name := f.cat, f.info.Name
	sh, err := cat.shape(ctx)
	if err != nil {
		return nil // it is looked at again
	}
	key := cat.prefix(sh.tagOf(name)) + "reads:" + name
	for k, i := range which {
		stream := f.ins[i].name
		lost := cat.reads.verify(name, stream, infos[k], func() (at position, passed int64, ok bool) {
			stored, err := cat.hget(ctx, key, key, stream)
			var id string
			if err == nil {
				_, err = fmt.Sscan(stored, &id, &passed)
			}
			if err != nil {
				return position{}, 0, false
			}
			return parsePosition(id), passed, true
		})
		if lost.store != "" {
			// When this fails, the next owner does not notice what is lost until then.
			_, _ = ask(ctx, cat.shards, key, func(ctx context.Context) (int64, error) {
				return cat.client.HSet(ctx, key, stream, lost.store).Result()
			})
		}
		if lost.again {
			again = append(again, i)
		}
		if lost.n != 0 {
			cat.tellLost(name, stream, lost.n)
		}
	}
	return again
}

// tellLost says that entries were deleted before they were read.
func (st *streams) tellLost(consumer, stream string, n int64) {
	args := []any{"consumer", consumer, "stream", stream}
	if n > 0 {
		args = append(args, "entries", n)
	}
	st.log.Warn("leaseredis: entries of a stream were trimmed or deleted before they were read; let who writes it keep more", args...)
	if st.observer != nil {
		st.observer.Observe(operate.ObservedMissed{Consumer: consumer, Resource: stream, Messages: int(max(n, 0))})
	}
}
