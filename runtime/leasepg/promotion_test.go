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

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/internal/tabletest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leasetest"
)

// numbered is an event with the number of its batch.
type numbered struct {
	Batch string
	N     int
}

// seen counts how often each event was handled.
type seen struct {
	mu    sync.Mutex
	times map[numbered]int
}

func (s *seen) handle(_ context.Context, m lease.Message[numbered]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.times == nil {
		s.times = map[numbered]int{}
	}
	s.times[m.Payload]++
	return nil
}

// of counts the events of a batch that were handled, and those handled twice.
func (s *seen) of(batch string) (handled, twice int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e, n := range s.times {
		if e.Batch == batch {
			handled++
			if n > 1 {
				twice++
			}
		}
	}
	return handled, twice
}

// batch is n numbered events.
func batch(name string, n int) []backend.Event {
	es := kit.Events("t", n)
	for i := range es {
		es[i].Topic, es[i].Payload = fmt.Sprint("t", i%5), fmt.Appendf(nil, `{"Batch":%q,"N":%d}`, name, i)
	}
	return es
}

// fleet is processes with consumers of every kind, of the log and of a table.
type fleet struct {
	kinds map[backend.Per]*seen
	rows  *tabletest.ByTopic
}

func startFleet(t testing.TB, dsn string) *fleet {
	t.Helper()
	f := &fleet{kinds: map[backend.Per]*seen{}, rows: &tabletest.ByTopic{}}
	for _, per := range []backend.Per{backend.PerGroup, backend.PerTopic, backend.PerPartition, backend.PerStream} {
		f.kinds[per] = &seen{}
	}
	for range 2 {
		be := leasepg.New(open(t, dsn))
		consumers := []*lease.Consumer{byTopic(t, be, f.rows)}
		for per, s := range f.kinds {
			consumers = append(consumers, kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, lease.Spec{
				Name: per.String(), Per: per, Topics: []string{"*"}, TTL: 6 * time.Second, Handlers: []lease.Handler{lease.One("kind", s.handle)},
			}, quiet())))
		}
		running(t, consumers...)
	}
	return f
}

// await waits until every kind of consumer has handled n events of a batch.
func (f *fleet) await(t testing.TB, batch string, n int) {
	t.Helper()
	missing := func() (out []string) {
		for per, s := range f.kinds {
			if got, _ := s.of(batch); got < n {
				out = append(out, fmt.Sprintf("%v %d", per, got))
			}
		}
		rows := 0
		for _, m := range f.rows.Rows() {
			if m.Payload.EventType == batch {
				rows++
			}
		}
		if rows < n {
			out = append(out, fmt.Sprintf("table %d", rows))
		}
		slices.Sort(out)
		return out
	}
	for end := time.Now().Add(kit.Patience(t)); ; time.Sleep(10 * time.Millisecond) {
		left := missing()
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("of %d events of %q handled only: %s", n, batch, strings.Join(left, ", "))
		}
	}
}

func publishBatch(t testing.TB, pool *pgxpool.Pool, name string, n int) {
	t.Helper()
	kit.OK(t, leasepg.New(pool).Publish(t.Context(), batch(name, n)))
	exec(t, pool, "INSERT INTO app.outbox (channel, event_type, n) SELECT 'c' || i % 3, $1, i FROM generate_series(1, $2::int) i", name, n)
}

// After the promotion of a standby that lacks writes, ids and transaction ids lie behind what
// living processes have read. Lost events stay lost; all events published later are handled.
func TestPromotionOfAnAsynchronousStandby(t *testing.T) {
	t.Parallel()
	primary := pgtest.Start(t, pgtest.Config("fsync", "off"))
	setup := open(t, primary.DB("ha"))
	kit.Must[[]string](t)(leasepg.Migrate(t.Context(), setup))
	addTable(t, setup)
	standby := primary.Replica(t)
	dsn := bothOf(primary, standby)
	f := startFleet(t, dsn)
	publishBatch(t, setup, "kept", 100)
	f.await(t, "kept", 100)
	standby.Detach(primary)
	publishBatch(t, setup, "lost", 500)
	f.await(t, "lost", 500)
	primary.Kill()
	standby.Promote()
	after := open(t, dsn)
	publishBatch(t, after, "later", 200)
	f.await(t, "later", 200)
	publishBatch(t, after, "last", 1200) // beyond the ids that were lost
	f.await(t, "last", 1200)
	for per, s := range f.kinds {
		for _, batch := range []string{"later", "last"} {
			if _, twice := s.of(batch); twice > 0 {
				t.Errorf("%v: %d events of %q were handled twice", per, twice, batch)
			}
		}
	}
}

// TestHistory promotes a standby that lacks writes under the suite's processes.
func TestHistory(t *testing.T) {
	t.Parallel()
	type cluster struct {
		primary, standby *pgtest.Server
		dsn              string
	}
	var clusters sync.Map // of the backends
	leasetest.RunHistory(t, leasetest.Factory{
		New: func(t testing.TB) backend.Backend {
			primary := pgtest.Start(t, pgtest.Config("fsync", "off"))
			kit.Must[[]string](t)(leasepg.Migrate(t.Context(), open(t, primary.DB("ha"))))
			c := cluster{primary, primary.Replica(t), ""}
			c.dsn = bothOf(primary, c.standby)
			be := leasepg.New(open(t, c.dsn))
			clusters.Store(backend.Backend(be), c)
			return be
		},
		Again: func(t testing.TB, be backend.Backend) backend.Backend {
			c, _ := clusters.Load(be)
			return leasepg.New(open(t, c.(cluster).dsn))
		},
		SetBack: func(t testing.TB, be backend.Backend) func() {
			v, _ := clusters.Load(be)
			c := v.(cluster)
			c.standby.Detach(c.primary)
			return func() {
				c.primary.Kill()
				c.standby.Promote()
				pool := open(t, c.dsn) // of the backend under test: its broken connections are replaced
				kit.OK(t, leasepg.New(pool).Check(t.Context(), nil))
				kit.Eventually(t, "the backend is back", func() bool { return be.Check(t.Context(), nil) == nil })
			}
		},
	})
}

// bothOf is the DSN of whichever is the primary.
func bothOf(primary, standby *pgtest.Server) string {
	return fmt.Sprintf("postgres://postgres@%s,%s/ha?sslmode=disable&target_session_attrs=read-write&connect_timeout=5", primary.Addr(), standby.Addr())
}

// A synchronous standby lacks no commit that a client knows of: no message is lost, and none is
// handled twice but what was under way.
func TestPromotionOfASynchronousStandby(t *testing.T) {
	t.Parallel()
	primary := pgtest.Start(t, pgtest.Config("fsync", "off"))
	setup := open(t, primary.DB("ha"))
	kit.Must[[]string](t)(leasepg.Migrate(t.Context(), setup))
	addTable(t, setup)
	standby := primary.Replica(t)
	primary.MakeSynchronous()
	dsn := bothOf(primary, standby)
	f := startFleet(t, dsn)
	publishBatch(t, setup, "before", 300)
	f.await(t, "before", 50) // and the rest is under way
	primary.Kill()
	standby.Promote()
	f.await(t, "before", 300)
	publishBatch(t, open(t, dsn), "later", 300)
	f.await(t, "later", 300)
	for per, s := range f.kinds {
		if _, twice := s.of("later"); twice > 0 {
			t.Errorf("%v: %d later events were handled twice", per, twice)
		}
	}
}
