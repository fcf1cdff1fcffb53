package leasepg_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// TestMigrateRaces: ten replicas start at once; one migrates, all end well.
func TestMigrateRaces(t *testing.T) {
	pool := open(t, pgtest.DB(t))
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		applied int
	)
	for range 10 {
		wg.Go(func() {
			conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close(context.Background())
			names, err := leasepg.Migrate(t.Context(), conn)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			applied += len(names)
		})
	}
	wg.Wait()
	files := kit.Must[[]string](t)(filepath.Glob("migrations/*.sql"))
	kit.Equal(t, "migrations applied in all", applied, len(files))
	kit.OK(t, leasepg.New(pool).Check(t.Context(), nil))
	names, err := leasepg.Migrate(t.Context(), pool)
	kit.OK(t, err)
	kit.Equal(t, "applied again", len(names), 0)
}

// TestMigrateUnderLoad: applying what is applied already does not wait for, or disturb,
// a program that holds many leases.
func TestMigrateUnderLoad(t *testing.T) {
	be, pool := migrated(t)
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(manyLeases)))
	tx := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	defer tx.Rollback(context.Background())
	_, err := tx.Exec(t.Context(), "UPDATE leasegen.lease SET suspicion = 0")
	kit.OK(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the transaction stays open longer
	defer cancel()
	_, err = leasepg.Migrate(ctx, pool)
	kit.OK(t, err)
}

func TestMigrationsAsScript(t *testing.T) {
	pool := open(t, pgtest.DB(t))
	exec(t, pool, leasepg.Migrations(leasepg.WithSchema("printed")))
	be := leasepg.New(pool, leasepg.WithSchema("printed"))
	kit.OK(t, be.Check(t.Context(), nil))
	names, err := leasepg.Migrate(t.Context(), pool, leasepg.WithSchema("printed"))
	kit.OK(t, err)
	kit.Equal(t, "left to apply", len(names), 0)
	kit.Equal(t, "default schema", query[bool](t, pool, "SELECT to_regnamespace('leasegen') IS NULL"), true)
}

func TestSchemaNames(t *testing.T) {
	pool := open(t, pgtest.DB(t))
	for _, name := range []string{"", "a b", `x"; DROP TABLE y; --`, "Upper", "1st", "pg_own", "ä", strings.Repeat("x", 64)} {
		if _, err := leasepg.Migrate(t.Context(), pool, leasepg.WithSchema(name)); err == nil {
			t.Errorf("%q was accepted by Migrate", name)
		}
		if err := leasepg.New(pool, leasepg.WithSchema(name)).Check(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "schema name") {
			t.Errorf("%q was accepted by Check: %v", name, err)
		}
	}
	// Words of SQL are names like others.
	for _, name := range []string{"user", "table", "_"} {
		_, err := leasepg.Migrate(t.Context(), pool, leasepg.WithSchema(name))
		kit.OK(t, err)
		be := leasepg.New(pool, leasepg.WithSchema(name))
		kit.OK(t, be.Check(t.Context(), nil))
		kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1)))
	}
}

// TestQualified: no SQL relies on search_path, and functions with the owner's rights fix it.
func TestQualified(t *testing.T) {
	var sql []string
	for _, dir := range []string{"migrations", "../../sqlc/queries"} {
		for _, f := range kit.Must[[]string](t)(filepath.Glob(dir + "/*.sql")) {
			sql = append(sql, string(kit.Must[[]byte](t)(os.ReadFile(f))))
		}
	}
	if len(sql) < 8 {
		t.Fatalf("found %d files of SQL", len(sql))
	}
	comments := regexp.MustCompile(`--[^\n]*`)
	bare := regexp.MustCompile(`(?i)\b(FROM|JOIN|INTO|UPDATE|TABLE)\s+(message|session|lease|parked|dead_letter|consumer|segment|origin|migration)\b`)
	for _, s := range sql {
		s = comments.ReplaceAllString(s, "")
		if m := bare.FindString(s); m != "" {
			t.Errorf("%q is not qualified", m)
		}
		if strings.Count(s, "SECURITY DEFINER") != strings.Count(s, "SECURITY DEFINER SET search_path = pg_catalog, pg_temp") {
			t.Error("a SECURITY DEFINER function does not fix search_path")
		}
	}
}

// roles makes an owner and an application role in a fresh database of a server of its own.
func roles(t *testing.T) (owner, app *pgxpool.Pool) {
	t.Helper()
	admin := open(t, pgtest.Start(t).DB("roles"))
	exec(t, admin, `
		CREATE ROLE lg_owner LOGIN;
		CREATE ROLE lg_app LOGIN;
		CREATE SCHEMA leasegen AUTHORIZATION lg_owner`)
	as := func(user string) *pgxpool.Pool {
		cfg := admin.Config().Copy()
		cfg.ConnConfig.User = user
		pool := kit.Must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
		t.Cleanup(pool.Close)
		return pool
	}
	return as("lg_owner"), as("lg_app")
}

// TestRoles: an owner without rights on the database migrates; the application's role does
// all that the runtime does, and no more.
func TestRoles(t *testing.T) {
	t.Parallel()
	owner, app := roles(t)
	_, err := leasepg.Migrate(t.Context(), owner)
	kit.OK(t, err)
	be := leasepg.New(app)
	if err := be.Check(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "privilege") {
		t.Fatalf("Check without grants: %v", err)
	}
	exec(t, owner, "GRANT USAGE ON SCHEMA leasegen TO lg_app; GRANT SELECT ON ALL TABLES IN SCHEMA leasegen TO lg_app")
	if err := be.Check(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "INSERT on session") || !strings.Contains(err.Error(), "lg_app") {
		t.Fatalf("Check with SELECT alone: %v", err)
	}
	exec(t, owner, leasepg.Grants("lg_app"))
	kit.OK(t, be.Check(t.Context(), nil))

	exec(t, owner, "SELECT setval('leasegen.message_id_seq', 3999990)")
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 20)))
	session, g := kit.Sole(t, be, topical, "x")
	f := kit.Fetch(t, be, topical, "x", g.Cursor, 5)
	tx := kit.Must[backend.Tx](t)(be.Begin(t.Context(), session.ID))
	kit.OK(t, tx.Commit(t.Context(), session.ID, topical.Name, backend.Progress{Ref: g.Ref, Cursor: f.Next,
		Park: []backend.Park{{ID: f.Messages[0].ID, Lane: "l", Attempt: 1}, {ID: f.Messages[1].ID, Lane: "l"}},
		Dead: []backend.Dead{{ID: f.Messages[2].ID, Reason: "r"}},
	}))
	_, err = be.Commit(t.Context(), session.ID, topical.Name, []backend.Progress{{Ref: g.Ref, Done: []string{f.Messages[0].ID}}})
	kit.OK(t, err)
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1000))) // by COPY
	kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "k", ID: "i"}, {Topic: "x", Kind: "k", After: time.Microsecond}}))
	kit.OK(t, leasepg.ReleaseDelayed(t.Context(), be))
	kit.Equal(t, "start", kit.Must[backend.OnceState](t)(be.StartOnce(t.Context(), session.ID, topical.Name, g.Ref, "item", "1")), backend.OnceNew)
	_, err = be.Commit(t.Context(), session.ID, topical.Name, []backend.Progress{{Ref: g.Ref, Once: []backend.OnceResult{{Key: "item", Done: true}}}})
	kit.OK(t, err)
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{topical}))
	feed.Close()
	kit.Equal(t, "replayed", kit.Must[int](t)(be.Replay(t.Context(), operate.DeadLetterFilter{})), 1)
	kit.Equal(t, "purged", kit.Must[int](t)(be.Purge(t.Context(), operate.DeadLetterFilter{})), 0)
	_, err = be.Maintain(t.Context(), []backend.ConsumerInfo{topical})
	kit.OK(t, err)
	_ = kit.Must[[]operate.ConsumerStatus](t)(be.Status(t.Context()))
	kit.OK(t, be.Release(t.Context(), session.ID, topical.Name, []backend.Ref{g.Ref}))

	for _, forbidden := range []string{
		"DELETE FROM leasegen.lease",
		"TRUNCATE leasegen.lease",
		"DROP TABLE leasegen.lease",
		"DELETE FROM leasegen.session",
		"DELETE FROM leasegen.message",
		"UPDATE leasegen.message SET topic = 'y'",
		"INSERT INTO leasegen.message (xid, topic, kind, payload) VALUES ('3', 'x', 'k', '')",
		"INSERT INTO leasegen.lease (consumer, resource, epoch) VALUES ('c', 'r', 9)",
		"UPDATE leasegen.lease SET resource = 'other'",
		"UPDATE leasegen.lease SET epoch = epoch - 1",
		"UPDATE leasegen.session SET id = 'other'",
		"UPDATE leasegen.segment SET closed_xid = '3'",
		"UPDATE leasegen.origin SET system_identifier = 1",
		"SELECT setval('leasegen.message_id_seq', 1)",
		"SELECT leasegen.restamp()",
		"CREATE TABLE leasegen.mine ()",
		"CREATE TABLE public.mine ()",
		"ALTER ROLE lg_app SUPERUSER",
		"SET ROLE lg_owner",
		"SELECT pg_read_file('/etc/passwd')",
		"COPY leasegen.lease TO PROGRAM 'true'",
		"CREATE EXTENSION dblink",
	} {
		_, err := app.Exec(t.Context(), forbidden)
		if pg, is := errors.AsType[*pgconn.PgError](err); !is || pg.Code != "42501" {
			t.Errorf("%s: %v, want insufficient privilege", forbidden, err)
		}
	}
}

// TestNewerSchemaServes: while newer programs are deployed, one of this version that starts again finds a schema that it does
// not know, and works. One that the schema does not serve any more is refused, by Migrate as well.
func TestNewerSchemaServes(t *testing.T) {
	be, pool := migrated(t)
	exec(t, pool, "INSERT INTO leasegen.migration (version, name) VALUES (99, 'x'); ALTER TABLE leasegen.message ADD COLUMN later text")
	applied, err := leasepg.Migrate(t.Context(), pool, leasepg.WithSlots(64))
	if len(applied) > 0 || err != nil {
		t.Fatal(applied, err)
	}
	kit.Equal(t, "slots", query[int](t, pool, "SELECT slots FROM leasegen.origin"), 64)
	kit.OK(t, be.Check(t.Context(), nil))
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1)))
	exec(t, pool, "UPDATE leasegen.origin SET serves = 99")
	if _, err := leasepg.Migrate(t.Context(), pool); err == nil || !strings.Contains(err.Error(), "deploy a newer program") {
		t.Errorf("migrate: %v", err)
	}
}

// TestCheck: a fault that makes a database unusable is reported in one line that names the fix.
func TestCheck(t *testing.T) {
	files := kit.Must[[]string](t)(filepath.Glob("migrations/*.sql"))
	latest := strconv.Itoa(kit.Must[int](t)(strconv.Atoi(filepath.Base(files[len(files)-1])[:4])))
	for _, c := range []struct {
		name, spoil, mend, want string
	}{
		{"unmigrated", "DROP SCHEMA leasegen CASCADE", "", "run leasegen migrate -dsn … to bring it from version 0 to " + latest},
		{"older", "DELETE FROM leasegen.migration", "", "run leasegen migrate -dsn … to bring it from 0 to " + latest},
		{"newer", "INSERT INTO leasegen.migration (version, name) VALUES (99, 'x'); UPDATE leasegen.origin SET serves = 99", "",
			"has version 99, which serves programs of version 99 and newer, and this one is of " + latest},
		{"read-only", "ALTER DATABASE :db SET default_transaction_read_only = on", "", "read-only"},
		{"isolation", "ALTER DATABASE :db SET default_transaction_isolation = 'serializable'", "", "read committed"},
		{"catalog last", "ALTER DATABASE :db SET search_path = public, pg_catalog", "", "names schemas before pg_catalog"},
		{"restored", "UPDATE leasegen.origin SET system_identifier = 7", "SELECT leasegen.restamp()", `SELECT "leasegen".restamp()`},
	} {
		t.Run(c.name, func(t *testing.T) {
			be, pool := migrated(t)
			exec(t, pool, strings.ReplaceAll(c.spoil, ":db", query[string](t, pool, "SELECT current_database()")))
			pool.Reset()
			err := be.Check(t.Context(), nil)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("got  %v\nwant %s", err, c.want)
			}
			if c.mend != "" {
				exec(t, pool, c.mend)
				kit.OK(t, be.Check(t.Context(), nil))
			}
		})
	}
	t.Run("unreachable", func(t *testing.T) {
		pool := kit.Must[*pgxpool.Pool](t)(pgxpool.New(t.Context(), "postgres://u:canary@127.0.0.1:1/x?connect_timeout=1"))
		defer pool.Close()
		err := leasepg.New(pool).Check(t.Context(), nil)
		if err == nil || strings.Contains(err.Error(), "canary") {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("full", func(t *testing.T) {
		t.Parallel()
		_, app := roles(t)
		var taken []*pgx.Conn
		var err error
		for range 200 {
			var c *pgx.Conn
			if c, err = pgx.ConnectConfig(t.Context(), app.Config().ConnConfig); err != nil {
				break
			}
			taken = append(taken, c)
		}
		err = leasepg.New(app).Check(t.Context(), nil)
		for _, c := range taken {
			c.Close(context.Background())
		}
		if err == nil || !strings.Contains(err.Error(), "max_connections") {
			t.Fatalf("got %v", err)
		}
	})
}

// TestRestamp: a copy restored from another cluster, where xids had got further, loses
// no message and repeats none.
func TestRestamp(t *testing.T) {
	be, pool := migrated(t)
	tx := kit.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	kit.OK(t, be.In(tx).Publish(t.Context(), kit.Events("x", 3)))
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 5)))
	session, g := kit.Sole(t, be, topical, "x")
	ids, _ := drain(t, be, topical, session.ID, g, 9)
	kit.Equal(t, "read before", len(ids), 5)
	kit.OK(t, tx.Commit(t.Context()))
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 2)))

	// As if the dump came from a cluster that was far ahead.
	exec(t, pool, `
		UPDATE leasegen.message SET xid = (xid::text::bigint + 900000000)::text::xid8;
		UPDATE leasegen.lease SET x = (x::text::bigint + 900000000)::text::xid8,
			snap = (SELECT (pg_snapshot_xmin(snap)::text::bigint + 900000000) || ':' || (pg_snapshot_xmax(snap)::text::bigint + 900000000)
				|| ':' || coalesce((SELECT string_agg((v::text::bigint + 900000000)::text, ',') FROM pg_snapshot_xip(snap) v), ''))::pg_snapshot;
		UPDATE leasegen.origin SET system_identifier = 7`)
	if err := be.Check(t.Context(), nil); err == nil {
		t.Fatal("the copy was taken for the original")
	}
	exec(t, pool, "SELECT leasegen.restamp()")
	kit.OK(t, be.Check(t.Context(), nil))
	session = kit.Join(t, be, topical, time.Hour)
	g = session.Acquires(1)[0]
	ids, _ = drain(t, be, topical, session.ID, g, 9)
	kit.Equal(t, "new messages read after", len(ids), 2)
	p := kit.Must[backend.Parked](t)(be.FetchParked(t.Context(), backend.ParkedRequest{Session: session.ID, Consumer: topical, Limit: 9, MaxPayload: 99}))
	kit.Equal(t, "late messages parked", len(p.Messages), 3)
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 4)))
	g.Cursor = nil
	ids, _ = drain(t, be, topical, session.ID, acquireAgain(t, be, session.ID, g), 9)
	kit.Equal(t, "read later", len(ids), 4)
}

// acquireAgain gives a lease back and takes it, with its stored cursor.
func acquireAgain(t *testing.T, be *leasepg.Backend, session string, g backend.Grant) backend.Grant {
	t.Helper()
	kit.OK(t, be.Release(t.Context(), session, topical.Name, []backend.Ref{g.Ref}))
	return kit.Acting(t, be, session, topical).Acquires(1)[0]
}
