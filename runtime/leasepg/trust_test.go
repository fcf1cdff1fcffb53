package leasepg_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// cast are the roles of a database in which no process trusts anybody more than documented: a superuser,
// the owner of the schema, the application's role with the documented grants, and a role that may only connect.
type cast struct {
	admin, owner, app, stranger *pgxpool.Pool
	appName, strangerName       string
}

// distrustful makes them in a database of the shared server, with the schema migrated by its owner.
func distrustful(t *testing.T) *cast {
	t.Helper()
	c := &cast{admin: open(t, pgtest.DB(t))}
	suffix := kit.ID()[:8]
	ownerName := "owner_" + suffix
	c.appName, c.strangerName = "app_"+suffix, "stranger_"+suffix
	exec(t, c.admin, fmt.Sprintf(`CREATE ROLE %s LOGIN; CREATE ROLE %s LOGIN; CREATE ROLE %s LOGIN; CREATE SCHEMA leasegen AUTHORIZATION %[1]s`,
		ownerName, c.appName, c.strangerName))
	as := func(user string) *pgxpool.Pool {
		cfg := c.admin.Config().Copy()
		cfg.ConnConfig.User = user
		pool := kit.Must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
		t.Cleanup(pool.Close)
		return pool
	}
	c.owner, c.app, c.stranger = as(ownerName), as(c.appName), as(c.strangerName)
	_, err := leasepg.Migrate(t.Context(), c.owner)
	kit.OK(t, err)
	exec(t, c.owner, leasepg.Grants(c.appName))
	return c
}

// operate runs everything that an operator can ask for, and returns the errors.
func commands(t *testing.T, be *leasepg.Backend, consumer string) (errs []error) {
	t.Helper()
	note := func(_ any, err error) { errs = append(errs, err) }
	note(be.Status(t.Context()))
	note(be.Leases(t.Context(), consumer, 10))
	note(be.Members(t.Context(), consumer))
	note(be.Cursors(t.Context(), consumer, "", 10))
	note(be.SetCursor(t.Context(), consumer, "", operate.CursorTarget{After: "1"}))
	note(be.SetCursor(t.Context(), consumer, "", operate.CursorTarget{Now: true}))
	note(be.SetCursor(t.Context(), consumer, "", operate.CursorTarget{Beginning: true}))
	return errs
}

// TestOperatorRunsNoCode: with the documented grants, a role names something in a consumer's row that runs its code when
// it is read. No command of a superuser runs it.
func TestOperatorRunsNoCode(t *testing.T) {
	c := distrustful(t)
	exec(t, c.admin, fmt.Sprintf("CREATE SCHEMA own AUTHORIZATION %s", c.appName))
	mark := query[string](t, c.admin, "SELECT current_setting('data_directory')") + "/ran_" + kit.ID()
	// A connection that stays: its temporary objects are there while the operator works.
	conn := kit.Must[*pgxpool.Conn](t)(c.app.Acquire(t.Context()))
	defer conn.Release()
	run := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	act := `() RETURNS text LANGUAGE plpgsql AS $f$
		BEGIN
			IF (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = current_user) THEN
				EXECUTE 'COPY (SELECT 1) TO ''%s_%s''';
			END IF;
			RETURN 'a';
		END $f$`
	made := func(where, name string) {
		run("CREATE FUNCTION " + where + ".act_" + name + fmt.Sprintf(act, mark, name))
		run("CREATE FUNCTION " + where + "." + name + "(x int) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS " +
			"$f$ BEGIN PERFORM " + where + ".act_" + name + "(); RETURN 1; END $f$")
	}
	run("CREATE TEMP TABLE first ()")
	var temp string
	kit.OK(t, conn.QueryRow(t.Context(), "SELECT nspname FROM pg_namespace WHERE oid = pg_my_temp_schema()").Scan(&temp))
	made(temp, "temporary")
	run("CREATE TEMP VIEW v AS SELECT " + temp + ".temporary(1) AS id, 't'::text AS topic")
	made("own", "viewed")
	run("CREATE VIEW own.v AS SELECT own.viewed(1) AS id, 't'::text AS topic")
	made("own", "indexed")
	run("CREATE TABLE own.t (id bigint, topic text); INSERT INTO own.t VALUES (2, 't'); CREATE INDEX ON own.t ((own.indexed(1)))")
	made("own", "cast")
	run(`CREATE TYPE own.e AS ENUM ('a');
		CREATE FUNCTION own.tell(x own.e) RETURNS text LANGUAGE plpgsql AS $f$ BEGIN RETURN own.act_cast(); END $f$;
		CREATE CAST (own.e AS text) WITH FUNCTION own.tell(own.e);
		CREATE TABLE own.c (id bigint, k own.e); INSERT INTO own.c VALUES (2, 'a')`)
	be := leasepg.New(c.admin)
	for _, row := range [][2]string{
		{"temporary", fmt.Sprintf(`{"table":"%s.v","position":"id","xid":"xid","topic":"topic"}`, temp)},
		{"viewed", `{"table":"own.v","position":"id","xid":"xid","topic":"topic"}`},
		{"indexed", `{"table":"own.t","position":"id","xid":"xid","topic":"topic"}`},
		{"cast", `{"table":"own.c","position":"id","xid":"xid","key":"k","slots":1}`},
		{"no JSON", `{`}, {"no object", `[1]`}, {"nothing", `{}`},
	} {
		name, source := row[0], row[1]
		run(`INSERT INTO leasegen.consumer (name, per, topics, likes, grace, source, writer)
			VALUES ('` + name + `', 'topic', '{}', '{}', '0', '` + source + `', 'postgres')`)
		run(`INSERT INTO leasegen.lease (consumer, resource) VALUES ('` + name + `', '0'), ('` + name + `', 't')`)
		commands(t, be, name)
	}
	for _, name := range []string{"temporary", "viewed", "indexed", "cast"} {
		if query[bool](t, c.admin, "SELECT (pg_stat_file($1, true)).size IS NOT NULL", mark+"_"+name) {
			t.Errorf("%s: a command of the superuser ran code of the application's role", name)
		}
	}
	// The answer names tables that could not be counted, and no other consumer suffers.
	for _, s := range kit.Must[[]operate.ConsumerStatus](t)(be.Status(t.Context())) {
		if s.Resources != 2 || s.LagTotal != 0 || s.Note == "" {
			t.Errorf("%+v", s)
		}
	}
}

// TestOperatorReadsTables: as whom a consumer's table is read, and as whom not.
func TestOperatorReadsTables(t *testing.T) {
	c := distrustful(t)
	exec(t, c.admin, fmt.Sprintf("CREATE SCHEMA own AUTHORIZATION %s; CREATE SCHEMA mine; GRANT USAGE ON SCHEMA mine TO %[1]s", c.appName))
	exec(t, c.app, "CREATE TABLE own.t (id bigint, xid xid8); INSERT INTO own.t SELECT g FROM generate_series(1, 7) g")
	exec(t, c.admin, "CREATE TABLE mine.t (id bigint, xid xid8); INSERT INTO mine.t SELECT g FROM generate_series(1, 5) g; GRANT SELECT ON mine.t TO "+c.appName)
	for _, table := range []string{"own.t", "mine.t"} {
		exec(t, c.app, `INSERT INTO leasegen.consumer (name, per, topics, likes, grace, source)
			VALUES ($1::text, 'group', '{}', '{}', '0', '{"table":"' || $1 || '","position":"id","xid":"xid"}')`, table)
		exec(t, c.app, "INSERT INTO leasegen.lease (consumer, resource) VALUES ($1, '*')", table)
	}
	lags := func(pool *pgxpool.Pool) string {
		t.Helper()
		var out []string
		for _, s := range kit.Must[[]operate.ConsumerStatus](t)(leasepg.New(pool).Status(t.Context())) {
			out = append(out, fmt.Sprintf("%s %d %v", s.Consumer, s.LagTotal, s.Note == ""))
		}
		return strings.Join(out, ", ")
	}
	kit.Equal(t, "as the role that the consumers run as", lags(c.app), "mine.t 5 true, own.t 7 true")
	kit.Equal(t, "as a superuser", lags(c.admin), "mine.t 5 true, own.t 0 false")
	// Moving a cursor by such a table is refused with the reason.
	_, err := leasepg.New(c.admin).SetCursor(t.Context(), "own.t", "", operate.CursorTarget{Now: true})
	if err == nil || !strings.Contains(err.Error(), "would run code of role "+c.appName) {
		t.Errorf("cursor set -to now: %v", err)
	}
	_, err = leasepg.New(c.app).SetCursor(t.Context(), "own.t", "", operate.CursorTarget{Now: true})
	kit.OK(t, err)

	// A table that is locked is reported, and all else is answered.
	tx := kit.Must[pgx.Tx](t)(c.app.Begin(t.Context()))
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), "LOCK TABLE own.t")
	kit.OK(t, err)
	kit.Equal(t, "with a locked table", lags(c.app), "mine.t 5 true, own.t 0 false")
	kit.OK(t, tx.Rollback(t.Context()))

	// Row-level security would count some of the rows for all.
	exec(t, c.admin, "ALTER TABLE mine.t ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON mine.t USING (id = 1)")
	kit.Equal(t, "with hidden rows", lags(c.app), "mine.t 0 false, own.t 0 true")
}
