package leaseredis_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
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
				topics := kit.Topics(n)
				register := func() { kit.OK(b, be.Register(ctx, topical, topics)) }
				timed("register", register)
				timed("register-again", register)
				var gs []backend.Grant
				take := func(session string) func() {
					return func() {
						gs = kit.Acting(b, be, session, topical).Acquires(n)
						kit.Equal(b, "granted", len(gs), n)
					}
				}
				dead := kit.Join(b, be, topical, 3*time.Second)
				timed("acquire", take(dead.ID))
				next := kit.Join(b, be, topical, time.Hour)
				kit.Eventually(b, "the session expires", func() bool { return survey(b, be, topical).Free == n })
				timed("survey", func() { survey(b, be, topical) })
				timed("take-over", take(next.ID))
				timed("release", func() { kit.OK(b, be.Release(ctx, next.ID, topical.Name, kit.Refs(gs))) })
				take(next.ID)()
				timed("close", func() { kit.OK(b, next.Session.Close(ctx)) })
			}
			for what, d := range took {
				b.ReportMetric(float64(d.Microseconds())/1000/float64(b.N), what+"-ms")
			}
			var longest time.Duration
			for _, l := range kit.Must[[]redis.SlowLog](b)(c.SlowLogGet(ctx, 1000).Result()) {
				longest = max(longest, l.Duration)
			}
			b.ReportMetric(float64(longest.Microseconds())/1000, "longest-script-ms")
		})
	}
}
