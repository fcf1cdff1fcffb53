package lease

import (
	"context"
	"time"
)

// One call of the backend is made for many resources, and any of them may be the one for
// which it fails or takes too long. After a failure its resources are asked for among fewer
// others, and in the end alone: the one at fault then fails by itself, waits by itself, and
// is given more time and asked for less, while the others go on.

const (
	// strainTime is how long a call for many resources may take at first.
	strainTime = 5 * time.Second
	// strainMost bounds what a call for one resource is given after it took too long.
	strainMost = 2 * time.Minute
	// restMost bounds the wait between two calls for a resource that fails by itself.
	restMost = time.Second
	// slowCall is how long a call may be under way before another is made beside it.
	slowCall = 200 * time.Millisecond
	// callsAtOnce bounds the calls of one kind under way for a consumer, and strainedAtOnce
	// those of them that are for a resource by itself.
	callsAtOnce    = 4
	strainedAtOnce = 2
)

// strain is what is known of a resource whose calls failed. Its zero value is no strain.
type strain struct {
	among    int           // to be asked for with at most so many in all; 0: no bound
	halvings uint          // of what is asked for at once
	time     time.Duration // for one call; 0: strainTime
	failures int           // in a row, by itself
	resting  bool          // waits by itself
}

// alone says that the resource is asked for by itself.
func (s *strain) alone() bool { return s.among == 1 }

func (s *strain) limit(n int) int { return max(n>>s.halvings, 1) }

func (s *strain) timeout() time.Duration {
	if s.time > 0 {
		return s.time
	}
	return strainTime
}

// failed notes that a call for n resources failed, perhaps because its time was over, and
// returns how long this one is to wait, which is 0 after calls for several.
func (s *strain) failed(n int, late bool) time.Duration {
	if n > 1 {
		s.among = max(n/8, 1)
		return 0
	}
	s.among = 1
	s.failures++
	if late {
		s.time = min(2*s.timeout(), strainMost)
		s.halvings = min(s.halvings+1, 16)
	}
	return min(50*time.Millisecond<<min(s.failures, 16), restMost)
}

// passed notes that a call succeeded that took d. The settings that made it succeed are kept until there is
// time to spare.
func (s *strain) passed(d time.Duration) {
	s.among, s.failures = 0, 0
	if s.halvings > 0 && d < s.timeout()/8 {
		s.halvings--
	}
	if s.halvings == 0 && d < strainTime/2 {
		s.time = 0
	}
	if s.time > strainTime {
		s.among = 1 // others would wait for it
	}
}

// together takes what one call is for from the head of a queue: at most so many, and none among more than it is to be
// asked for with. add appends one, unless it asks for no message.
func together(queue *[]*holding, most int, among func(*holding) int, add func([]*holding, *holding) []*holding) (hs []*holding) {
	for len(*queue) > 0 && len(hs) < most {
		if n := among((*queue)[0]); n > 0 {
			if len(hs) >= n {
				break
			}
			most = min(most, n)
		}
		hs = add(hs, pop(queue))
	}
	return hs
}

// endure logs now and then that a call for several resources failed, and spaces out the tries.
func endure(ctx context.Context, log logger, what string, failures int, err error) {
	failed := backoff{failures: failures}
	failed.pause(ctx, log, what, err)
}

// slots counts calls of one kind that are under way. Its user's lock guards it.
type slots struct {
	busy, strained int
	began          time.Time // when the last one was made
}

// free returns how long to wait until another call may be made, 0 for none; negative when it
// has to wait for one to end.
func (s *slots) free(now time.Time) time.Duration {
	switch {
	case s.busy == s.strained:
		return 0
	case s.busy-s.strained >= callsAtOnce-strainedAtOnce:
		return -1
	}
	return max(s.began.Add(slowCall).Sub(now), 0)
}

func (s *slots) freeAlone() bool { return s.strained < strainedAtOnce }

func (s *slots) begin(alone bool) {
	s.busy++
	if alone {
		s.strained++
	} else {
		s.began = time.Now()
	}
}

func (s *slots) end(alone bool) {
	s.busy--
	if alone {
		s.strained--
	}
}
