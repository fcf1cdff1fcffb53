package main

import (
	"context"
	"encoding/json"
	"fmt"
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

// Cursors are shown, and moved only with -yes; their owners are notified to let go.
func TestCursorOnPostgres(t *testing.T) {
	dsn := pgtest.DB(t)
	vars := map[string]string{"LEASEGEN_DSN": dsn}
	in := ", in " + schemaOf(t, dsn)
	mustRun(t, vars, "migrate", "-slots", "4")
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	be := leasepg.New(pool)
	deadLetter(t, be) // of mailing, on the topic mail.eu
	counting := backend.ConsumerInfo{Name: "counting", Per: lease.PerPartition, Topics: []string{"*"}}
	spec := backend.SessionSpec{ID: strings.Repeat("ab", 16), TTL: time.Minute, Host: "web-1", PID: 7, Consumers: []string{"counting"}}
	session, err := be.OpenSession(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(t.Context())
	if err := be.Register(t.Context(), counting, nil); err != nil {
		t.Fatal(err)
	}
	grants, err := be.Acquire(t.Context(), backend.AcquireRequest{Session: spec.ID, Consumer: counting, Max: 3, Attempt: strings.Repeat("cd", 16)})
	if err != nil || len(grants) != 3 {
		t.Fatalf("acquired %d slots of 3: %v", len(grants), err)
	}

	if out := mustRun(t, vars, "status"); !strings.Contains(out, "counting  partition  session          4        1         0        1 ") {
		t.Errorf("status:\n%s", out)
	}
	out := mustRun(t, vars, "cursor", "show", "counting")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 5 || strings.Count(out, "web-1:7") != 3 || strings.Count(out, "beginning") != 4 {
		t.Errorf("cursor show:\n%s", out)
	}
	var doc struct {
		Cursors []cursorJSON
		More    bool
	}
	out = mustRun(t, vars, "cursor", "show", "mailing", "-format", "json")
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Cursors) != 1 || doc.Cursors[0].Position != "2" || doc.Cursors[0].Lag != 0 || doc.More {
		t.Errorf("cursor show as json (%v):\n%s", err, out)
	}

	expect(t, mustRun(t, vars, "cursor", "set", "counting", "-to", "now"),
		"would move 4 cursors of counting to the present"+in+" (3 owned now, taken from their owners): 2 messages unread now would never be handled; run again with -yes\n")
	expect(t, mustRun(t, vars, "cursor", "reset", "mailing"),
		"would move 1 cursor of mailing to the beginning of the log"+in+" (0 owned now, taken from their owners): "+
			"all messages that the log still has are handled again, 0 parked keys and 2 dead letters are dropped; run again with -yes\n"+
			"2 dead letters would be dropped, and are lost where the log has not kept their messages; export them before: leasegen dlq list mailing -format json\n")
	steps := "it is not paused and has 1 live member: what they do after a projection is emptied, and before the cursors move, is counted twice; to rebuild one exactly:\n" +
		"1. pause: leasegen pause counting\n2. wait until all its resources are unowned: leasegen status counting\n3. empty the tables of the projection\n" +
		"4. move the cursors: leasegen cursor %s -yes\n5. resume: leasegen resume counting\n"
	would := "would move 4 cursors of counting to the beginning of the log" + in + " (3 owned now, taken from their owners): " +
		"all messages that the log still has are handled again, 0 parked keys and 0 dead letters are dropped; run again with -yes\n"
	expect(t, mustRun(t, vars, "cursor", "reset", "counting"), would+fmt.Sprintf(steps, "reset counting"))
	mustRun(t, vars, "pause", "counting")
	expect(t, mustRun(t, vars, "cursor", "reset", "counting"), would+
		"it is paused, but has owners still: before you empty a projection, wait until all its resources are unowned: leasegen status counting\n")
	mustRun(t, vars, "resume", "counting")
	expect(t, mustRun(t, vars, "cursor", "set", "counting", "-to", "now", "-yes"), "moved 4 cursors of counting to the present"+in+"\n")
	if out := mustRun(t, vars, "cursor", "show", "counting"); strings.Contains(out, "web-1") || strings.Contains(out, "beginning") {
		t.Errorf("after the move:\n%s", out)
	}
	fenced, err := be.Commit(t.Context(), spec.ID, "counting", []backend.Progress{{Ref: grants[0].Ref, Seq: 1}})
	if err != nil || len(fenced) != 1 {
		t.Errorf("the owner from before was not fenced: %v, %v", fenced, err)
	}
	if out := mustRun(t, vars, "cursor", "set", "counting", "-to", "1"); !strings.HasSuffix(out, fmt.Sprintf(steps, "set counting -to 1")) {
		t.Errorf("a move back:\n%s", out)
	}
	if out := mustRun(t, vars, "cursor", "set", "counting", "-to", "2"); strings.Contains(out, "pause") {
		t.Errorf("a move that is none:\n%s", out)
	}
	expect(t, mustRun(t, vars, "cursor", "set", "mailing", "-to", "1", "-resource", "mail.eu", "-yes"), "moved 1 cursor of mailing behind message 1"+in+"\n")
	if out := mustRun(t, vars, "cursor", "show", "mailing"); !strings.Contains(out, " 1    1  ") {
		t.Errorf("behind message 1:\n%s", out)
	}
	expect(t, mustRun(t, vars, "cursor", "reset", "mailing", "-yes"), "moved 1 cursor of mailing to the beginning of the log"+in+"\n")
	expect(t, mustRun(t, vars, "dlq", "list", "mailing"), "mailing has no dead letters\n")

	for args, want := range map[string]string{
		"set mailing -to 99 -yes":        "leasegen cursor: leasepg: set cursor of mailing: there is no message 99 yet, the last one has id 2\n",
		"set mailing -to soon -yes":      "leasegen cursor: -to \"soon\" is neither beginning, now, nor the id of a message\n",
		"reset mailing -resource x -yes": "leasegen cursor: mailing has no resource \"x\"; see those there are: leasegen cursor show mailing\n",
		"reset mailing -resource x":      "leasegen cursor: mailing has no resource \"x\"; see those there are: leasegen cursor show mailing\n",
		"reset maling":                   "leasegen cursor: there is no consumer \"maling\"; known: counting, mailing\n",
	} {
		code, _, errs := leasegen(t, vars, append([]string{"cursor"}, strings.Fields(args)...)...)
		if code != exitError || errs != want {
			t.Errorf("cursor %s: exit %d\n%swant\n%s", args, code, errs, want)
		}
	}
}

func TestCursorArguments(t *testing.T) {
	for _, c := range []struct {
		c    cursor
		args string
		want string
	}{
		{cursor{}, "", "say what to do: show, reset, set"},
		{cursor{}, "shw a", `"shw" is unknown; known: show, reset, set`},
		{cursor{}, "show", "show needs the name of a consumer"},
		{cursor{}, "reset a b", `one consumer at a time, not ["a" "b"]`},
		{cursor{}, "set a", "set needs -to: beginning, now, or the id of a message"},
		{cursor{to: "foo"}, "set a", `-to "foo" is neither beginning, now, nor the id of a message`},
		{cursor{to: "now"}, "reset a", "-to goes with set only"},
		{cursor{yes: true}, "show a", "-yes goes with reset and set only"},
		{cursor{format: "json"}, "reset a", "-format goes with show only"},
		{cursor{format: "yaml"}, "show a", `-format "yaml" is unknown; known: text, json`},
		{cursor{limit: -1}, "show a", "-limit -1 is below 1"},
	} {
		if c.c.format == "" {
			c.c.format = "text"
		}
		if c.c.limit == 0 {
			c.c.limit = 50
		}
		if err := c.c.arguments(strings.Fields(c.args)); err == nil || err.Error() != c.want {
			t.Errorf("cursor %s: error %v, want %s", c.args, err, c.want)
		}
	}
}

// The number of slots is chosen before the log has messages.
func TestMigrateSlots(t *testing.T) {
	dsn := pgtest.DB(t)
	vars := map[string]string{"LEASEGEN_DSN": dsn}
	mustRun(t, vars, "migrate")
	mustRun(t, vars, "migrate", "-slots", "1024")
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var most int
	for i := range 40 {
		if err := leasepg.New(pool).Publish(t.Context(), []lease.Event{{Topic: "t", Key: fmt.Sprint("k", i), Kind: "k"}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := pool.QueryRow(t.Context(), "SELECT max(slot) FROM leasegen.message").Scan(&most); err != nil || most < 256 || most > 1023 {
		t.Errorf("the highest of 40 slots of 1024 is %d: %v", most, err)
	}
	mustRun(t, vars, "migrate", "-slots", "1024")
	code, _, errs := leasegen(t, vars, "migrate", "-slots", "256")
	expect(t, errs, "leasegen migrate: leasepg: migrate schema leasegen: the log has messages: its 1024 slots cannot become 256\n")
	if code != exitError {
		t.Errorf("exit %d, want %d", code, exitError)
	}
	code, _, errs = leasegen(t, vars, "migrate", "-slots", "20000")
	expect(t, errs, "leasegen migrate: -slots 20000 is not within 1 and 16384\n")
	if code != exitError {
		t.Errorf("exit %d, want %d", code, exitError)
	}
	if out := mustRun(t, nil, "migrate", "-print", "-slots", "512"); !strings.Contains(out, "SELECT leasegen.set_slots(512);") {
		t.Error("-print -slots does not set the slots")
	}
}

// The dry run says what a log that was shortened does not bring back.
func TestCursorOfAShortenedLog(t *testing.T) {
	reads := func(list ...operate.CursorStatus) target {
		return target{Operator: shortened{list: list}, where: "memory"}
	}
	one := []operate.CursorStatus{{Resource: "a", Position: "2000400", Gone: "2000000"}, {Resource: "b", Gone: "2000000"}}
	apart := []operate.CursorStatus{{Resource: "a", Position: "90-1", Gone: "90-1"}, {Resource: "b", Position: "95-0", Gone: "70-0"}, {Resource: "c"}}
	const lacks = "they are not handled again, and a projection that is rebuilt lacks them"
	for _, c := range []struct {
		c    cursor
		verb string
		list []operate.CursorStatus
		want string
	}{
		{cursor{}, "reset", one, "the log has no messages up to 2000000 any more: " + lacks + "\n"},
		{cursor{to: "9000"}, "set", one, "the log has no messages up to 2000000 any more: " + lacks + "\n"},
		{cursor{to: "2000000"}, "set", one, ""},
		{cursor{to: "now"}, "set", one, ""},
		{cursor{}, "reset", apart, "for 2 of 3 cursors the log lacks older messages, at most up to 90-1: " + lacks +
			"; see gone of each: leasegen cursor show c -format json\n"},
		{cursor{to: "80-0"}, "set", apart, "the log has no messages up to 90-1 any more: " + lacks + "\n"},
		{cursor{to: "90-0"}, "set", apart, "the log has no messages up to 90-1 any more: " + lacks + "\n"},
		{cursor{to: "90-1"}, "set", apart, ""},
		{cursor{}, "reset", []operate.CursorStatus{{Resource: "a", Position: "7"}}, ""},
	} {
		c.c.format, c.c.limit = "text", 1
		if err := c.c.arguments([]string{c.verb, "c"}); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := c.c.do(t.Context(), &output{Writer: &out}, reads(c.list...)); err != nil {
			t.Fatal(err)
		}
		if _, notes, _ := strings.Cut(out.String(), "run again with -yes\n"); notes != c.want {
			t.Errorf("%s -to %q of %v:\n%swant\n%s", c.verb, c.c.to, c.list, notes, c.want)
		}
	}
}

// shortened is an operator of a consumer that no process runs.
type shortened struct {
	operate.Operator
	list []operate.CursorStatus
}

func (shortened) Status(context.Context) ([]operate.ConsumerStatus, error) {
	return []operate.ConsumerStatus{{Consumer: "c", Per: "topic"}}, nil
}

func (o shortened) Cursors(context.Context, string, string, int) ([]operate.CursorStatus, error) {
	return o.list, nil
}
