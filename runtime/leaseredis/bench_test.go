package leaseredis_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// The times that 40,000 leases take, the target for each being a second, and the longest
// that the server was busy with one script:
//
//	go test -run - -bench Leases -benchtime 1x ./runtime/leaseredis
func BenchmarkLeases(b *testing.B) {
	const n = 40_000
	for _, tags := range []int{1, 8} {
		b.Run(fmt.Sprintf("tags=%d", tags), func(b *testing.B) {
			ctx := context.Background()
			c := redistest.Start(b, redistest.Config("slowlog-log-slower-than", "5000"), redistest.Config("slowlog-max-len", "1000")).Client(b)
			took := map[string]time.Duration{}
			timed := func(what string, f func()) {
				began := time.Now()
				f()
				took[what] += time.Since(began)
			}
			for range b.N {
				be := on(c, redistest.Namespace(b), leaseredis.WithTags(tags))
				topics := topicNames(n)
				register := func() { ok(b, be.Register(ctx, topical, topics)) }
				timed("register", register)
				timed("register-again", register)
				var gs []backend.Grant
				take := func(session string) func() {
					return func() {
						gs = acquire(b, be, session, topical, n)
						equal(b, "granted", len(gs), n)
					}
				}
				dead, _ := member(b, be, 3*time.Second, topical)
				timed("acquire", take(dead))
				next, s := member(b, be, time.Hour, topical)
				eventually(b, "the session expires", func() bool { return survey(b, be, topical).Free == n })
				timed("survey", func() { survey(b, be, topical) })
				timed("take-over", take(next))
				timed("release", func() { ok(b, be.Release(ctx, next, topical.Name, refs(gs))) })
				take(next)()
				timed("close", func() { ok(b, s.Close(ctx)) })
			}
			for what, d := range took {
				b.ReportMetric(float64(d.Microseconds())/1000/float64(b.N), what+"-ms")
			}
			var longest time.Duration
			for _, l := range must[[]redis.SlowLog](b)(c.SlowLogGet(ctx, 1000).Result()) {
				longest = max(longest, l.Duration)
			}
			b.ReportMetric(float64(longest.Microseconds())/1000, "longest-script-ms")
		})
	}
}
