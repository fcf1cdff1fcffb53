package leasepg

import (
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// A session has more time to come back where its connections may have been ended, and not its process.
func TestGrace(t *testing.T) {
	t.Parallel()
	type look struct {
		gone, answers bool
		other         bool // another session is missing
		ends          int64
	}
	const ms = time.Millisecond
	held := look{ends: 3}
	after := time.Now().Add(time.Hour)
	calm, slow, stale := returns{20 * ms, 5 * ms, after}, returns{40 * ms, 16 * ms, after}, returns{20 * ms, 5 * ms, time.Time{}}
	for name, c := range map[string]struct {
		looks []look
		takes returns
		want  time.Duration
	}{
		"its process died":                        {[]look{held, {gone: true, answers: true, ends: 3}, {gone: true, ends: 3}}, calm, 30 * ms},
		"coming back is slow":                     {[]look{held, {gone: true, answers: true, ends: 3}, {gone: true, ends: 3}}, slow, 100 * ms},
		"coming back is very slow":                {[]look{held, {gone: true, answers: true, ends: 4}, {gone: true, ends: 4}}, returns{90 * ms, 30 * ms, after}, 190 * ms},
		"that is slow, and its process died":      {[]look{held, {gone: true, answers: true, ends: 3}, {gone: true, ends: 3}}, returns{90 * ms, 30 * ms, after}, 150 * ms},
		"that was tried out before":               {[]look{held, {gone: true, answers: true, ends: 3}, {gone: true, ends: 3}}, stale, 80 * ms},
		"a connection was ended":                  {[]look{held, {gone: true, answers: true, ends: 4}, {gone: true, ends: 4}}, calm, 80 * ms},
		"the server tells that late":              {[]look{held, {gone: true, answers: true, ends: 3}, {gone: true, ends: 5}}, calm, 80 * ms},
		"one was ended before":                    {[]look{{ends: 1}, held, {gone: true, answers: true, ends: 3}}, calm, 30 * ms},
		"the server counts anew":                  {[]look{held, {gone: true, answers: true}}, calm, 80 * ms},
		"the server does not count":               {[]look{{ends: -1}, {gone: true, answers: true, ends: -1}}, calm, 80 * ms},
		"it was not seen before":                  {[]look{{gone: true, answers: true, ends: 3}}, calm, 80 * ms},
		"another one is missing":                  {[]look{held, {gone: true, answers: true, other: true, ends: 3}}, calm, 80 * ms},
		"another one was missing":                 {[]look{held, {gone: true, answers: true, other: true, ends: 3}, {gone: true, ends: 3}}, calm, 80 * ms},
		"it was not there to answer":              {[]look{held, {gone: true, ends: 3}}, calm, graceAlone},
		"a connection was ended, and it was back": {[]look{held, {gone: true, answers: true, ends: 4}, {ends: 4}, {gone: true, answers: true, ends: 4}}, calm, 30 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := watcher{s: &session{ss: &sessions{}}}
			for _, l := range c.looks {
				around := []leasedb.LookAroundRow{{ID: "a", Key: 1, Gone: l.gone, Answers: l.answers}}
				if l.other {
					around = append(around, leasedb.LookAroundRow{ID: "b", Key: 2, Gone: true})
				}
				w.note(around, l.ends)
			}
			is := w.seen["a"]
			is.alone = is.lost // and not what this machine took between the looks
			if got := is.grace(c.takes); got != c.want {
				t.Errorf("it has %v to come back, want %v", got, c.want)
			}
			if is.broken != (is.still() < 0) {
				t.Errorf("with broken %v its end depends on the count %d", is.broken, is.still())
			}
		})
	}
}

// A look that takes long is followed by a rest that is as long, within limits.
func TestRestAfterALook(t *testing.T) {
	t.Parallel()
	const every = 400 * time.Millisecond
	for range 100 {
		if rest := restAfter(time.Millisecond, every); rest < every*95/100 || rest > every*106/100 {
			t.Fatalf("after a millisecond it rests for %v", rest)
		}
		if rest := restAfter(time.Second, every); rest != time.Second {
			t.Fatalf("after a second it rests for %v", rest)
		}
		if rest := restAfter(time.Minute, every); rest != restMost {
			t.Fatalf("after a minute it rests for %v", rest)
		}
	}
}
