package leasepg_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/tabletest"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// tableReaders are consumers of app.outbox of every kind.
type tableReaders struct {
	group tabletest.ByGroup
	topic tabletest.ByTopic
	key   tabletest.ByKey
}

// run runs them until the function returned is called.
func (r *tableReaders) run(t testing.TB, be *leasepg.Backend) (stop func()) {
	t.Helper()
	g := lease.NewGroup()
	for _, c := range []*lease.Consumer{byGroup(t, be, &r.group), byTopic(t, be, &r.topic), byKey(t, be, &r.key)} {
		kit.OK(t, g.Add(c))
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := kit.Run(ctx, g); err != nil {
			t.Error(err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	return stop
}

// await waits until every consumer has handled n rows of a batch, each of them once.
func (r *tableReaders) await(t testing.TB, batch string, n int) {
	t.Helper()
	of := func(rows []tabletest.Message) (ns []int64) {
		for _, m := range rows {
			if m.Payload.EventType == batch {
				ns = append(ns, m.Payload.N)
			}
		}
		slices.Sort(ns)
		return ns
	}
	counts := func() [3]int {
		return [3]int{len(of(r.group.Rows())), len(of(r.topic.Rows())), len(of(r.key.Rows()))}
	}
	for end := time.Now().Add(kit.Patience(t)); counts() != [3]int{n, n, n}; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("of %d rows of %q group, topic and partition handled %v", n, batch, counts())
		}
	}
	for _, rows := range [][]tabletest.Message{r.group.Rows(), r.topic.Rows(), r.key.Rows()} {
		if got := of(rows); len(slices.Compact(slices.Clone(got))) != n {
			t.Fatalf("rows of %q were handled twice: %v", batch, got)
		}
	}
}

func insertRows(t testing.TB, pool *pgxpool.Pool, batch string, n int) {
	t.Helper()
	exec(t, pool, "INSERT INTO app.outbox (channel, customer_id, event_type, n) SELECT 'c' || i % 3, i % 7, $1, i FROM generate_series(1, $2::int) i", batch, n)
}

// A table whose positions are given out again is read from what was not seen, and only that,
// whether its readers live in between or not, and however far the sequence has got since.
func TestTableSetBack(t *testing.T) {
	t.Parallel()
	for name, setBack := range map[string]string{
		"truncated":      "TRUNCATE app.outbox RESTART IDENTITY",
		"sequence alone": "DELETE FROM app.outbox WHERE id > 10; SELECT setval('app.outbox_id_seq', 10)",
		"made again":     "DROP SCHEMA app CASCADE; " + strings.Join(kit.Must[[]string](t)(tabletest.Schema()), ";\n"),
	} {
		for _, living := range []bool{true, false} {
			for _, later := range []int{30, 200} { // fewer than there were, and more
				if living && later == 200 && name == "sequence alone" {
					continue // between two looks a sequence can be seen to have fallen only while it is behind
				}
				t.Run(fmt.Sprintf("%s living=%v later=%d", name, living, later), func(t *testing.T) {
					t.Parallel()
					_, pool := withTable(t)
					var (
						mu   sync.Mutex
						told = map[string]bool{}
					)
					be := leasepg.New(pool, leasepg.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
						if o, is := o.(operate.ObservedSetBack); is {
							mu.Lock()
							defer mu.Unlock()
							told[o.Consumer] = o.Reason != ""
						}
					})))
					var readers tableReaders
					stop := readers.run(t, be)
					insertRows(t, pool, "before", 100)
					readers.await(t, "before", 100)
					if !living {
						stop()
					}
					exec(t, pool, setBack)
					insertRows(t, pool, "after", later)
					if !living {
						stop = readers.run(t, be)
					}
					readers.await(t, "after", later)
					insertRows(t, pool, "last", 150) // beyond where it was
					readers.await(t, "last", 150)
					readers.await(t, "before", 100)
					stop()
					mu.Lock()
					defer mu.Unlock()
					kit.Equal(t, "consumers that an observer was told of", len(told), 3)
				})
			}
		}
	}
}
