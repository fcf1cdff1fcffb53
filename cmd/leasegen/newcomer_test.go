package main

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// A message is stuck. A newcomer, who knows leasegen --help and no more, finds it, understands it and has it handled, by typing
// what each answer says: with the database in the environment, named by a flag, and by one that has a password.
func TestNewcomer(t *testing.T) {
	t.Run("PostgreSQL", func(t *testing.T) {
		dsn := pgtest.DB(t)
		mustRun(t, nil, "migrate", "-dsn", dsn)
		pool, err := pgxpool.New(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		newcomer(t, leasepg.New(pool), "leasegen status", "LEASEGEN_DSN="+dsn)
	})
	t.Run("Redis", func(t *testing.T) {
		s := redistest.Shared(t)
		be, on := onRedis(t, s.Client(t), s.URL())
		newcomer(t, be, "leasegen status "+strings.Join(on, " "))
	})
	t.Run("Redis Cluster", func(t *testing.T) {
		c := redistest.SharedCluster(t)
		be, on := onRedis(t, c.Client(t), "")
		namespace := on[len(on)-1]
		user := c.User(t, "newcomer", leaseredis.ACL(namespace)...).Options()
		dsn := (&url.URL{Scheme: "redis", User: url.UserPassword(user.Username, user.Password), Host: c.Addrs()[0], RawQuery: "cluster=true"}).String()
		said := newcomer(t, be, `leasegen status -namespace `+namespace+` -dsn "$DSN"`, "DSN="+dsn)
		if strings.Contains(said, user.Password) || !strings.Contains(said, "\"$DSN\" stands for the DSN that you gave: it may have a password\n") {
			t.Errorf("said of the password:\n%s", said)
		}
	})
}

// newcomer returns all that was answered.
func newcomer(t *testing.T, be lease.Backend, first string, vars ...string) string {
	const key = "o'hara; touch owned \x1b[2J\u202e"
	var repaired atomic.Bool
	c, err := lease.NewConsumer(be, lease.Spec{
		Name: "billing", Per: lease.PerTopic, Topics: []string{"orders.*"}, Retry: lease.Retry{Max: 2, Min: time.Hour, Cap: time.Hour},
		Handlers: []lease.Handler{lease.One("order.placed", func(_ context.Context, m lease.Message[[]byte]) error {
			if m.Key == key && !repaired.Load() {
				return errors.New("the bank says 503\x1b]0;owned\a" + strings.Repeat(" and on", 150_000))
			}
			return nil
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	err = be.Publish(t.Context(), []lease.Event{
		{Topic: "orders.eu", Key: key, Kind: "order.placed", Payload: []byte("{\"card\":\"tok\x1b[2J\"}")}, {Topic: "orders.eu", Key: "ann", Kind: "order.placed"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	n := &beginner{T: t, env: inPath(t, vars...)}
	began := time.Now()
	if !strings.Contains(n.types("leasegen --help"), "Begin with leasegen status") {
		t.Fatal("help does not say where to begin:\n" + n.answer)
	}
	n.types(first)
	n.until("billing: 1 key waits for a retry; see why")
	n.follows("see why")
	n.reads("orders.eu", "503", `o'hara; touch owned \x1b[2J\u202e`)
	n.follows("see one whole")
	n.reads("attempts      1\n", "error         the bank says 503", "and on and on")
	n.follows("try it now, when the cause is gone") // it is not gone
	n.reads("made 1 parked message of billing, id ")
	n.follows("see what becomes of them")
	n.until("billing: 1 message was given up on; see why")
	n.follows("see why")
	n.follows("see one whole")
	n.reads("attempts      2\n", "reason        the bank says 503", `{"card":"tok\x1b[2J"}`)
	repaired.Store(true)
	n.follows("handle it again, when the cause is gone")
	n.reads("replayed 1 of 1 dead letters of billing")
	n.follows("see what becomes of them")
	n.untilNot("see why")
	took := time.Since(began)
	t.Logf("found, understood and repaired with %d commands in %.1f s", len(n.typed), took.Seconds())
	if took > time.Minute {
		t.Errorf("a newcomer's repair took %v, want at most a minute", took)
	}
	if want := documented(t); !slices.Equal(n.typed[1:], want) {
		t.Errorf("typed:\n%s\ndocs/operating.md has:\n%s", strings.Join(n.typed[1:], "\n"), strings.Join(want, "\n"))
	}
	return n.all
}

// beginner types commands.
type beginner struct {
	*testing.T
	env         []string
	line        string   // typed last
	typed       []string // without what names databases and messages
	answer, all string
}

var (
	anyID    = regexp.MustCompile(`-id \S+`)
	anyWhere = regexp.MustCompile(` -(dsn|namespace) \S+`)
)

// types has a shell run a line.
func (n *beginner) types(line string) string {
	n.Helper()
	n.line = line
	plain := anyWhere.ReplaceAllString(anyID.ReplaceAllString(line, "-id ID"), "")
	if len(n.typed) == 0 || n.typed[len(n.typed)-1] != plain {
		n.typed = append(n.typed, plain)
	}
	cmd := exec.CommandContext(n.Context(), "sh", "-c", line)
	cmd.Env, cmd.Dir = n.env, n.TempDir()
	out, err := cmd.CombinedOutput()
	n.answer = string(out)
	n.all += n.answer
	if err != nil {
		n.Fatalf("%s: %v\n%s", line, err, out)
	}
	if i := strings.IndexFunc(n.answer, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
		n.Errorf("%s steers the terminal: %q", line, n.answer[i:])
	}
	if left, err := os.ReadDir(cmd.Dir); err != nil || len(left) > 0 {
		n.Errorf("%s has run what others wrote: %v, %v", line, left, err)
	}
	return n.answer
}

// follows types the command behind a hint.
func (n *beginner) follows(words string) {
	n.Helper()
	found := regexp.MustCompile(`(?m)` + regexp.QuoteMeta(words) + `: (leasegen .+)$`).FindStringSubmatch(n.answer)
	if found == nil {
		n.Fatalf("no command behind %q in:\n%s", words, n.answer)
	}
	n.types(found[1])
}

func (n *beginner) reads(texts ...string) {
	n.Helper()
	for _, text := range texts {
		if !strings.Contains(n.answer, text) {
			n.Errorf("%s does not say %q:\n%s", n.line, text, n.answer)
		}
	}
}

// until types the same again until the answer has a text.
func (n *beginner) until(text string) { n.Helper(); n.waits(text, true) }

func (n *beginner) untilNot(text string) { n.Helper(); n.waits(text, false) }

func (n *beginner) waits(text string, said bool) {
	n.Helper()
	for deadline := time.Now().Add(time.Minute); strings.Contains(n.answer, text) != said; n.types(n.line) {
		if time.Now().After(deadline) {
			n.Fatalf("%s: said %v is not to come, %q:\n%s", n.line, said, text, n.answer)
		}
	}
}

// documented are the commands of the page for operators.
func documented(t *testing.T) (commands []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## A message is stuck\n")
	if !found {
		t.Fatal("docs/operating.md has no section on a message that is stuck")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for _, m := range regexp.MustCompile(`(?m)^\$ (.+)$`).FindAllStringSubmatch(section, -1) {
		commands = append(commands, anyID.ReplaceAllString(m[1], "-id ID"))
	}
	return commands
}
