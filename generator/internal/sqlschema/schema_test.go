package sqlschema

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRead: every layout's files, in the order of their numbers, without what rolls back.
func TestRead(t *testing.T) {
	root := t.TempDir()
	for name, content := range map[string]string{
		"plain/1_a.sql": "a", "plain/2_b.sql": "b", "plain/10_c.sql": "c", "plain/readme.md": "no", "plain/.hidden.sql": "no",
		"migrate/000001_a.up.sql": "a", "migrate/000001_a.down.sql": "no", "migrate/000002_b.up.sql": "b",
		"goose/00001_a.sql": "-- +goose Up\na\n-- +goose Down\nno\n", "goose/20240101_b.sql": "b\n",
		"dbmate/1.sql": "-- migrate:up\r\na\r\n-- migrate:down\r\nno\r\n", "tern/1.sql": "a\n---- create above / drop below ----\nno",
		"flyway/V2__b.sql": "b", "flyway/V10__c.sql": "c", "flyway/V1__a.sql": "a", "none/x.txt": "", "one.sql": "one",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"plain": "plain/1_a.sql=a plain/2_b.sql=b plain/10_c.sql=c", "migrate": "migrate/000001_a.up.sql=a migrate/000002_b.up.sql=b",
		"goose": "goose/00001_a.sql=-- +goose Up\na\n goose/20240101_b.sql=b\n", "dbmate": "dbmate/1.sql=-- migrate:up\r\na\r\n",
		"tern": "tern/1.sql=a\n", "flyway": "flyway/V1__a.sql=a flyway/V2__b.sql=b flyway/V10__c.sql=c", "one.sql": "one.sql=one",
	} {
		files, err := Read(root, []string{path})
		if err != nil {
			t.Error(err)
			continue
		}
		var got []string
		for _, f := range files {
			got = append(got, f.Path+"="+string(f.Content))
		}
		if joined := strings.Join(got, " "); joined != want {
			t.Errorf("%s: %q, want %q", path, joined, want)
		}
	}
	for _, path := range []string{"none", "gone"} {
		if _, err := Read(root, []string{path}); err == nil {
			t.Errorf("%s: no error", path)
		}
	}
}

// apply is what is left of a migration, its lines joined by |.
func apply(content string) string {
	kept, _, err := up([]byte(content))
	if err != nil {
		return "refused: " + err.Error()
	}
	return strings.ReplaceAll(string(kept), "\n", "|")
}

// TestMarks: what rolls back is never applied, in any spelling that a tool knows. A spelling that the tool itself would not take
// for a mark is refused.
func TestMarks(t *testing.T) {
	for content, want := range map[string]string{
		// goose: dashes and space anywhere, in any case.
		"-- +goose Up\na;\n--+goose Down\nb;\n":          "-- +goose Up|a;|",
		"-- +goose UP\na;\n--   +goose   DOWN  \r\nb;\n": "-- +goose UP|a;|",
		"--+goose up\na;\n-- +goosedown --\nb;":          "--+goose up|a;|",
		"-- +goose NO TRANSACTION\n-- +goose Up\n-- +goose StatementBegin\na\n-- +goose StatementEnd\n-- +goose Down\n-- +goose StatementBegin\nb\n-- +goose StatementEnd\n": "-- +goose NO TRANSACTION|-- +goose Up|-- +goose StatementBegin|a|-- +goose StatementEnd|",
		// dbmate: options, space or none, several sections.
		"-- migrate:up\na;\n-- migrate:down transaction:false\nb;":                            "-- migrate:up|a;|",
		"--migrate:up transaction:false\na;\n--migrate:down\nb;":                              "--migrate:up transaction:false|a;|",
		"--\tmigrate:up\na;\n--\t migrate:down  \nb;\n-- migrate:up\nc;\n-- migrate:down\nd;": "--\tmigrate:up|a;|||-- migrate:up|c;|",
		// sql-migrate: sections in any order; what stands before the first is passed over.
		"x;\n-- +migrate Down\nb;\n-- +migrate  Up notransaction\na;\n": "|||-- +migrate  Up notransaction|a;|",
		"x;\n-- +migrate Up\na;\n-- +migrate Down\nb;":                  "|-- +migrate Up|a;|",
		// tern: wherever its separator stands.
		"a;\n  ---- create above / drop below ----\nb;": "a;|  ",
		"a; ---- create above / drop below ----\nb;":    "a; ",
		// Atlas: files in a file.
		"-- atlas:txtar\n\n-- checks.sql --\nx;\n-- migration.sql --\na;\n-- down.sql --\nb;\n": "||||-- migration.sql --|a;|",
		// No marks.
		"a; -- migrate:down\n-- see +goose\n-- down\n":           "a; -- migrate:down|-- see +goose|-- down|",
		"-- checks.sql --\na;\n-- +migrate StatementBegin":       "-- checks.sql --|a;|-- +migrate StatementBegin",
		"a;\n-- migrate:downtime\nb;\n-- +migrate Downgrade\nc;": "a;||b;||c;", // sqlc would not read on
		// Looks like a mark, and is none.
		"-- +goose Up\na;\n -- +goose Down\nb;":       "refused: line 3: \" -- +goose Down\" is no mark of a rollback to goose; write \"-- +goose Down\"",
		"-- +goose Up\na;\n-- + goose Down\nb;":       "refused: line 3: \"-- + goose Down\" is no mark of a rollback to goose; write \"-- +goose Down\"",
		"-- +goose Up\na;\n-- +goose Down now\nb;":    "refused: line 3: \"-- +goose Down now\" is no mark of a rollback to goose; write \"-- +goose Down\"",
		"-- migrate:up\na;\n -- migrate:down\nb;":     "refused: line 3: \" -- migrate:down\" is no mark of a rollback to dbmate; write \"-- migrate:down\"",
		"-- migrate:up\na;\n-- Migrate: Down\nb;":     "refused: line 3: \"-- Migrate: Down\" is no mark of a rollback to dbmate; write \"-- migrate:down\"",
		"-- +migrate Up\na;\n-- +migrate down\nb;":    "refused: line 3: \"-- +migrate down\" is no mark of a rollback to sql-migrate; write \"-- +migrate Down\"",
		"-- +migrate Up\na;\n--+migrate Down\nb;":     "refused: line 3: \"--+migrate Down\" is no mark of a rollback to sql-migrate; write \"-- +migrate Down\"",
		"a;\n-- create above / drop below\nb;":        "refused: line 2: \"-- create above / drop below\" is no mark of a rollback to tern; write \"---- create above / drop below ----\"",
		"a;\n---- Create above / drop below ----\nb;": "refused: line 2: \"---- Create above / drop below ----\" is no mark of a rollback to tern; write \"---- create above / drop below ----\"",
	} {
		if got := apply(content); got != want {
			t.Errorf("%q\ngot  %q\nwant %q", content, got, want)
		}
	}
}

// TestLayouts: the files of each tool's layout in the order in which it applies them, without those that roll back.
func TestLayouts(t *testing.T) {
	for _, c := range []struct{ name, files, want string }{
		{"flyway versions", "V1__a V1_1__b V1.2__c V1.10__d V2__e V9__f V10__g V010.0.1__h U1__a U1.2__c R__y R__x afterMigrate notes",
			"V1__a V1_1__b V1.2__c V1.10__d V2__e V9__f V10__g V010.0.1__h R__x R__y"},
		{"flyway baseline", "V1__a V2__b B2__all V3__c B1__old U3__c", "B2__all V3__c"},
		{"flyway nested", "V2__b one/V1__a two/more/V3__c two/U3__c R__x one/R__w", "one/V1__a V2__b two/more/V3__c one/R__w R__x"},
		{"prisma", "20240102_b/migration 20240101_a/migration 20240101_a/down", "20240101_a/migration 20240102_b/migration"},
		{"hasura", "default/2_b/up default/2_b/down default/1_a/up default/1_a/down", "default/1_a/up default/2_b/up"},
		{"by year", "2024/1_c 2023/10_b 2023/2_a", "2023/2_a 2023/10_b 2024/1_c"},
		{"plain with more below", "1_a 2_b later/3_c .git/4_d", "1_a 2_b later/3_c"},
		{"golang-migrate", "1_a.up 1_a.down 10_b.up 10_b.down 2_c.up shared/x", "1_a.up 2_c.up 10_b.up"},
		{"db-migrate", "sqls/1-a-up sqls/1-a-down sqls/2-b-up sqls/2-b-down", "sqls/1-a-up sqls/2-b-up"},
		{"a word that is no mark", "1_shut_down 2_scale-down 3_b_up 3_b_down", "1_shut_down 2_scale-down 3_b_up"},
		{"goose", "2_b:goose 10_c:goose shared/1_x", "2_b:goose 10_c:goose"},
		{"dbmate, by text", "9_b:dbmate 10_a:dbmate", "10_a:dbmate 9_b:dbmate"},
		{"tern", "1_a:tern 2_b sub/x", "1_a:tern 2_b"},
		{"atlas, by text", "9_b 10_a atlas.sum sub/x", "10_a 9_b"},
	} {
		root := t.TempDir()
		marks := map[string]string{"goose": "-- +goose Up\n", "dbmate": "-- migrate:up\n", "tern": "\n---- create above / drop below ----\n"}
		for name := range strings.FieldsSeq(c.files) {
			base, mark, _ := strings.Cut(name, ":")
			if base != "atlas.sum" {
				base += ".sql"
			}
			path := filepath.Join(root, "db", filepath.FromSlash(base))
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(marks[mark]), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		files, err := Read(root, []string{"db"})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var want []string
		for name := range strings.FieldsSeq(c.want) {
			base, _, _ := strings.Cut(name, ":")
			want = append(want, "db/"+base+".sql")
		}
		var got []string
		for _, f := range files {
			got = append(got, f.Path)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\ngot  %v\nwant %v", c.name, got, want)
		}
	}
}

// TestReadNames: a file that is named for itself has to be a migration, and none is read twice.
func TestReadNames(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"db/1_a.up.sql", "db/1_a.down.sql", "db/U1__x.sql", "db/.env"} {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("SECRET"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{"db/1_a.down.sql": "rolls back", "db/U1__x.sql": "rolls back", "db/.env": "not an .sql file"} {
		if _, err := Read(root, []string{path}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if files, err := Read(root, []string{"db", "db/1_a.up.sql"}); err != nil || len(files) != 1 {
		t.Errorf("%d files, %v", len(files), err)
	}
}

func parse(sql string) *Schema { return Parse([]File{{"1.sql", []byte(sql)}}) }

func TestColumns(t *testing.T) {
	s := parse(`
CREATE TABLE IF NOT EXISTS app."Out" (
    id bigint GENERATED ALWAYS AS IDENTITY (START 5 CACHE 7),
    b text DEFAULT ('a' || lower('B,')) NOT NULL CHECK (b <> ','),
    c serial, CONSTRAINT x UNIQUE (b, c), PRIMARY KEY (id)
);
ALTER TABLE ONLY app."Out" ADD COLUMN d xid8 DEFAULT pg_current_xact_id() NOT NULL, DROP COLUMN IF EXISTS b;
ALTER TABLE app."Out" ADD COLUMN IF NOT EXISTS d int, ADD CONSTRAINT y CHECK (d IS NOT NULL);
ALTER TABLE app."Out" RENAME COLUMN c TO e;
ALTER TABLE app."Out" RENAME TO outbox;
CREATE FUNCTION f() RETURNS int LANGUAGE sql AS $$ ALTER TABLE app.outbox DROP COLUMN d; $$;
`)
	table := s.Table("app", "outbox")
	if table == nil || s.Table("app", "Out") != nil {
		t.Fatal("not renamed")
	}
	var names []string
	for _, c := range table.Columns {
		names = append(names, c.Name)
	}
	if !slices.Equal(names, []string{"id", "e", "d"}) {
		t.Errorf("columns %v", names)
	}
	id, _ := table.Column("id")
	if d, _ := table.Column("d"); d.Default != "pg_current_xact_id ( )" || !id.Identity || s.Cache("app", "outbox", id) != 7 {
		t.Errorf("%+v %+v", id, d)
	}
	if e, _ := table.Column("e"); !e.Serial || s.Cache("app", "outbox", e) != 1 {
		t.Errorf("%+v", e)
	}
}

// TestDefaults: what stands around the expression of a default has no effect.
func TestDefaults(t *testing.T) {
	for text, want := range map[string]string{
		"pg_current_xact_id()":                               "pg_current_xact_id ( )",
		"(pg_current_xact_id())":                             "pg_current_xact_id ( )",
		"((pg_catalog.pg_current_xact_id()))::xid8 NOT NULL": "pg_current_xact_id ( )",
		"pg_current_xact_id()::pg_catalog.xid8":              "pg_current_xact_id ( )",
		"CAST(PG_CATALOG.PG_CURRENT_XACT_ID() AS xid8)":      "pg_current_xact_id ( )",
		"(\"pg_current_xact_id\"()) UNIQUE":                  "pg_current_xact_id ( )",
		"(pg_catalog.nextval('s'::regclass))":                "nextval ( s : : regclass )",
		"app.pg_current_xact_id()":                           "app . pg_current_xact_id ( )",
		"(a()) + (b())":                                      "( a ( ) ) + ( b ( ) )",
		"a()::int + 1":                                       "a ( ) : : int + 1",
		"pg_current_xact_id()::text::xid8":                   "pg_current_xact_id ( ) : : text : : xid8",
	} {
		c, _ := parse("CREATE TABLE t (xid xid8 DEFAULT "+text+", id int);").Table("public", "t").Column("xid")
		if c.Default != want {
			t.Errorf("%s: %q, want %q", text, c.Default, want)
		}
		c, _ = parse("CREATE TABLE t (xid xid8); ALTER TABLE t ALTER xid SET DEFAULT "+text+";").Table("public", "t").Column("xid")
		if c.Default != want {
			t.Errorf("%s, set later: %q, want %q", text, c.Default, want)
		}
	}
}

func TestSequences(t *testing.T) {
	const sequences = `
CREATE TABLE a (id bigserial); ALTER SEQUENCE a_id_seq INCREMENT 1 CACHE 3;
CREATE SEQUENCE IF NOT EXISTS app.own CACHE 4; CREATE TABLE b (id bigint DEFAULT nextval('app.own'::regclass));
CREATE TABLE c (id bigint); ALTER TABLE c ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY; ALTER TABLE c ALTER id SET CACHE 5;
CREATE TABLE d (id bigserial); ALTER TABLE d SET SCHEMA app; DROP TABLE a2;
`
	s := parse(`CREATE SEQUENCE app."Own" CACHE 6; CREATE TABLE e (id bigint DEFAULT nextval('APP."Own"'::regclass));
CREATE TABLE "F" ("OrderID" bigserial); ALTER SEQUENCE "F_OrderID_seq" CACHE 7;`)
	for name, want := range map[string]int{"e.id": 6, "F.OrderID": 7} {
		table, column, _ := strings.Cut(name, ".")
		c, _ := s.Table("public", table).Column(column)
		if got := s.Cache("public", table, c); got != want {
			t.Errorf("%s: CACHE %d, want %d", name, got, want)
		}
	}
	s = parse(sequences)
	for name, want := range map[string]int{"public.a": 3, "public.b": 4, "public.c": 5, "app.d": 1} {
		schema, table, _ := strings.Cut(name, ".")
		c, i := s.Table(schema, table).Column("id")
		if got := s.Cache(schema, table, c); i != 0 || got != want {
			t.Errorf("%s: CACHE %d, want %d", name, got, want)
		}
	}
}

func TestTriggers(t *testing.T) {
	s := parse(`
CREATE TABLE a (id int);
CREATE TRIGGER one BEFORE UPDATE OR INSERT ON a FOR EACH STATEMENT EXECUTE FUNCTION f();
CREATE OR REPLACE TRIGGER two BEFORE INSERT ON public.a EXECUTE PROCEDURE f();
CREATE TRIGGER row BEFORE INSERT ON a FOR EACH ROW EXECUTE FUNCTION f();
CREATE TRIGGER after AFTER INSERT ON a FOR EACH STATEMENT EXECUTE FUNCTION f();
CREATE TRIGGER change BEFORE UPDATE ON a FOR EACH STATEMENT EXECUTE FUNCTION f();
CREATE TRIGGER gone BEFORE INSERT ON a FOR EACH STATEMENT EXECUTE FUNCTION f();
DROP TRIGGER IF EXISTS gone ON a;
`)
	if got := s.Table("public", "a").Triggers; !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("triggers %v", got)
	}
}

// FuzzParse: migrations are what people wrote.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"CREATE TABLE", "CREATE TABLE a (", "ALTER TABLE a", "CREATE TABLE a(b int);ALTER TABLE a ALTER", "CREATE TRIGGER t BEFORE", "DROP TRIGGER t ON",
		"CREATE TABLE a(b int);ALTER TABLE a ADD", "CREATE SEQUENCE", "ALTER SEQUENCE s CACHE"} {
		f.Add(s)
	}
	for _, s := range []string{"-- +goose Up\n--+goose Down", "--migrate:up\n-- migrate:down\n", "-- +migrate Down\n-- +migrate Up", "a ---- create above / drop below ----\n",
		"-- atlas:txtar\n-- down.sql --\n-- migration.sql --\n", "x xid8 DEFAULT ((a())::b.c)", "CREATE TABLE t (x xid8 DEFAULT cast(a() as b))"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		parse(sql)
		kept, _, err := up([]byte(sql))
		if err == nil && strings.Count(string(kept), "\n") > strings.Count(sql, "\n") {
			t.Errorf("%q has more lines than %q", kept, sql)
		}
	})
}
