package stage

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// The replicas are this test binary, run again: they append to a file until they end.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "-replica" {
		if err := count(os.Args[3] + "/" + os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func count(path string) error {
	ctx, stop := Context(true)
	defer stop()
	if got := os.Getenv("DATABASE_URL"); got != "postgres://somewhere" {
		return fmt.Errorf("DATABASE_URL is %q", got)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		if _, err := f.WriteString("."); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	_, err = f.WriteString("end")
	return err
}

func TestReplicasAreStoppedKilledAndFrozen(t *testing.T) {
	f := New("postgres://somewhere")
	defer f.Close()
	dir := t.TempDir()
	f.Args = []string{dir}
	wrote := func(name string) string {
		b, _ := os.ReadFile(dir + "/" + name)
		return string(b)
	}
	grows := func(name string) {
		t.Helper()
		n := len(wrote(name))
		err := Until(t.Context(), name+" goes on", func() (bool, error) { return len(wrote(name)) > n, nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Start("a", "b", "c"); err != nil {
		t.Fatal(err)
	}
	for _, name := range f.Running() {
		grows(name)
	}
	if err := f.Start("a"); err == nil {
		t.Error("a second replica of the same name was started")
	}
	pid := f.PID("b")
	if pid == 0 || f.PID("z") != 0 || f.Name(pid) != "b" || f.Name(0) != "" {
		t.Errorf("process %d is %q, process 0 is %q", pid, f.Name(pid), f.Name(0))
	}

	if err := f.Stop("a"); err != nil {
		t.Error(err)
	}
	if !strings.HasSuffix(wrote("a"), "end") {
		t.Error("a was stopped and did not finish")
	}
	if err := f.Kill("b"); err != nil {
		t.Error(err)
	}
	if strings.HasSuffix(wrote("b"), "end") {
		t.Error("b was killed and finished all the same")
	}
	if err := f.Kill("b"); err == nil {
		t.Error("b was killed twice")
	}

	if err := f.Freeze("c"); err != nil {
		t.Fatal(err)
	}
	err := Until(t.Context(), "c stands still", func() (bool, error) {
		n := len(wrote("c"))
		time.Sleep(20 * time.Millisecond)
		return len(wrote("c")) == n, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Thaw("c"); err != nil {
		t.Fatal(err)
	}
	grows("c")
	if err := f.Freeze("c"); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(f.Running()); got != "[c]" {
		t.Errorf("running are %s, want [c]", got)
	}
	if err := f.Close(); err != nil { // frozen or not
		t.Error(err)
	}
	if !strings.HasSuffix(wrote("c"), "end") {
		t.Error("the fleet was closed and c did not finish")
	}
	if err := f.Start("d"); err != nil || len(f.Running()) > 0 {
		t.Errorf("after Close: %v, running %v; want nothing to happen", err, f.Running())
	}
}

func TestReplicasEndWithTheirParent(t *testing.T) {
	f := New("postgres://somewhere")
	f.Args = []string{t.TempDir()}
	if err := f.Start("a"); err != nil {
		t.Fatal(err)
	}
	f.procs["a"].Orphan()
	err := Until(t.Context(), "the replica ends", func() (bool, error) {
		b, _ := os.ReadFile(f.Args[0] + "/a")
		return strings.HasSuffix(string(b), "end"), nil
	})
	if err != nil {
		t.Error(err)
	}
	f.Close()
}

func TestUntilStopsWaiting(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Until(ctx, "never", func() (bool, error) { return false, nil }); err != context.Canceled {
		t.Errorf("with its context cancelled: %v", err)
	}
	boom := fmt.Errorf("boom")
	if err := Until(t.Context(), "boom", func() (bool, error) { return false, boom }); err != boom {
		t.Errorf("with an error: %v", err)
	}
}

func TestAtOnceReturnsAllErrors(t *testing.T) {
	err := AtOnce(3, func(i int) error {
		if i == 1 {
			return nil
		}
		return fmt.Errorf("error %d", i)
	})
	if err == nil || err.Error() != "error 0\nerror 2" {
		t.Errorf("got %v, want the errors 0 and 2", err)
	}
}

func TestSharesAreInOrder(t *testing.T) {
	if got := Shares(map[string]int{"b": 2, "a": 1, "c": 0}); got != "a 1, b 2, c 0" {
		t.Errorf("got %q", got)
	}
}

func TestDatabaseStartsAServerUnlessOneIsGiven(t *testing.T) {
	dsn, end, err := Database("postgres://given")
	if err != nil || dsn != "postgres://given" {
		t.Fatalf("%q, %v", dsn, err)
	}
	end()
	dsn, end, err = Database("")
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	pool, err := Prepare(t.Context(), dsn, "CREATE TABLE mine (n int)")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var n int
	if err := pool.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM mine) + (SELECT count(*) FROM leasegen.message)").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := Prepare(t.Context(), dsn, "nonsense"); err == nil {
		t.Error("wrong ddl is no error")
	}
}
