package leaseredis

import (
	"math/rand/v2"
	"slices"
	"sync"
)

// The server sends whatever many entries of whatever size it is asked for, and knows no bound in bytes. So reads begin
// with few, and ask for no more than what those before let expect.
const (
	fetchBytes   = 16 << 20  // about as much is read at once, whatever the limit
	fetchUnread  = 2         // entries of a stream of which none was read yet; one tells that there are more
	fetchLeast   = 8         // of another, however many there were the last time
	fetchGrowth  = 4         // times as many as the last time, at most
	fetchUnknown = 512 << 10 // of an entry, before any was read
	fetchSmall   = 64 << 10  // and at least, of one in a stream of which none was
	sizesKept    = 50_000    // streams of a consumer whose sizes are remembered
)

// sizes are how large the entries of a consumer's streams are, as far as they were read.
type sizes struct {
	mu      sync.Mutex
	largest int64 // of late, of any stream; 0: none was read
	of      map[string]sized
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
	few  int // streams without a size that one round may read
}

// few is how many streams without a size the first round may read.
func (s *sizes) few() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	guess := max(s.largest, fetchSmall)
	if s.largest == 0 {
		guess = fetchUnknown
	}
	return int(max(fetchBytes/2/fetchUnread/guess, 1))
}

// plan says how many of the items the next round reads, and how many entries of each.
func (r *ration) plan(items []*fetchedItem, s *sizes) int {
	if r.left <= 0 {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	reads := 0
	for _, it := range items {
		reads += len(it.reads)
	}
	share := r.left / int64(max(reads, 1))
	expected, fresh := int64(0), 0
	full := func() bool { return fresh > r.few || expected > r.left }
	for i, it := range items {
		it.now = make([]*read, len(it.reads))
		first, some := 0, false // some of those that were not read yet
		if it.divisible() {
			first = rand.IntN(len(it.reads)) // none is always the last
			some = slices.ContainsFunc(it.reads, func(rd *read) bool { return !rd.begun })
		}
		for k := range it.reads {
			n := (first + k) % len(it.reads)
			rd, left := it.reads[n], it.left(n)
			if left == 0 || some && rd.begun {
				continue
			}
			now := &read{key: rd.key, after: rd.after}
			if known, ok := s.of[rd.key]; ok {
				now.count = min(left, max(int(share/max(known.largest, 1)), fetchUnread), max(known.rows*fetchGrowth, fetchLeast))
				expected += int64(now.count) * known.largest
			} else {
				fresh++
				now.count = min(left, fetchUnread)
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

// spent takes what a round has read off the ration.
func (r *ration) spent(bytes int64) {
	r.left -= bytes
	if bytes <= fetchBytes/4 {
		r.few *= 2
	} else {
		r.few = max(r.few/2, 1)
	}
}

// weigh notes how large entries are, quickly when they grow and slowly when they shrink, and returns their sum.
func (s *sizes) weigh(items []*fetchedItem) (total int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	largest := int64(0)
	for _, it := range items {
		for _, r := range it.now {
			if r == nil || len(r.entries) == 0 {
				continue
			}
			most := int64(64)
			for _, e := range r.entries {
				n := int64(0)
				for _, d := range e.fields {
					n += int64(len(d.name) + len(d.value))
				}
				total += n
				most = max(most, n)
			}
			if len(s.of) >= sizesKept {
				clear(s.of)
			}
			s.of[r.key] = sized{largest: max(most, s.of[r.key].largest*3/4), rows: len(r.entries)}
			largest = max(largest, most)
		}
	}
	if largest > 0 {
		s.largest = max(largest, s.largest*3/4)
	}
	return total
}
