package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// patience is how long anything may take before a recording is given up.
const patience = time.Minute

// site is a PostgreSQL server with leasegen's schema, and the replicas that work there.
type site struct {
	server *pgtest.Server
	dsn    string
	pool   *pgxpool.Pool
	be     *leasepg.Backend

	replicas map[string]*fleet.Process
	stderr   fleet.Tail

	mu   sync.Mutex
	told []event

	publishing sync.WaitGroup
	stop       context.CancelFunc
}

// event is a line that a replica told.
type event struct {
	by       string
	what     string
	resource string
	epoch    int64
	at       time.Time
}

func newSite(ctx context.Context, opts ...leasepg.Option) *site {
	s := &site{replicas: map[string]*fleet.Process{}, stop: func() {}}
	s.server = must.Get(pgtest.Launch(pgtest.OnDisk(), pgtest.Config("max_connections", "200")))
	s.dsn = s.server.DB("pictures")
	s.pool = must.Get(pgxpool.New(ctx, s.dsn))
	_ = must.Get(leasepg.Migrate(ctx, s.pool, opts...))
	s.be = leasepg.New(s.pool, opts...)
	return s
}

// closing ends all that the site started, and says what the replicas did if the recording failed. It is deferred before
// must.Catch is.
func (s *site) closing(err *error) {
	s.stop()
	s.publishing.Wait()
	for _, p := range s.replicas {
		p.End()
	}
	s.pool.Close()
	s.server.Close()
	if *err != nil {
		*err = fmt.Errorf("%w\nreplicas said:\n%s", *err, s.stderr.Last(40))
	}
}

// add starts a replica of a picture, with more variables of its environment.
func (s *site) add(picture, name string, env ...string) *fleet.Process {
	p := fleet.NewProcess(name, append(env, envReplica+"="+picture, envName+"="+name, envDSN+"="+s.dsn),
		func(line string) { s.record(name, line) }, &s.stderr)
	s.replicas[name] = p
	must.Do(p.Start())
	return p
}

func (s *site) record(by, line string) {
	e := event{by: by}
	var at int64
	if _, err := fmt.Sscan(line, &e.what, &e.resource, &e.epoch, &at); err != nil {
		fmt.Fprintf(io.Writer(&s.stderr), "%s told %q: %v\n", by, line, err)
		return
	}
	e.at = time.Unix(0, at)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, e)
}

// events are the reports so far.
func (s *site) events() []event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.told)
}

// first waits for the first event that match accepts.
func (s *site) first(ctx context.Context, what string, match func(event) bool) (e event) {
	until(ctx, what, func() bool {
		all := s.events()
		i := slices.IndexFunc(all, match)
		if i >= 0 {
			e = all[i]
		}
		return i >= 0
	})
	return e
}

// heard waits until the replicas have told of each lease that the database says is theirs.
func (s *site) heard(ctx context.Context) {
	until(ctx, "the replicas have told of their leases", func() bool {
		rows, err := s.pool.Query(ctx, `SELECT resource || ' ' || epoch FROM leasegen.lease WHERE session IS NOT NULL`)
		must.Do(err)
		owned := must.Get(pgx.CollectRows(rows, pgx.RowTo[string]))
		told := map[string]bool{}
		for _, e := range s.events() {
			if e.what == "acquired" {
				told[fmt.Sprint(e.resource, " ", e.epoch)] = true
			}
		}
		return !slices.ContainsFunc(owned, func(lease string) bool { return !told[lease] })
	})
}

// until waits until done.
func until(ctx context.Context, what string, done func() bool) {
	for deadline := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		must.Do(ctx.Err())
		if time.Now().After(deadline) {
			must.Do(fmt.Errorf("not within %v: %s", patience, what))
		}
	}
}

// publish publishes one message to a topic in each interval, with one of many keys, until the site closes.
func (s *site) publish(ctx context.Context, topic string, each time.Duration) {
	ctx, s.stop = context.WithCancel(ctx)
	s.publishing.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			e := lease.Event{Topic: topic, Key: fmt.Sprint(n % 1000), Kind: kind, Payload: []byte("{}")}
			if err := s.be.Publish(ctx, []lease.Event{e}); err != nil && ctx.Err() == nil {
				fmt.Fprintf(io.Writer(&s.stderr), "publish: %v\n", err)
			}
			time.Sleep(each)
		}
	})
}

// since is the time from a moment on, in milliseconds.
func since(from, at time.Time) float64 { return float64(at.Sub(from).Microseconds()) / 1000 }
