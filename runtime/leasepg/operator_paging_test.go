package leasepg_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Beside 100,000 dead letters and parked messages the statements of operators touch as much as they show, and group quickly.
func TestOperatorsPageThroughManyRows(t *testing.T) {
	const n = 100_000
	be, m := measuredDB(t, measured(t), "paging")
	for _, name := range []string{"topics", "other"} {
		kit.OK(t, be.Register(t.Context(), backend.ConsumerInfo{Name: name, Per: backend.PerTopic, Topics: []string{"*"}}, nil))
		exec(t, m.pool, `INSERT INTO leasegen.dead_letter (consumer, resource, message_id, topic, key, kind, payload, published_at, failed_at, dead_at, attempts, reason)
			SELECT $2, 'topic-' || g % 100, g, 'topic-' || g % 100, 'key-' || g, 'kind', convert_to(repeat('x', 300), 'UTF8'), clock_timestamp(), clock_timestamp(),
			       clock_timestamp() - ($1 - g) * interval '1 second', 1,
			       CASE g % 3 WHEN 0 THEN 'carrier: 503 after ' || g || ' ms' WHEN 1 THEN 'order ' || gen_random_uuid() || ' is gone' ELSE 'no room' END
			FROM generate_series(1, $1::int) g`, n, name)
		exec(t, m.pool, `INSERT INTO leasegen.lease (consumer, resource) SELECT $1, 'topic-' || g FROM generate_series(0, 99) g`, name)
		exec(t, m.pool, `INSERT INTO leasegen.parked (consumer, resource, lane, message_id, topic, key, kind, payload, published_at, attempt, next_at, error)
			SELECT $2, 'topic-' || g % 100, 'key-' || g / 7, g, 'topic-' || g % 100, 'key-' || g / 7, 'kind', 'payload', clock_timestamp(), 1,
			       clock_timestamp() + interval '1 hour', 'error' FROM generate_series(1, $1::int) g`, n, name)
	}
	exec(t, m.pool, "VACUUM ANALYZE")
	letters := func(f operate.DeadLetterFilter) []operate.DeadLetterInfo {
		f.Limit = 100
		return kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(t.Context(), f))
	}
	first := letters(operate.DeadLetterFilter{Consumer: "other"})
	middle := fmt.Sprint(n + n/2)
	for what, f := range map[string]operate.DeadLetterFilter{
		"the first":     {Consumer: "other"},
		"all":           {},
		"a page":        {Consumer: "other", After: middle},
		"a page of all": {After: middle},
		"young ones":    {Consumer: "other", MaxAge: time.Hour},
		"by id":         {IDs: []string{first[7].ID, first[9].ID}},
	} {
		for name, cost := range m.costs(func() {
			if got := len(letters(f)); got != 100 && what != "by id" {
				t.Errorf("%s: %d dead letters", what, got)
			}
		}) {
			most := 500
			if what == "young ones" { // after the first 3,600 of a page, by age
				most = scaleBuffers
			}
			if cost.pages > most {
				t.Errorf("dead letters, %s: %s touches %d pages", what, name, cost.pages)
			}
		}
	}
	parked := func(f operate.ParkedFilter) []operate.ParkedInfo {
		f.Consumer, f.Limit = "other", 100
		return kit.Must[[]operate.ParkedInfo](t)(be.Parked(t.Context(), f))
	}
	page := parked(operate.ParkedFilter{})
	for what, f := range map[string]operate.ParkedFilter{
		"the first": {}, "a page": {After: page[99].Place}, "of a resource": {Resource: "topic-7"}, "by id": {Resource: page[3].Resource, IDs: []string{page[3].MessageID}},
	} {
		for name, cost := range m.costs(func() {
			if got := len(parked(f)); got != 100 && what != "by id" {
				t.Errorf("%s: %d parked messages", what, got)
			}
		}) {
			if cost.pages > 1000 {
				t.Errorf("parked messages, %s: %s touches %d pages", what, name, cost.pages)
			}
		}
	}
	for name, cost := range m.costs(func() {
		kit.Equal(t, "by id, wherever it is", len(parked(operate.ParkedFilter{IDs: []string{"99999"}})), 1)
		kit.Equal(t, "retried", kit.Must[int](t)(be.RetryParked(t.Context(), operate.ParkedFilter{Consumer: "other", Limit: 700})), 700)
		kit.Equal(t, "replayed", kit.Must[int](t)(be.Replay(t.Context(), operate.DeadLetterFilter{Consumer: "other", Text: "NO ROOM", Limit: 700})), 700)
		kit.Equal(t, "purged", kit.Must[int](t)(be.Purge(t.Context(), operate.DeadLetterFilter{Consumer: "other", Through: first[50].ID})), 34)
	}) {
		if cost.pages > 3*scaleBuffers {
			t.Errorf("%s touches %d pages", name, cost.pages)
		}
		t.Logf("%s: %d pages, %v", name, cost.pages, cost.took)
	}
	for _, f := range []operate.DeadLetterFilter{{Consumer: "topics"}, {}} {
		grouping, reading := time.Hour, time.Hour // the best of a few
		for range 5 {
			began := time.Now()
			got := kit.Must[operate.DeadLetterGroups](t)(be.DeadLetterGroups(t.Context(), f))
			grouping = min(grouping, time.Since(began))
			kit.Equal(t, "groups", fmt.Sprint(len(got.Groups), got.Total, got.More), fmt.Sprint(map[bool]int{true: 6, false: 3}[f.Consumer == ""], n, f.Consumer == ""))
			began = time.Now()
			kit.Equal(t, "read", read(t, m.pool, "SELECT id, consumer, kind, reason, dead_at FROM leasegen.dead_letter ORDER BY id LIMIT $1", n), n)
			reading = min(reading, time.Since(began))
		}
		t.Logf("%d dead letters in groups in %v; to read as many takes %v", n, grouping, reading)
		if grouping > 8*reading {
			t.Errorf("to group %d dead letters takes %v, want no more than 8 times what it takes to read them, %v", n, grouping, reading)
		}
	}
}

// read counts the rows of a query, having read them.
func read(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	kit.OK(t, err)
	for ; rows.Next(); n++ {
		kit.Must[[]any](t)(rows.Values())
	}
	kit.OK(t, rows.Err())
	return n
}
