package main

import (
	"bytes"
	"context"
	"flag"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// steering is an operator whose every text would steer a terminal, and run a command in a shell.
type steering struct {
	paused bool
	dead   int
}

const steer = "'; touch owned;\x1b]0;owned\x07\x1b[2J\r\u009b1mx\u202e\n\xff\u2066"

func (s steering) Status(context.Context) ([]operate.ConsumerStatus, error) {
	return []operate.ConsumerStatus{
		{Consumer: "c", Per: lease.PerGroup.String(), DeadLetters: 1},
		{Consumer: steer, Per: steer, Lock: steer, Note: steer, Resources: 1, Unowned: 1, ParkedKeys: 1, DeadLetters: s.dead, OldestUnread: time.Hour, Paused: s.paused},
	}, nil
}

func (steering) Members(context.Context, string) ([]operate.MemberStatus, error) {
	return []operate.MemberStatus{{Session: steer, Host: steer}}, nil
}

func (steering) Leases(context.Context, string, int) ([]operate.LeaseStatus, error) {
	return []operate.LeaseStatus{{Resource: steer, Session: steer}, {Resource: "r", Session: steer + "gone"}}, nil
}

func (steering) DeadLetters(context.Context, operate.DeadLetterFilter) ([]operate.DeadLetterInfo, error) {
	return []operate.DeadLetterInfo{{ID: steer, Consumer: steer, Resource: steer, MessageID: steer, Topic: steer, Key: steer, Kind: steer, Payload: []byte(steer),
		Headers: map[string]string{steer: steer}, Reason: steer}}, nil
}

func (steering) DeadLetterGroups(context.Context, operate.DeadLetterFilter) (operate.DeadLetterGroups, error) {
	return operate.DeadLetterGroups{Groups: []operate.DeadLetterGroup{{Consumer: steer, Kind: steer, Reason: steer, Example: steer}}, Total: 1, Last: steer, More: true}, nil
}

func (steering) Parked(_ context.Context, f operate.ParkedFilter) ([]operate.ParkedInfo, error) {
	if f.After != "" {
		return nil, nil
	}
	one := operate.ParkedInfo{Place: "p", Resource: steer, MessageID: steer, Topic: steer, Key: steer, Kind: steer, Error: steer, Behind: true}
	if len(f.IDs) > 0 {
		return []operate.ParkedInfo{one}, nil
	}
	return []operate.ParkedInfo{one, one}, nil
}

func (steering) Cursors(context.Context, string, string, int) ([]operate.CursorStatus, error) {
	return []operate.CursorStatus{{Resource: steer, Session: steer, Position: steer}}, nil
}

func (steering) Replay(context.Context, operate.DeadLetterFilter) (int, error)  { return 1, nil }
func (steering) Purge(context.Context, operate.DeadLetterFilter) (int, error)   { return 1, nil }
func (steering) RetryParked(context.Context, operate.ParkedFilter) (int, error) { return 1, nil }
func (steering) Pause(context.Context, string) error                            { return nil }
func (steering) Resume(context.Context, string) error                           { return nil }
func (steering) Forget(context.Context, string) error                           { return nil }
func (steering) SetCursor(context.Context, string, string, operate.CursorTarget) (int, error) {
	return 1, nil
}

// Every operation prints text that other roles wrote to the tables as text, and offers it in no command.
func TestNothingStoredSteersATerminal(t *testing.T) {
	for _, c := range []struct {
		args string
		o    interface {
			flags(fs *flag.FlagSet)
			arguments(rest []string) error
			do(ctx context.Context, out *output, on target) error
		}
	}{
		{"", &status{}}, {"c", &status{}}, {"NAME", &status{}}, {"NAME -members -leases", &status{}}, {"NAME -leases -format json", &status{}},
		{"NAME", &parked{}}, {"NAME -id 1", &parked{}}, {"NAME -retry", &parked{}}, {"NAME -retry -yes", &parked{}}, {"NAME -retry -yes -id NAME", &parked{}}, {"NAME -format json", &parked{}},
		{"list", &dlq{}}, {"list NAME", &dlq{}}, {"list NAME -key NAME", &dlq{}}, {"groups", &dlq{}}, {"groups NAME", &dlq{}}, {"groups NAME -format json", &dlq{}},
		{"show NAME -id 1", &dlq{}}, {"show NAME -id 1 -format json", &dlq{}}, {"replay NAME", &dlq{}}, {"replay NAME -yes", &dlq{}}, {"purge NAME -yes", &dlq{}},
		{"show NAME", &cursor{}}, {"show NAME -format json", &cursor{}}, {"reset NAME", &cursor{}}, {"reset NAME -yes", &cursor{}}, {"set NAME -to now -yes -resource NAME", &cursor{}},
		{"NAME", &pause{}}, {"NAME", &pause{resume: true}}, {"NAME", &forget{}}, {"NAME -yes", &forget{}},
	} {
		args := strings.Fields(c.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "NAME", steer)
		}
		fs := flag.NewFlagSet("", flag.ContinueOnError)
		c.o.flags(fs)
		rest, err := command{}.parse(fs, args)
		if err == nil {
			err = c.o.arguments(rest)
		}
		if err != nil {
			t.Fatal(c.args, err)
		}
		for _, on := range []steering{{}, {paused: true, dead: 1}} {
			var out, shown bytes.Buffer
			w := &output{Writer: &out, progress: progress{&output{Writer: &shown, width: 300}}}
			err := c.o.do(t.Context(), w, target{Operator: on, where: "memory"})
			if _, refused := c.o.(*forget); err != nil && (!refused || on.dead == 0) {
				t.Errorf("%T %s: %v", c.o, c.args, err)
			}
			if out.Len() == 0 && err == nil {
				t.Errorf("%T %s prints nothing", c.o, c.args)
			}
			for _, text := range append(strings.Split(shown.String(), "\x1b[K"), out.String()) {
				text = strings.TrimPrefix(text, "\r")
				if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
					t.Errorf("%T %s: %q", c.o, c.args, text[max(0, i-40):])
				}
			}
			if strings.Contains(out.String(), ": leasegen ") && strings.Contains(out.String(), "touch owned") {
				for line := range strings.Lines(out.String()) {
					if _, command, is := strings.Cut(line, ": leasegen "); is && strings.Contains(command, "touch") {
						t.Errorf("%T %s offers %s", c.o, c.args, command)
					}
				}
			}
		}
	}
}

// Words of a command reach it as they are, whatever shell reads them; what cannot be typed is in none.
func TestQuoted(t *testing.T) {
	for word, want := range map[string]string{
		"billing": "billing", "7-1": "7-1", "a b": "'a b'", "o'hara": `'o'\''hara'`, "$HOME": "'$HOME'", "": "''", "ümlaut": "'ümlaut'", "*": "'*'",
		"redis://127.0.0.1:6379/0": "redis://127.0.0.1:6379/0", "~": "'~'", "=ls": "'=ls'", "a\\nb": `'a\nb'`,
		"-yes": "", "a\nb": "", "\x1b[2J": "", "\u202e": "", "\xff": "", "\t": "",
	} {
		if got, ok := quoted(word); got != want || ok != (want != "") {
			t.Errorf("%q: %s, %v; want %s", word, got, ok, want)
		}
	}
}

func TestShowableDSNs(t *testing.T) {
	for dsn, want := range map[string]bool{
		"postgres://owner@db:5432/shop": true, "postgres:///shop?host=/run": true, "host=db dbname=shop": true, "redis://cache:6379/0?addr=b:6379": true,
		"postgres://owner:s3cret@db/shop": false, "postgres://owner:@db/shop": false, "host=db password=s3cret": false, "postgres://db/shop?password=s3cret": false,
		"postgres://db/shop?Password=s3cret": false, "postgres://db/shop?%70assword=s3cret": false, "postgres://db/shop?sslpassword=s3cret": false,
		"redis://s3cret@cache": false, "redis://:s3cret@cache": false, "rediss://user:s3cret@cache": false, "postgres://[::1": false,
	} {
		if got := showable(dsn); got != want {
			t.Errorf("%s: %v", dsn, got)
		}
	}
}
