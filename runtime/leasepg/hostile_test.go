package leasepg_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/internal/tabletest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// hostile is what a role with CREATE on public can put there: an operator, or a function, that PostgreSQL prefers
// to its own for arguments that fit no signature exactly. Each call fails.
const hostile = `
DO $do$
DECLARE
	kinds  CONSTANT text[] := '{int2,int4,int8,numeric,float8,text,varchar,name,interval,timestamptz,timestamp,xid8,jsonb,text[],int8[]}';
	signs  CONSTANT text[] := '{=,<>,<,<=,>,>=,+,-,*,/,%,||,&,@>,<@,?,->,->>,~,~~,!~~}';
	a text; b text; o text; p record; i int; k text; args text[];
BEGIN
	FOREACH a IN ARRAY kinds LOOP
		FOREACH b IN ARRAY kinds LOOP
			EXECUTE format('CREATE FUNCTION public.hostile(%s, %s) RETURNS bool LANGUAGE plpgsql AS $f$ BEGIN RAISE EXCEPTION ''hostile''; END $f$', a, b);
			EXECUTE format('CREATE FUNCTION public.hostile2(%s, %s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN RAISE EXCEPTION ''hostile''; END $f$', a, b, a);
			FOREACH o IN ARRAY signs LOOP
				IF to_regoperator('pg_catalog.' || o || '(' || a || ',' || b || ')') IS NULL THEN
					EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.%s)', o, a, b,
						CASE WHEN o IN ('+','-','*','/','%','||','&','->','->>') THEN 'hostile2' ELSE 'hostile' END);
				END IF;
			END LOOP;
		END LOOP;
	END LOOP;
	-- Functions: those of pg_catalog with one argument's type changed to another one.
	FOR p IN SELECT q.proname, q.proargtypes::oid[] AS types, q.prorettype
	         FROM pg_proc q WHERE q.pronamespace = 'pg_catalog'::regnamespace AND q.prokind = 'f' AND q.provariadic = 0
	           AND q.pronargs BETWEEN 1 AND 3 AND q.proname = ANY (:names) LOOP
		FOR i IN 0 .. cardinality(p.types) - 1 LOOP
			FOREACH k IN ARRAY kinds LOOP
				SELECT array_agg(CASE WHEN t.n - 1 = i THEN k ELSE format_type(t.oid, NULL) END ORDER BY t.n) INTO args
				FROM unnest(p.types) WITH ORDINALITY t (oid, n);
				IF to_regprocedure(format('pg_catalog.%I(%s)', p.proname, array_to_string(args, ','))) IS NULL THEN
					BEGIN
						EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN RAISE EXCEPTION ''hostile''; END $f$',
							p.proname, array_to_string(args, ','), p.prorettype::regtype);
					EXCEPTION WHEN OTHERS THEN NULL; -- there already, or pseudo-types
					END;
				END IF;
			END LOOP;
		END LOOP;
	END LOOP;
END $do$`

// performs finds what the DO block of a statement does.
var performs = regexp.MustCompile(`(?s)BEGIN\s+PERFORM (.*?);\s+EXCEPTION WHEN [a-zA-Z_ ]+ THEN\s+NULL;\s+END \$\$`)

// statements are the constants of SQL in Go files, by name.
func statements(t *testing.T, globs ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, g := range globs {
		for _, file := range kit.Must[[]string](t)(filepath.Glob(g)) {
			f := kit.Must[*ast.File](t)(parser.ParseFile(token.NewFileSet(), file, nil, 0))
			ast.Inspect(f, func(n ast.Node) bool {
				v, is := n.(*ast.ValueSpec)
				if !is || len(v.Values) != 1 {
					return true
				}
				if l, is := v.Values[0].(*ast.BasicLit); is && strings.HasPrefix(l.Value, "`-- name: ") {
					out[filepath.Base(filepath.Dir(filepath.Dir(file)))+"."+v.Names[0].Name] = kit.Must[string](t)(strconv.Unquote(l.Value))
				}
				return true
			})
		}
	}
	return out
}

// TestNothingResolvesOutsidePgCatalog: no operator and no function that a statement of the runtime, or one that is
// generated for a table, or the schema itself uses is one that another role has made.
func TestNothingResolvesOutsidePgCatalog(t *testing.T) {
	all := statements(t, "internal/leasedb/*.go", "../../internal/tabletest/leasedb/*.go")
	if len(all) < 60 {
		t.Fatalf("%d statements", len(all))
	}
	dsn := pgtest.DB(t)
	public, pool := open(t, dsn), open(t, dsn+"&search_path=pg_catalog") // the test's own statements are not to be caught
	conn := kit.Must[*pgxpool.Conn](t)(public.Acquire(t.Context()))
	defer conn.Release()
	// Names called anywhere: every word before a parenthesis.
	called := map[string]bool{}
	for _, sql := range all {
		for i, part := range strings.Split(sql, "(") {
			words := strings.FieldsFunc(part, func(r rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz_0123456789", r) })
			if i >= 0 && len(words) > 0 {
				called[words[len(words)-1]] = true
			}
		}
	}
	names := make([]string, 0, len(called))
	for n := range called {
		names = append(names, "'"+n+"'")
	}
	slices.Sort(names)
	exec(t, pool, strings.Replace(hostile, ":names", "ARRAY["+strings.Join(names, ",")+"]::name[]", 1))
	made := query[int64](t, pool, "SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace") +
		query[int64](t, pool, "SELECT count(*) FROM pg_operator WHERE oprnamespace = 'public'::regnamespace")
	if made < 5000 {
		t.Fatalf("%d hostile functions and operators", made)
	}
	_, err := leasepg.Migrate(t.Context(), conn)
	kit.OK(t, err)
	for _, sql := range kit.Must[[]string](t)(tabletest.Schema()) {
		exec(t, pool, sql)
	}
	exec(t, pool, "CREATE SCHEMA probe")
	probes := map[string]string{}
	for name, sql := range all {
		sql := leasepg.Sent(sql)
		if block := performs.FindAllStringSubmatch(sql, -1); strings.Contains(sql, "DO $$") && len(block) == 1 {
			sql = "SELECT " + block[0][1] // it cannot be prepared, and has no other part
		}
		_, err := conn.Exec(t.Context(), "PREPARE probed AS "+sql)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var types string
		_, err = conn.Exec(t.Context(), "SET search_path = pg_catalog")
		kit.OK(t, err)
		kit.OK(t, conn.QueryRow(t.Context(), "SELECT array_to_string(parameter_types::text[], ',') FROM pg_prepared_statements WHERE name = 'probed'").Scan(&types))
		_, err = conn.Exec(t.Context(), "RESET search_path")
		kit.OK(t, err)
		_, err = conn.Exec(t.Context(), "DEALLOCATE probed")
		kit.OK(t, err)
		probe := "p" + strconv.Itoa(len(probes))
		probes[probe] = name
		// A body in the SQL standard's form notes in pg_depend what it resolved to.
		if _, err := conn.Exec(t.Context(), fmt.Sprintf("CREATE FUNCTION probe.%s(%s) RETURNS void LANGUAGE sql BEGIN ATOMIC %s; END", probe, types, sql)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	rows := kit.Must[pgx.Rows](t)(pool.Query(t.Context(), `
		SELECT coalesce(f.proname, pg_describe_object(d.classid, d.objid, d.objsubid)), pg_describe_object(d.refclassid, d.refobjid, 0)
		FROM pg_depend d LEFT JOIN pg_proc f ON d.classid = 'pg_proc'::regclass AND f.oid = d.objid AND f.pronamespace = 'probe'::regnamespace
		WHERE (d.refclassid = 'pg_operator'::regclass AND d.refobjid IN (SELECT oid FROM pg_operator WHERE oprnamespace = 'public'::regnamespace)
		    OR d.refclassid = 'pg_proc'::regclass AND d.refobjid IN (SELECT oid FROM pg_proc WHERE pronamespace = 'public'::regnamespace))
		  AND (f.oid IS NOT NULL OR d.classid <> 'pg_operator'::regclass)`))
	for rows.Next() {
		var by, what string
		kit.OK(t, rows.Scan(&by, &what))
		if probes[by] != "" {
			by = probes[by]
		}
		t.Errorf("%s uses %s of another role", by, what)
	}
	kit.OK(t, rows.Err())
	// Functions of the schema resolve when they run.
	unpinned := kit.Must[pgx.Rows](t)(pool.Query(t.Context(), `SELECT p.oid::regprocedure::text FROM pg_proc p
		WHERE p.pronamespace = 'leasegen'::regnamespace AND NOT coalesce(p.proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false)`))
	for _, f := range kit.Must[[]string](t)(pgx.CollectRows(unpinned, pgx.RowTo[string])) {
		t.Errorf("function %s does not fix search_path", f)
	}
}

// TestRetriesAreNotMoved: with CREATE on public, and no rights on leasegen's schema, another role makes the operators that
// times are calculated with, and retries would wait for a thousand years.
func TestRetriesAreNotMoved(t *testing.T) {
	c := distrustful(t)
	exec(t, c.admin, "GRANT CREATE ON SCHEMA public TO "+c.strangerName)
	for _, types := range [][2]string{{"numeric", "int4"}, {"int8", "interval"}} {
		exec(t, c.stranger, fmt.Sprintf(`CREATE FUNCTION public.later(%[1]s, %[2]s) RETURNS %[2]s LANGUAGE sql AS $$ SELECT %[3]s $$;
			CREATE OPERATOR public.* (LEFTARG = %[1]s, RIGHTARG = %[2]s, FUNCTION = public.later)`, types[0], types[1],
			map[string]string{"int4": "2000000000", "interval": "interval '1000 years'"}[types[1]]))
	}
	be := leasepg.New(c.app)
	kit.OK(t, be.Publish(t.Context(), append(kit.Events("x", 2), backend.Event{Topic: "x", Kind: "k", After: time.Microsecond})))
	kit.OK(t, leasepg.ReleaseDelayed(t.Context(), be))
	session, g := kit.Sole(t, be, topical, "x")
	f := kit.Fetch(t, be, topical, "x", g.Cursor, 9)
	kit.Equal(t, "messages, with the one that was delayed", len(f.Messages), 3)
	_, err := be.Commit(t.Context(), session.ID, topical.Name, []backend.Progress{{Ref: g.Ref, Cursor: f.Next,
		Park: []backend.Park{{ID: f.Messages[0].ID, Lane: "l", Attempt: 1, After: time.Microsecond}}}})
	kit.OK(t, err)
	p := kit.Must[backend.Parked](t)(be.FetchParked(t.Context(), backend.ParkedRequest{Session: session.ID, Consumer: topical, Limit: 9, MaxPayload: 99}))
	kit.Equal(t, "messages due", len(p.Messages), 1)
}
