package lease

import (
	"context"
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

type logger interface{ Warn(msg string, args ...any) }
