package leasepg_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// store is a database of the suite, with a pool for what the application does there itself and one for each handle on it.
type store struct {
	app   *pgxpool.Pool
	owner testing.TB // at whose end the pools are closed
	conns int32      // of each handle's pool

	mu      sync.Mutex
	handles []*pgxpool.Pool
	given   int // of handles, to the check that has the store now
}

// stores remembers which store a backend of the suite was made on.
type stores struct{ m sync.Map }

func (s *stores) of(be backend.Backend) *store {
	v, _ := s.m.Load(be)
	return v.(*store)
}

// fresh makes a store for each check, on databases that db makes.
func fresh(db func(testing.TB) (dsn string), conns int32) func(testing.TB) *store {
	return func(t testing.TB) *store {
		t.Helper()
		return &store{app: open(t, db(t)), owner: t, conns: conns}
	}
}

// handle is the pool of one more process.
func (s *store) handle(t testing.TB) *pgxpool.Pool {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.given == len(s.handles) {
		s.handles = append(s.handles, openMax(s.owner, s.app.Config().ConnString(), s.conns))
	}
	s.given++
	return s.handles[s.given-1]
}

// reused makes stores that checks of t use one after the other: in place of a new database, connections and statements to prepare for
// each, which cost a server more than most checks do. A store that does not get back to how it was made is not used again.
func reused(t testing.TB, db func(testing.TB) (dsn string), conns int32) func(testing.TB) *store {
	create := fresh(db, conns)
	var mu sync.Mutex
	var free []*used
	var taken, given int
	var why error // one was not given back
	t.Cleanup(func() {
		if taken >= 20 && given < taken/2 {
			t.Errorf("of %d checks %d gave their database back to be used again; of the others one because: %v", taken, given, why)
		}
	})
	take := func() *used {
		mu.Lock()
		defer mu.Unlock()
		taken++
		if len(free) == 0 {
			return nil
		}
		last := free[len(free)-1]
		free = free[:len(free)-1]
		return last
	}
	give := func(check testing.TB, u *used) {
		if check.Failed() {
			return
		}
		u.left(check)
		err := u.empty()
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			why = err
			check.Logf("the database %s is not used again: %v", u.app.Config().ConnConfig.Database, err)
			u.close()
			return
		}
		given++
		free = append(free, u)
	}
	return func(check testing.TB) *store {
		check.Helper()
		u := take()
		if u == nil {
			u = &used{store: create(silent{t})}
			if err := u.remember(check.Context()); err != nil {
				check.Fatal(err)
			}
		}
		pgtest.Shared(check).LogOnFailure(check)
		check.Cleanup(func() { give(check, u) })
		return u.store
	}
}

// silent is a test that shows no server's log: its checks show theirs.
type silent struct{ testing.TB }

func (silent) Failed() bool { return false }

// used is a store that is emptied after each check.
type used struct {
	*store
	clear    string   // what empties the tables that were empty, and removes the indexes that the log gets for streams and slots
	contents string   // a query of what there is, and
	was      []string // what it returned when the store was made
}

// remember notes which tables are empty, and what there is in all.
func (u *used) remember(ctx context.Context) error {
	const relations = `SELECT c.oid::regclass::text AS name, c.relkind::text AS kind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind IN ('r', 'i', 'S') AND n.nspname IN ('own_name', 'public') ORDER BY 1`
	type relation struct{ Name, Kind string }
	rows, _ := u.app.Query(ctx, relations)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[relation])
	if err != nil {
		return err
	}
	var clear, indexes, contents []string
	holds := func(what, content string) {
		contents = append(contents, fmt.Sprintf("'%s ' || coalesce(md5((%s)), 'empty')", what, content))
	}
	holds("relations", "SELECT string_agg(name, ' ') FROM ("+relations+") r")
	for _, r := range found {
		switch r.Kind {
		case "S":
			clear = append(clear, fmt.Sprintf("PERFORM setval('%s', 1, false)", r.Name))
			holds(r.Name, "SELECT last_value || ' ' || is_called FROM "+r.Name)
		case "i":
			indexes = append(indexes, "'"+r.Name+"'")
		default:
			var empty bool
			if err := u.app.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM "+r.Name+")").Scan(&empty); err != nil {
				return err
			}
			if empty {
				clear = append(clear, "DELETE FROM "+r.Name)
			}
			holds(r.Name, "SELECT string_agg(t::text, ' ' ORDER BY t::text) FROM "+r.Name+" t")
		}
	}
	u.clear = fmt.Sprintf(`DO $$ DECLARE added text; BEGIN %s;
		FOR added IN SELECT name FROM (%s) r WHERE kind = 'i' AND name NOT IN (%s) LOOP EXECUTE 'DROP INDEX ' || added; END LOOP;
		UPDATE own_name.origin SET indexes = '{}' WHERE indexes <> '{}';
	END $$`, strings.Join(clear, "; "), relations, strings.Join(indexes, ", "))
	u.contents = "SELECT ARRAY[" + strings.Join(contents, ", ") + "]"
	return u.app.QueryRow(ctx, u.contents).Scan(&u.was)
}

// empty brings the store back to how it was made. The error says why it cannot.
func (u *used) empty() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := u.app.Exec(ctx, u.clear); err != nil {
		return err
	}
	var is []string
	if err := u.app.QueryRow(ctx, u.contents).Scan(&is); err != nil {
		return err
	}
	if other := slices.DeleteFunc(is, func(content string) bool { return slices.Contains(u.was, content) }); len(other) > 0 {
		return fmt.Errorf("it has other contents than it was made with: %s", strings.Join(other, ", "))
	}
	return nil
}

// left waits until the check has left the store: with no connection to it but idle ones of the pools.
func (u *used) left(check testing.TB) {
	check.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	const clients = " FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
	defer func() {
		if check.Failed() {
			check.Logf("connections: %s", query[string](check, u.app, "SELECT string_agg(concat_ws(' ', pid, application_name, state, left(query, 100)), E'\\n')"+clients))
		}
	}()
	kit.Eventually(check, "connections are closed, or given back", func() bool {
		var busy, ours int
		there := query[int](check, u.app, "SELECT count(*)"+clients)
		for _, p := range append(slices.Clone(u.handles), u.app) {
			busy += int(p.Stat().AcquiredConns())
			ours += int(p.Stat().TotalConns())
		}
		return busy == 0 && there <= ours
	})
	u.given = 0
	most := min(len(u.handles), 2) // the pools of many processes would keep too many connections
	for _, p := range u.handles[most:] {
		p.Close()
	}
	u.handles = u.handles[:most]
}

func (u *used) close() {
	u.app.Close()
	for _, p := range u.handles {
		p.Close()
	}
}
