package main

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/pgtest"
)

// operations are all that work on a consumer. The last ones change something.
func operations() [][]string {
	var all [][]string
	for _, line := range []string{"status", "status mailing -members -leases", "dlq list", "dlq groups mailing", "dlq show mailing -id 1", "parked mailing", "parked mailing -retry",
		"cursor show mailing", "cursor reset mailing", "dlq replay mailing -id 1 -yes", "parked mailing -retry -yes", "cursor set mailing -to now -yes", "pause mailing",
		"resume mailing", "cursor reset mailing -yes", "forget mailing -yes"} {
		all = append(all, strings.Fields(line))
	}
	return all
}

// A DSN may grant a single connection: no command waits for a second one while it holds that.
func TestOneConnection(t *testing.T) {
	_, dsn := attentive(t)
	for _, args := range operations() {
		mustRun(t, map[string]string{"LEASEGEN_DSN": dsn + "&pool_max_conns=1&pool_min_conns=5"}, args...)
	}
}

// A schema that does not serve this program is neither shown nor changed by it.
func TestSchemaOfAnotherVersion(t *testing.T) {
	_, dsn := attentive(t)
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, c := range []struct{ sql, want string }{
		{"INSERT INTO leasegen.migration (version, name) VALUES (99, 'later'); UPDATE leasegen.origin SET serves = 99", "deploy a newer program"},
		{"DELETE FROM leasegen.migration WHERE version > 10; UPDATE leasegen.origin SET serves = 10", "has version 10: run leasegen migrate"},
	} {
		if _, err := pool.Exec(t.Context(), c.sql); err != nil {
			t.Fatal(err)
		}
		for _, args := range operations() {
			if code, out, errs := leasegen(t, map[string]string{"LEASEGEN_DSN": dsn}, args...); code != exitError || out != "" || !strings.Contains(errs, c.want) {
				t.Errorf("%q: exit %d, want %s\n%s%s", args, code, c.want, out, errs)
			}
		}
	}
	var left int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM leasegen.dead_letter").Scan(&left); err != nil || left != 2 {
		t.Errorf("%d dead letters are left of 2: %v", left, err)
	}
}

// A variable that is not set names no database, and no other is meant.
func TestEmptyDSN(t *testing.T) {
	code, _, errs := leasegen(t, map[string]string{"LEASEGEN_DSN": "postgres://127.0.0.1:1/db"}, "status", "-dsn", "")
	expect(t, errs, "leasegen status: -dsn is empty\n")
	if code != exitError {
		t.Errorf("exit %d, want %d", code, exitError)
	}
}

// An interrupt ends a command soon, though the server stands still and answers no longer.
func TestInterruptWhileTheServerStandsStill(t *testing.T) {
	server := pgtest.Start(t)
	dsn := server.DB("still")
	mustRun(t, nil, "migrate", "-dsn", dsn)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := onTerminal(t, 120, 24, []string{"TERM=xterm", "LEASEGEN_TEST_MAIN=1", "LEASEGEN_DSN=" + dsn}, self, "status", "-watch", "-interval", "100ms")
	p.until("no consumer has run")
	server.Pause()
	defer server.Resume()
	time.Sleep(300 * time.Millisecond) // it asks again, on the connection that it has
	for _, c := range []struct {
		begun func() (end func() (code int, text string))
		want  string
	}{
		{func() func() (int, string) { return func() (int, string) { p.keys("\x03"); return p.wait() } }, leaveScreen},
		{func() func() (int, string) {
			proxy := faultproxy.Start(t, server.Addr())
			asks := make(chan struct{})
			heard := sync.OnceFunc(func() { close(asks) })
			proxy.Refuse(func([]byte) bool { heard(); return false })
			cmd := exec.CommandContext(t.Context(), self, "status")
			cmd.Env = append(os.Environ(), "LEASEGEN_TEST_MAIN=1", "LEASEGEN_DSN="+strings.Replace(dsn, server.Addr(), proxy.Addr(), 1))
			var text strings.Builder
			cmd.Stderr = &text
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			<-asks // sooner it may not catch the signal yet
			return func() (int, string) {
				if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
					t.Error(err)
				}
				_ = cmd.Wait()
				return cmd.ProcessState.ExitCode(), text.String()
			}
		}, "leasegen status: interrupted\n"},
	} {
		end := c.begun()
		began := time.Now()
		code, text := end()
		if code != exitInterrupted || !strings.HasSuffix(text, c.want) {
			t.Errorf("exit %d, %q, want %q at the end", code, text[max(0, len(text)-200):], c.want)
		}
		if took := time.Since(began); took > 9*time.Second { // waiting for the server takes fifteen
			t.Errorf("it took %v", took)
		}
	}
}
