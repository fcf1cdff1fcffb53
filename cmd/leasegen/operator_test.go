package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// leasegen runs the command as a shell would.
func leasegen(t *testing.T, vars map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	e := &env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Dir: t.TempDir(), Getenv: func(k string) string { return vars[k] }}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code = run(ctx, e, args)
	return code, out.String(), errs.String()
}

func mustRun(t *testing.T, vars map[string]string, args ...string) string {
	t.Helper()
	code, out, errs := leasegen(t, vars, args...)
	if code != exitOK {
		t.Fatalf("leasegen %s: exit %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// inPath is an environment in which leasegen is a command.
func inPath(t *testing.T, vars ...string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := "#!/bin/sh\nLEASEGEN_TEST_MAIN=1 exec '" + self + "' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "leasegen"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return append([]string{"PATH=" + dir + ":" + os.Getenv("PATH"), "HOME=" + dir, "LANG=C.UTF-8"}, vars...)
}

// attentive is a database with a consumer that has two dead letters.
func attentive(t *testing.T) (be *leasepg.Backend, dsn string) {
	t.Helper()
	dsn = pgtest.DB(t)
	mustRun(t, nil, "migrate", "-dsn", dsn)
	be = leasepg.New(poolOf(t, dsn))
	deadLetter(t, be)
	return be, dsn
}

func poolOf(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// schemaOf is how confirmations name the schema of a DSN.
func schemaOf(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return "schema leasegen of database " + strings.TrimPrefix(u.Path, "/") + " on " + u.Host
}

// From an empty database to a replayed dead letter, with the command alone.
func TestOperatorOnPostgres(t *testing.T) {
	dsn := pgtest.DB(t)
	vars := map[string]string{"LEASEGEN_DSN": dsn}
	in := ", in " + schemaOf(t, dsn)

	if code, _, errs := leasegen(t, vars, "status"); code != exitError || !strings.Contains(errs, "leasegen migrate") || strings.Count(errs, "\n") != 1 {
		t.Errorf("status of an empty database: exit %d, want one line that names leasegen migrate:\n%s", code, errs)
	}
	if out := mustRun(t, vars, "migrate"); !strings.HasPrefix(out, "applied ") || !strings.Contains(out, schemaOf(t, dsn)+" is ready") {
		t.Errorf("migrate: %s", out)
	}
	if out := mustRun(t, nil, "migrate", "-dsn", dsn); !strings.HasSuffix(out, "is up to date\n") || strings.Count(out, "\n") != 1 {
		t.Errorf("migrate again: %s", out)
	}
	expect(t, mustRun(t, vars, "status"), "no consumer has run on this database yet\n")

	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	deadLetter(t, leasepg.New(pool))
	out := mustRun(t, vars, "status")
	if want := "mailing   topic  session          1        0         0        1         0  -                        0             2\n"; !strings.Contains(out, want) {
		t.Errorf("status:\n%swant it to have\n%s", out, want)
	}
	out = mustRun(t, vars, "status", "mailing", "-leases", "-format", "json")
	var doc struct{ Consumers []consumerJSON }
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Consumers) != 1 || len(doc.Consumers[0].Leases) != 1 || doc.Consumers[0].Leases[0].Epoch == 0 {
		t.Errorf("status as json (%v):\n%s", err, out)
	}

	if out := mustRun(t, vars, "pause", "mailing"); !strings.HasPrefix(out, "paused mailing"+in+" (0 live members): ") {
		t.Errorf("pause: %s", out)
	}
	if out := mustRun(t, vars, "status"); !strings.Contains(out, "\nmailing PAUSED  topic ") || !strings.Contains(out, "\nmailing: PAUSED ") {
		t.Errorf("status of a consumer that is paused:\n%s", out)
	}
	if out := mustRun(t, vars, "resume", "mailing"); !strings.HasPrefix(out, "resumed mailing"+in+" (0 live members) after ") || strings.Contains(mustRun(t, vars, "status"), "PAUSED") {
		t.Errorf("resume: %s", out)
	}

	out = mustRun(t, vars, "dlq", "list", "mailing")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 5 || !strings.Contains(lines[1], "no such address") || !strings.Contains(lines[2], "mailbox is full") {
		t.Fatalf("dlq list:\n%s", out)
	}
	id := strings.Fields(lines[1])[0]
	if out := mustRun(t, vars, "dlq", "show", "mailing", "-id", id); !strings.Contains(out, `{"to":"ann"}`) {
		t.Errorf("dlq show:\n%s", out)
	}
	expect(t, mustRun(t, vars, "dlq", "replay", "mailing", "-reason", "*full"), "would replay 1 of 2 dead letters of mailing"+in+"; run again with -yes\n")
	expect(t, mustRun(t, vars, "dlq", "replay", "mailing", "-reason", "*full", "-yes"), "replayed 1 of 2 dead letters of mailing"+in+"\n"+
		"they wait until a process runs it; see what becomes of them: leasegen status mailing\n")
	if out := mustRun(t, vars, "parked", "mailing"); strings.Count(out, "\n") != 4 || !strings.Contains(out, " due") {
		t.Errorf("parked:\n%s", out)
	}
	expect(t, mustRun(t, vars, "dlq", "purge", "mailing"), "would purge 1 of 1 dead letters of mailing"+in+"; run again with -yes\n")
	expect(t, mustRun(t, vars, "dlq", "purge", "mailing", "-yes"), "purged 1 of 1 dead letters of mailing"+in+"\n")
	expect(t, mustRun(t, vars, "dlq", "list", "mailing"), "mailing has no dead letters\n")
	if out := mustRun(t, vars, "status"); !strings.Contains(out, "           1             0\n") {
		t.Errorf("the replayed message is not parked:\n%s", out)
	}
	if out := mustRun(t, vars, "forget", "mailing"); !strings.HasPrefix(out, "would forget mailing"+in+": the cursors of 1 resource, ") {
		t.Errorf("forget: %s", out)
	}

	code, _, errs := leasegen(t, vars, "dlq", "list", "mailin")
	expect(t, errs, "leasegen dlq: there is no consumer \"mailin\"; known: mailing\n")
	if code != exitError {
		t.Errorf("exit %d, want %d", code, exitError)
	}

	expect(t, mustRun(t, vars, "forget", "mailing", "-yes"), "forgot mailing"+in+"\n")
	expect(t, mustRun(t, vars, "status"), "no consumer has run on this database yet\n")
	for _, table := range []string{"consumer", "lease", "parked", "dead_letter", "once"} {
		var n int
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM leasegen."+table).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows left in %s, %v", n, table, err)
		}
	}
}

// A consumer's data is kept while a reason stands against forgetting it, for any caller.
func TestForgetOnPostgres(t *testing.T) {
	dsn := pgtest.DB(t)
	vars := map[string]string{"LEASEGEN_DSN": dsn}
	mustRun(t, vars, "migrate")
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	be := leasepg.New(pool)
	deadLetter(t, be)
	refused := func(want string, args ...string) {
		t.Helper()
		if code, _, errs := leasegen(t, vars, args...); code != exitError || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: exit %d, %swant one line with %s", args, code, errs, want)
		}
	}
	refused("mailing has 2 dead letters; look at them", "forget", "mailing", "-yes")
	if err := be.Forget(t.Context(), "mailing"); err == nil {
		t.Error("a consumer with dead letters was forgotten")
	}
	mustRun(t, vars, "dlq", "purge", "mailing", "-yes")
	session, err := be.OpenSession(t.Context(), backend.SessionSpec{ID: strings.Repeat("ab", 16), TTL: time.Minute, Host: "web-1", PID: 7, Consumers: []string{"mailing"}})
	if err != nil {
		t.Fatal(err)
	}
	refused("mailing has 1 live member; stop its programs first", "forget", "mailing", "-yes")
	if err := be.Forget(t.Context(), "mailing"); err == nil {
		t.Error("a consumer that is alive was forgotten")
	}
	if err := session.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	role := fmt.Sprintf("forgetful_%d", os.Getpid())
	for _, sql := range []string{"CREATE ROLE " + role + " LOGIN", mustRun(t, nil, "migrate", "-grants", role)} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	vars["LEASEGEN_DSN"] = strings.Replace(dsn, "postgres@", role+"@", 1)
	refused("permission denied", "forget", "mailing", "-yes")
	vars["LEASEGEN_DSN"] = dsn
	expect(t, mustRun(t, vars, "forget", "mailing", "-yes"), "forgot mailing, in "+schemaOf(t, dsn)+"\n")
	refused("there is no consumer", "forget", "mailing", "-yes")
}

// deadLetter runs a consumer that gives up on two messages.
func deadLetter(t *testing.T, be lease.Backend) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := be.Publish(ctx, []lease.Event{
		{Topic: "mail.eu", Key: "ann", Kind: "mail", Payload: []byte(`{"to":"ann"}`)},
		{Topic: "mail.eu", Key: "bob", Kind: "mail", Payload: []byte(`{"to":"bob"}`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	committed := make(chan int, 10)
	c, err := lease.NewConsumer(be, lease.Spec{
		Name: "mailing", Per: lease.PerTopic, Topics: []string{"mail.*"},
		Handlers: []lease.Handler{lease.One("mail", func(_ context.Context, m lease.Message[[]byte]) error {
			if m.Key == "ann" {
				return lease.DeadLetter("no such address")
			}
			return lease.DeadLetter("mailbox is full")
		})},
	}, lease.WithObserver(operate.ObserverFunc(func(o operate.Observation) {
		if o, ok := o.(operate.ObservedCommit); ok {
			committed <- o.Dead
		}
	})))
	if err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(run) }()
	for n := 0; n < 2; {
		select {
		case d := <-committed:
			n += d
		case err := <-ended:
			t.Fatalf("the consumer ended: %v", err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// migrate does what -print shows: a database made by hand from it works.
func TestMigratePrint(t *testing.T) {
	dsn := pgtest.DB(t)
	sql := mustRun(t, nil, "migrate", "-print")
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("the printed SQL does not run: %v", err)
	}
	if out := mustRun(t, nil, "migrate", "-dsn", dsn); !strings.Contains(out, "is up to date") {
		t.Errorf("migrate after the printed SQL: %s", out)
	}
	role := fmt.Sprintf("app_%d", os.Getpid())
	if _, err := pool.Exec(t.Context(), `CREATE ROLE `+role+` LOGIN`); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), mustRun(t, nil, "migrate", "-grants", role)); err != nil {
		t.Fatalf("the printed grants do not run: %v", err)
	}
	// The role may read the status and publish, and may not change the schema.
	app := strings.Replace(dsn, "postgres@", role+"@", 1)
	expect(t, mustRun(t, nil, "status", "-dsn", app), "no consumer has run on this database yet\n")
	appPool, err := pgxpool.New(t.Context(), app)
	if err != nil {
		t.Fatal(err)
	}
	defer appPool.Close()
	if err := leasepg.New(appPool).Check(t.Context(), nil); err != nil {
		t.Errorf("with the printed grants: %v", err)
	}
	if _, err := appPool.Exec(t.Context(), `DROP TABLE leasegen.message`); err == nil {
		t.Error("the application's role may drop tables")
	}
}

func TestMigrateOtherSchema(t *testing.T) {
	dsn := pgtest.DB(t)
	vars := map[string]string{"DATABASE_URL": dsn}
	if out := mustRun(t, vars, "migrate", "-schema", "jobs"); !strings.Contains(out, "schema jobs of") {
		t.Errorf("migrate: %s", out)
	}
	expect(t, mustRun(t, vars, "status", "-schema", "jobs"), "no consumer has run on this database yet\n")
	if code, _, _ := leasegen(t, vars, "status"); code != exitError {
		t.Errorf("the default schema: exit %d, want %d", code, exitError)
	}
	for _, args := range [][]string{{"migrate", "-schema", `x"; DROP TABLE t; --`}, {"migrate", "-print", "-schema", "a.b"}, {"status", "-schema", "a.b"}} {
		if code, _, errs := leasegen(t, vars, args...); code != exitError || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: exit %d\n%s", args, code, errs)
		}
	}
}

// However a DSN is broken, one line says what is wrong, and its password is not in it.
func TestBrokenDSN(t *testing.T) {
	const secret = "s3cr3t-pass"
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "none"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dsn := range []string{
		"postgres://u:" + secret + "@127.0.0.1:1/db",                          // a port without a listener
		"postgres://u:" + secret + "@127.0.0.1:99999/db",                      // no port
		"postgres://u:" + secret + "@127.0.0.1:abc/db",                        // no number
		"postgres://u:" + secret + "@[::1/db",                                 // no host
		"postgres://u:" + secret + "%zz@127.0.0.1/db",                         // bad escape
		"postgres://u:" + secret + "@no.such.host.invalid/db",                 // no such host
		"postgres://u:" + secret + "@127.0.0.1:1/db?sslmode=perhaps",          // no such mode
		"postgres://u:" + secret + "@127.0.0.1:1/db?connect_timeout=soon",     // no number
		"postgres://u:" + secret + "@127.0.0.1:1/db?pool_max_conns=many",      // no number
		"postgres://u:" + secret + "@127.0.0.1:1/db?sslrootcert=" + dir + "x", // no file
		"host=127.0.0.1 port=1 user=u password=" + secret + " sslmode=perhaps",
		"host=127.0.0.1 port=x user=u password='" + secret + "'",
		"host=127.0.0.1 port=1 user=u password='" + secret, // no closing quote
		"host 127.0.0.1 password=" + secret,
		"mysql://u:" + secret + "@127.0.0.1/db",
		secret,
	} {
		code, out, errs := leasegen(t, nil, "status", "-dsn", dsn)
		if code != exitError || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%s: exit %d, want one line:\n%s%s", strings.ReplaceAll(dsn, secret, "xxx"), code, out, errs)
		}
		if strings.Contains(errs, secret) {
			t.Errorf("the password is shown: %s", errs)
		}
	}
	code, _, errs := leasegen(t, nil, "status")
	expect(t, errs, "leasegen status: no database named: give -dsn, or set LEASEGEN_DSN, DATABASE_URL, PGHOST or REDIS_URL\n")
	if code != exitError {
		t.Errorf("exit %d, want %d", code, exitError)
	}
}

// A password that is not escaped ends where the URL seems to go on: none of what stands behind that is shown either.
func TestNoPartOfAPasswordIsShown(t *testing.T) {
	specials := []string{"/", "#", "?", ":", "@", "%", "[", "]", " ", "\\", "/1?", "=", "&"}
	for _, one := range specials[:6] {
		for _, two := range specials {
			specials = append(specials, one+"x"+two)
		}
	}
	for _, special := range specials {
		for _, dsn := range []string{"postgres://u:canary%sc4n4ry@127.0.0.1:1/db", "postgresql://u:1%sc4n4ry@127.0.0.1:1/db", "postgres://u:%sc4n4ry@127.0.0.1:1/db?sslmode=disable",
			"postgres://u:%sc4n4ry=@127.0.0.1:1/db"} {
			if special == "=" || special == "&" {
				continue // fine as it is
			}
			dsn = fmt.Sprintf(strings.ReplaceAll(dsn, "%s", "%[1]s"), special)
			code, out, errs := leasegen(t, nil, "status", "-dsn", dsn)
			if code != exitError || out != "" || strings.Contains(errs, "c4n4ry") || strings.Contains(errs, "canary") {
				t.Errorf("%q: exit %d\n%s%s", dsn, code, out, errs)
			}
		}
	}
}

// A DSN without user information may have an @ in its settings.
func TestDSNsThatAreFine(t *testing.T) {
	for _, dsn := range []string{
		"postgres://127.0.0.1:1/db?user=me@server&password=x", "postgres:///db?host=127.0.0.1&port=1&application_name=a@b",
		"postgres://u:p@127.0.0.1:1,127.0.0.1:2/db", "postgres://u%40server:p%2F@127.0.0.1:1/db",
	} {
		if err := escaped(dsn); err != nil {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}

func TestOperatorUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		want string
	}{
		{"status a b", `leasegen status: one consumer at a time, not ["a" "b"]`},
		{"status -members", "leasegen status: -members and -leases need the name of a consumer"},
		{"status a -format xml", `leasegen status: -format "xml" is unknown; known: text, json`},
		{"status a -leases -limit 0", "leasegen status: -limit 0 is below 1"},
		{"status -interval 1s", "leasegen status: -interval goes with -watch"},
		{"status -watch -interval 1ms", "leasegen status: -interval 1ms is below 100ms"},
		{"dlq", "leasegen dlq: say what to do: list, show, groups, replay, purge"},
		{"migrate now", `leasegen migrate: unexpected argument "now"`},
	} {
		code, _, errs := leasegen(t, nil, strings.Fields(c.args)...)
		if code != exitError || errs != c.want+"\n" {
			t.Errorf("leasegen %s: exit %d, %s; want %s", c.args, code, errs, c.want)
		}
	}
	for _, name := range []string{"status", "dlq", "migrate"} {
		if code, _, errs := leasegen(t, nil, name, "-h"); code != exitOK || !strings.HasPrefix(errs, "usage: leasegen "+name) {
			t.Errorf("%s -h: exit %d\n%s", name, code, errs)
		}
	}
}
