package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/runtime/operate"
)

// Output on a terminal fits it, and is coloured only where colours are wanted.
func TestTerminal(t *testing.T) {
	_, dsn := attentive(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	on := func(columns int, vars ...string) string {
		t.Helper()
		vars = append(vars, "LEASEGEN_TEST_MAIN=1", "LEASEGEN_DSN="+dsn)
		code, text := onTerminal(t, columns, 24, vars, self, "status").wait()
		if code != exitOK {
			t.Fatalf("exit %d\n%s", code, text)
		}
		return text
	}
	plain := mustRun(t, map[string]string{"LEASEGEN_DSN": dsn, "TERM": "xterm"}, "status")
	if strings.Contains(plain, "\x1b") || !strings.Contains(plain, "lock") {
		t.Errorf("into a pipe:\n%q", plain)
	}
	const red = "\x1b[31m2\x1b[m\n"
	if got := on(200, "TERM=xterm"); strings.ReplaceAll(strings.ReplaceAll(got, "\x1b[31m", ""), "\x1b[m", "") != plain || !strings.Contains(got, red) {
		t.Errorf("on a wide terminal:\n%q", got)
	}
	for _, vars := range [][]string{{"TERM=dumb"}, {"TERM=xterm", "NO_COLOR=1"}, nil} {
		expect(t, on(200, vars...), plain)
	}
	got := on(80, "TERM=xterm")
	got, _, needs := strings.Cut(got, "\x1b[31mmailing: ")
	if !needs || !strings.Contains(got, red) || !strings.Contains(got, "not shown on a terminal this narrow: per, lock") {
		t.Errorf("on a narrow terminal:\n%q", got)
	}
	for _, line := range strings.Split(strings.ReplaceAll(strings.ReplaceAll(got, "\x1b[31m", ""), "\x1b[m", ""), "\n") {
		if cells(line) > 80 {
			t.Errorf("%d cells: %s", cells(line), line)
		}
	}
}

// A watcher sees what changes, and gets the screen back that was there before.
func TestWatchOnATerminal(t *testing.T) {
	be, dsn := attentive(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := onTerminal(t, 120, 24, []string{"TERM=xterm", "LEASEGEN_TEST_MAIN=1", "LEASEGEN_DSN=" + dsn}, self, "status", "-watch", "-interval", "100ms")
	p.until(enterScreen + "\x1b[H")
	p.until("in schema leasegen of database ")
	p.until("\x1b[31m2\x1b[m\x1b[K")
	if _, err := be.Purge(t.Context(), operate.DeadLetterFilter{Consumer: "mailing"}); err != nil {
		t.Fatal(err)
	}
	p.until("            0\x1b[K\n")
	p.keys("\x03")
	code, text := p.wait()
	if code != exitInterrupted || !strings.HasSuffix(text, leaveScreen) || strings.Count(text, enterScreen) != 1 {
		t.Errorf("exit %d, the end is %q", code, text[max(0, len(text)-200):])
	}
}

// Shells complete commands, flags, their values, and the consumers of the database, as somebody types.
func TestShellsComplete(t *testing.T) {
	_, dsn := attentive(t)
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	// Roles that write to the tables must not put commands under the fingers of an operator.
	if _, err := pool.Exec(t.Context(), `INSERT INTO leasegen.consumer (name, per, topics, likes, grace) VALUES
		('parcels; touch owned', 'group', '{}', '{}', '0'), (E'parc\nels', 'group', '{}', '{}', '0')`); err != nil {
		t.Fatal(err)
	}
	cases := []struct{ typed, want string }{
		{"leasegen dlq pu", "leasegen dlq purge "},
		{"leasegen dlq list -re", "leasegen dlq list -reason "},
		{"leasegen status -format=js", "leasegen status -format=json "},
		{"leasegen cursor set mailing -to be", "leasegen cursor set mailing -to beginning "},
		{"leasegen explain LG010", "leasegen explain LG010"},
		{"leasegen parked ma", "leasegen parked mailing "},
		{"leasegen parked pa", "leasegen parked pa"},
		{"leasegen status -schema nowhere ma", "leasegen status -schema nowhere ma"},
		{"leasegen -check ./ord", "leasegen -check ./orders/"},
		{"leasegen parked -dsn " + dsn + " ma", "leasegen parked -dsn " + dsn + " mailing "}, // with LEASEGEN_DSN gone
	}
	type shell struct {
		name, load string
		args       []string
	}
	for _, shell := range []shell{
		{"bash", "source <(leasegen completion bash)", []string{"--norc", "--noprofile", "-i"}},
		{"zsh", "autoload -Uz compinit; compinit -u; source <(leasegen completion zsh)", []string{"-f", "-i"}},
	} {
		t.Run(shell.name, func(t *testing.T) {
			path, err := exec.LookPath(shell.name)
			if err != nil {
				t.Fatalf("%v; install %s: make tools does", err, shell.name)
			}
			p := onTerminal(t, 400, 24, inPath(t, "TERM=dumb", "PS1=$ ", "LEASEGEN_DSN="+dsn, "INPUTRC=/dev/null"), path, shell.args...)
			p.keys("mkdir orders; " + shell.load + "; echo lo''aded\n")
			p.until("loaded\n")
			for i, c := range cases {
				if i == len(cases)-1 {
					p.keys("unset LEASEGEN_DSN\n")
				}
				// The line as it stands then is printed, in place of run: words are put before it and behind it.
				p.keys(fmt.Sprintf("%s\t\x01echo \"%d[\x05]\"\n", c.typed, i))
				p.until(fmt.Sprintf("\n%d[", i))
				p.until("]\n")
				got, _, _ := strings.Cut(p.until(fmt.Sprintf("\n%d[", i)), "]\n")
				// The shells differ in what they leave behind the last word.
				if strings.TrimRight(got, " /") != strings.TrimRight(c.want, " /") {
					t.Errorf("%s: %q, want %q", c.typed, got, c.want)
				}
			}
			p.keys("exit\n")
			p.wait()
		})
	}
	t.Run("fish", func(t *testing.T) {
		path, err := exec.LookPath("fish")
		if err != nil {
			t.Fatalf("%v; install fish: make tools does", err)
		}
		for i, c := range cases {
			env := inPath(t, "LEASEGEN_DSN="+dsn)
			if i == len(cases)-1 {
				env = inPath(t)
			}
			cmd := exec.CommandContext(t.Context(), path, "-c", "mkdir -p orders; leasegen completion fish | source; complete -C '"+c.typed+"'")
			cmd.Env, cmd.Dir = env, t.TempDir()
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			first, _, _ := strings.Cut(lines[0], "\t")
			switch last := c.want[strings.LastIndex(strings.TrimSpace(c.want), " ")+1:]; {
			case c.typed == c.want && (len(lines) == 1 && first != ""):
				t.Errorf("%s: %q, want nothing, or more than one", c.typed, out)
			case c.typed != c.want && (len(lines) != 1 || first != strings.TrimSpace(last)):
				t.Errorf("%s: %q, want %q", c.typed, out, last)
			}
		}
	})
}
