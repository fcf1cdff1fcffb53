package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// backoff spaces out the tries of a loop whose backend fails, and logs the first
// failure and then every tenth, not each.
type backoff struct{ failures int }

func (b *backoff) reset() { b.failures = 0 }

func (b *backoff) pause(ctx context.Context, log logger, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	if c := callerOf(ctx); c != nil && c.progress != nil {
		c.progress.failed(what, err)
	}
	if b.failures%10 == 0 {
		log.Warn(what+", trying again", "error", err, "failures", b.failures+1)
	}
	b.wait(ctx)
}

// wait is pause for failures that are logged elsewhere.
func (b *backoff) wait(ctx context.Context) {
	b.failures++
	d := min(20*time.Millisecond<<min(b.failures, 6), time.Second)
	pause(ctx, d/2+rand.N(d/2))
}

// shortLived counts sessions that ended soon, because no heartbeat was confirmed in time, since the last one that lived longer.
type shortLived struct{ sessions int }

// shortLife is how many TTLs a session lives at most that counts.
const shortLife = 4

// rest waits after the second of them, and twice as long after each further one: up to 8 TTLs, at most a minute. Opening sessions is
// work, for this machine and for the server. If all processes did it again at once, an overload would feed itself.
func (l *shortLived) rest(ctx context.Context, p *process, ended error, lived time.Duration) {
	if lived > shortLife*p.ttl {
		l.sessions = 0
	} else if errors.Is(ended, errUnconfirmed) {
		l.sessions++
	}
	if l.sessions < 2 || !errors.Is(ended, errUnconfirmed) {
		return
	}
	d := min(p.ttl/2<<min(l.sessions-2, 4), time.Minute)
	p.log.Warn("one session after the other is lost, since no heartbeat is confirmed in time; the next is opened later", "sessions", l.sessions, "after", d,
		"fix", "give the server or this machine more room, or the consumers a longer TTL")
	pause(ctx, d/2+rand.N(d/2))
}

type logger interface{ Warn(msg string, args ...any) }
