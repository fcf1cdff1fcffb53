package leaseredis

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// The server sends whatever many entries of whatever size it is asked for, and knows no bound in bytes. So reads begin
// with few, and ask for no more than what those before let expect.
const (
	fetchBytes   = 16 << 20    // about as much is read at once, whatever the limit
	fetchUnread  = 2           // entries of a stream of which none was read yet; one tells that there are more
	fetchLeast   = 8           // of another, however many there were the last time
	fetchGrowth  = 4           // times as many as the last time, at most
	fetchUnknown = 512 << 10   // of an entry, before any was read
	fetchSmall   = 64 << 10    // and at least, of one in a stream of which none was
	fetchSmaller = 4 << 10     // where many such streams were read just now
	fetchTrust   = time.Second // how long that is so
	fetchStreams = 256         // such streams in a round, at least, before more entries of each are read; their entries in a Fetch's first
	sizesKept    = 50_000      // streams of a consumer whose sizes are remembered
)

// sizes are how large the entries of a consumer's streams are, as far as they were read.
type sizes struct {
	mu      sync.Mutex
	largest int64 // of late, of any stream; 0: none was read
	of      map[string]sized

	few int       // streams without a size that a round could read just now
	at  time.Time // when that was
}

// sized is one stream.
type sized struct {
	largest int64 // of late
	rows    int   // of the last read that found some
}

func (r *reader) sizesOf(consumer string) *sizes {
	v, _ := r.sizes.LoadOrStore(consumer, &sizes{of: map[string]sized{}})
	return v.(*sizes)
}

// ration is what one Fetch may still read.
type ration struct {
	left int64
	few  int  // streams without a size that one round may read
	read bool // some were, in this Fetch: what they let expect holds for its others
}

// ration begins a Fetch.
func (s *sizes) ration() *ration {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &ration{left: fetchBytes, few: fewOf(max(s.largest, fetchSmall))}
	switch {
	case s.largest == 0:
		r.few = fewOf(fetchUnknown)
	case time.Since(s.at) < fetchTrust:
		r.few = max(r.few, min(s.few, fewOf(max(s.largest, fetchSmaller))))
	}
	return r
}

// fewOf is how many streams a round may read of which no entry was, if entries are that large.
func fewOf(size int64) int { return int(max(fetchBytes/2/fetchUnread/size, 1)) }

// plan says how many of the items the next round reads, and how many entries of each.
func (r *ration) plan(items []*fetchedItem, s *sizes) int {
	if r.left <= 0 {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	reads, unread, fresh := 0, 0, 0
	for _, it := range items {
		reads += len(it.reads)
		for _, rd := range it.reads {
			if _, known := s.of[rd.key]; !known {
				unread++
			}
		}
	}
	share := r.left / int64(max(reads, 1))
	most := fetchUnread * r.few // entries of streams without a size
	first := fetchUnread        // of one: one read of some is less work than two of all
	if !r.read {
		most = min(most, fetchStreams) // their sizes may differ from those of the Fetch before
	} else if s.largest > 0 {
		first = min(max(most/max(min(unread, fetchStreams), 1), fetchUnread), fetchLeast)
	}
	expected := int64(0)
	full := func() bool { return fresh > most || expected > r.left }
	for i, it := range items {
		it.now = make([]*read, len(it.reads))
		begin, some := 0, false // some of those that were not read yet
		if it.divisible() {
			begin = rand.IntN(len(it.reads)) // none is always the last
			some = slices.ContainsFunc(it.reads, func(rd *read) bool { return !rd.begun })
		}
		for k := range it.reads {
			n := (begin + k) % len(it.reads)
			rd, left := it.reads[n], it.left(n)
			if left == 0 || some && rd.begun {
				continue
			}
			now := &read{key: rd.key, after: rd.after}
			if known, ok := s.of[rd.key]; ok {
				now.count = min(left, max(int(share/max(known.largest, 1)), fetchUnread), max(known.rows*fetchGrowth, fetchLeast))
				expected += int64(now.count) * known.largest
			} else {
				now.count = min(left, first)
				fresh += now.count
				expected += int64(now.count) * max(s.largest, 1<<10)
			}
			if it.divisible() && k > 0 && full() {
				return i + 1
			}
			it.now[n] = now
		}
		if i > 0 && full() {
			return i
		}
	}
	return len(items)
}

// spent notes what a round has read. One that found little in streams without a size lets the next read several times as
// many, also in the next Fetch if that comes soon.
func (r *ration) spent(items []*fetchedItem, s *sizes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bytes, found := s.weigh(items)
	r.read = r.read || found > 0
	r.left -= bytes
	found *= fetchGrowth
	switch now := time.Now(); {
	case bytes > fetchBytes/4:
		r.few, s.few = max(r.few/2, 1), 0
	case found >= s.few || now.Sub(s.at) > fetchTrust:
		s.few, s.at = found, now
		fallthrough
	default:
		r.few = min(max(r.few*2, found), fewOf(max(s.largest, fetchSmaller)))
	}
}

// weigh notes how large entries are, quickly when they grow and slowly when they shrink. It returns their sum, and how many streams
// have a size since. The caller holds s.mu.
func (s *sizes) weigh(items []*fetchedItem) (total int64, found int) {
	largest := int64(0)
	for _, it := range items {
		for _, r := range it.now {
			if r == nil || len(r.entries) == 0 {
				continue
			}
			most := int64(64)
			for _, e := range r.entries {
				total += int64(len(e.body))
				most = max(most, int64(len(e.body)))
			}
			if len(s.of) >= sizesKept {
				clear(s.of)
			}
			before, known := s.of[r.key]
			if !known {
				found++
			}
			s.of[r.key] = sized{largest: max(most, before.largest*3/4), rows: len(r.entries)}
			largest = max(largest, most)
		}
	}
	if largest > 0 {
		s.largest = max(largest, s.largest*3/4)
	}
	return total, found
}
