package leasepg_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
)

const manyLeases = 40_000

// BenchmarkAcquire40k takes 40,000 free leases in one call; TakeOver40k those of a
// session that died. The bar is one second each.
func BenchmarkAcquire40k(b *testing.B) {
	be, pool := migrated(b)
	kit.OK(b, be.Register(b.Context(), topical, kit.Topics(manyLeases)))
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		id := kit.Join(b, be, topical, time.Hour)
		b.StartTimer()
		kit.Equal(b, "acquired", len(id.Acquires(manyLeases)), manyLeases)
		b.StopTimer()
		kit.OK(b, id.Session.Close(b.Context()))
		exec(b, pool, "VACUUM leasegen.lease")
		b.StartTimer()
	}
}

func BenchmarkTakeOver40k(b *testing.B) {
	be, pool := migrated(b)
	kit.OK(b, be.Register(b.Context(), topical, kit.Topics(manyLeases)))
	owner := kit.Join(b, be, topical, time.Hour)
	owner.Acquires(manyLeases)
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		id := kit.Join(b, be, topical, time.Hour)
		expire(b, pool, owner.ID)
		exec(b, pool, "VACUUM leasegen.lease")
		b.StartTimer()
		kit.Equal(b, "taken over", len(id.Acquires(manyLeases)), manyLeases)
		owner.ID = id.ID
	}
}

// BenchmarkSurvey40k is what a standby does about once a second.
func BenchmarkSurvey40k(b *testing.B) {
	be, _ := migrated(b)
	kit.OK(b, be.Register(b.Context(), topical, kit.Topics(manyLeases)))
	id := kit.Join(b, be, topical, time.Hour)
	id.Acquires(manyLeases)
	for b.Loop() {
		s := kit.Must[[]backend.Survey](b)(be.Survey(b.Context(), []string{topical.Name}))
		kit.Equal(b, "owned", s[0].Members[0].Owned, manyLeases)
	}
}

// BenchmarkDrain reads and commits a backlog 500 messages at a time: through the whole
// runtime with a handler that returns at once, through the backend's methods alone, and as a
// bare pgx loop would, and reports the ratios to that. The bar is 0.6.
func BenchmarkDrain(b *testing.B) {
	const backlog, batch = 500_000, 500
	be, pool := migrated(b)
	for range backlog / 10_000 {
		kit.OK(b, be.Publish(b.Context(), kit.Events("orders", 10_000)))
	}
	exec(b, pool, "CREATE TABLE cursor (name text PRIMARY KEY, pos bigint NOT NULL)")
	exec(b, pool, "VACUUM ANALYZE leasegen.message")
	bare := func() float64 {
		exec(b, pool, "INSERT INTO cursor VALUES ('bare', 0) ON CONFLICT (name) DO UPDATE SET pos = 0")
		start, n, pos := time.Now(), 0, int64(0)
		for {
			rows, err := pool.Query(b.Context(),
				"SELECT id, topic, key, kind, payload, published_at FROM leasegen.message WHERE id > $1 ORDER BY id LIMIT $2", pos, batch)
			kit.OK(b, err)
			got := 0
			for rows.Next() {
				var topic, key, kind string
				var payload []byte
				var at time.Time
				kit.OK(b, rows.Scan(&pos, &topic, &key, &kind, &payload, &at))
				got++
			}
			kit.OK(b, rows.Err())
			if got == 0 {
				break
			}
			exec(b, pool, "UPDATE cursor SET pos = $1 WHERE name = 'bare'", pos)
			n += got
		}
		kit.Equal(b, "read by the bare loop", n, backlog)
		return backlog / time.Since(start).Seconds()
	}
	run := 0
	ours := func(c backend.ConsumerInfo, resource string) float64 {
		run++
		c.Name = fmt.Sprint(c.Name, run)
		session, g := kit.Sole(b, be, c, resource)
		start, n, at := time.Now(), 0, g.Cursor
		for {
			f := kit.Fetch(b, be, c, resource, at, batch)
			if len(f.Messages) == 0 {
				break
			}
			n += len(f.Messages)
			at = f.Next
			fenced, err := be.Commit(b.Context(), session.ID, c.Name, []backend.Progress{{Ref: g.Ref, Cursor: at}})
			kit.OK(b, err)
			kit.Equal(b, "fenced", len(fenced), 0)
		}
		kit.Equal(b, "read", n, backlog)
		return backlog / time.Since(start).Seconds()
	}
	whole := func() float64 {
		run++
		seen, done := 0, make(chan struct{})
		start := time.Now()
		var took time.Duration
		c := kit.Must[*lease.Consumer](b)(lease.NewConsumer(be, lease.Spec{
			Name: fmt.Sprint("whole", run), Per: backend.PerGroup, Topics: []string{"*"}, Batch: batch,
			Handlers: []lease.Handler{lease.Batch("kind", func(_ context.Context, ms []lease.Message[[]byte]) error {
				if seen += len(ms); seen == backlog {
					took = time.Since(start)
					close(done)
				}
				return nil
			})},
		}, lease.WithLogger(slog.New(slog.DiscardHandler))))
		ctx, stop := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		<-done
		stop()
		kit.OK(b, <-ended)
		return backlog / took.Seconds()
	}
	for b.Loop() {
		base := bare()
		b.ReportMetric(base, "bare-msg/s")
		b.ReportMetric(whole()/base, "runtime-ratio")
		b.ReportMetric(ours(grouped, backend.Whole)/base, "group-ratio")
		b.ReportMetric(ours(topical, "orders")/base, "topic-ratio")
	}
}

// BenchmarkFeed measures from the return of Publish, which is after its commit, to the
// feed's report on another handle.
func BenchmarkFeed(b *testing.B) {
	be, _ := migrated(b)
	feed := kit.Must[backend.Feed](b)(be.OpenFeed(b.Context(), []backend.ConsumerInfo{topical}))
	defer feed.Close()
	heard := make(chan time.Time)
	go func() {
		for {
			news, err := feed.Next(context.Background())
			if err != nil {
				return
			}
			if len(news.Topics) > 0 {
				heard <- time.Now()
			}
		}
	}()
	var took []time.Duration
	for b.Loop() {
		time.Sleep(20 * time.Millisecond)
		kit.OK(b, be.Publish(b.Context(), kit.Events("x", 1)))
		start := time.Now()
		took = append(took, max((<-heard).Sub(start), 0))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// BenchmarkManyTopics reads 1,000 of 40,000 topics in one statement, 25 messages each, and
// commits their progress in another.
func BenchmarkManyTopics(b *testing.B) {
	const topics, read, each = 40_000, 1000, 25
	be, pool := migrated(b)
	names := kit.Topics(topics)
	for range each {
		es := make([]backend.Event, topics)
		for i, n := range names {
			es[i] = backend.Event{Topic: n, Kind: "k", Payload: []byte(`{"n":1}`)}
		}
		kit.OK(b, be.Publish(b.Context(), es))
	}
	exec(b, pool, "VACUUM ANALYZE leasegen.message")
	kit.OK(b, be.Register(b.Context(), topical, names))
	id := kit.Join(b, be, topical, time.Hour)
	grants := id.Acquires(topics)
	exec(b, pool, "VACUUM ANALYZE leasegen.lease")
	var fetching, committing time.Duration
	n := 0
	for b.Loop() {
		part := grants[n%(topics/read)*read:][:read]
		n++
		req := backend.FetchRequest{Consumer: topical, MaxPayload: 1 << 20}
		for _, g := range part {
			req.Items = append(req.Items, backend.FetchItem{Resource: g.Resource, Limit: each})
		}
		start := time.Now()
		fetched := kit.Must[[]backend.Fetched](b)(be.Fetch(b.Context(), req))
		fetching += time.Since(start)
		ps := make([]backend.Progress, read)
		for i, f := range fetched {
			kit.Equal(b, "messages", len(f.Messages), each)
			ps[i] = backend.Progress{Ref: part[i].Ref, Cursor: f.Next}
		}
		start = time.Now()
		fenced, err := be.Commit(b.Context(), id.ID, topical.Name, ps)
		committing += time.Since(start)
		kit.OK(b, err)
		kit.Equal(b, "fenced", len(fenced), 0)
	}
	b.ReportMetric(float64(fetching.Microseconds())/1000/float64(n), "fetch-ms")
	b.ReportMetric(float64(committing.Microseconds())/1000/float64(n), "commit-ms")
}
