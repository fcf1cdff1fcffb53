package main

import (
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// target is what an operation works on, where that is, for people, without user and password, and the flags that lead there.
type target struct {
	operate.Operator
	where string
	flags []string // as a shell takes them
}

// hiddenDSN stands for a DSN that is not shown, as it may have a password.
const hiddenDSN = `"$DSN"`

// flagsAgain are the flags with which a command works on the same database.
func (d *database) flagsAgain(from string) (flags []string) {
	if from == "-dsn" {
		dsn, ok := quoted(d.dsn)
		if !ok || !showable(d.dsn) {
			dsn = hiddenDSN
		}
		flags = append(flags, "-dsn", dsn)
	}
	for _, name := range []string{"schema", "namespace"} { // checked already
		if d.given(name) {
			flags = append(flags, "-"+name, d.fs.Lookup(name).Value.String())
		}
	}
	return flags
}

// showable reports whether a DSN has no secret, whatever reads it.
func showable(dsn string) bool {
	if strings.Contains(strings.ToLower(dsn), "password") || strings.Contains(dsn, "%") {
		return false
	}
	if !strings.Contains(dsn, "://") {
		return true
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return false
	}
	_, secret := u.User.Password()
	return !secret && (u.User == nil || !isRedis(dsn)) // a Redis user is easily a password without its colon
}

// plainWord is a word that no shell reads anything into.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:@%+,][A-Za-z0-9_./:@%+,=-]*$`)

// quoted is a word as a shell takes it. It is not ok for one that cannot be typed, or that would be taken for a flag.
func quoted(word string) (text string, ok bool) {
	switch {
	case plainWord.MatchString(word):
		return word, true
	case strings.HasPrefix(word, "-") || printable(word, len(word)) != word:
		return "", false
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'", true
}

// command is a command on the same database as it is to be typed: its name, what is said of it, and its flags. It is empty when
// a name that others have stored cannot be typed.
func (on target) command(words string, names ...any) string {
	for i, name := range names {
		word, ok := quoted(fmt.Sprint(name))
		if !ok {
			return ""
		}
		names[i] = word
	}
	return strings.Join(append([]string{"leasegen " + fmt.Sprintf(words, names...)}, on.flags...), " ")
}

// hint is a text that ends with the command to type next.
func hint(text, command string) string {
	if command == "" {
		return text
	}
	return text + ": " + command
}

// next prints hints, and what stands for a DSN in them.
func (on target) next(w io.Writer, hints ...string) error {
	if strings.Contains(strings.Join(hints, " "), hiddenDSN) {
		hints = append(hints, hiddenDSN+" stands for the DSN that you gave: it may have a password")
	}
	_, err := fmt.Fprintln(w, strings.Join(hints, "\n"))
	return err
}

const (
	lateAfter = time.Minute // an unread message so old needs attention
	mostNeeds = 20          // lines
)

// needs says in words what a consumer needs, and the command that goes on from there, the worst first.
func (on target) needs(c operate.ConsumerStatus) (lines []string) {
	name := named(c.Consumer)
	say := func(when bool, command, format string, args ...any) {
		if when {
			lines = append(lines, name+": "+hint(fmt.Sprintf(format, args...), command))
		}
	}
	running := c.Members > 0
	say(!running && c.Resources > 0 && !c.Paused, on.command("forget %s", c.Consumer), "no process runs it; start one or, if it was removed")
	say(running && c.Unowned > 0 && !c.Paused, on.command("status %s -members", c.Consumer),
		"%s no owner, which is normal for a moment; if it stays, see which processes are full", verb(c.Unowned, "resource", "has", "have"))
	say(c.OldestUnread >= lateAfter && !c.Paused, on.command("status %s -leases", c.Consumer),
		"its oldest unread message has waited for %s; see whose resource is furthest behind", age(c.OldestUnread))
	say(c.ParkedKeys > 0, on.command("parked %s", c.Consumer), "%s for a retry; see why", verb(c.ParkedKeys, "key", "waits", "wait"))
	say(c.DeadLetters > 0, on.command("dlq list %s", c.Consumer), "%s given up on; see why", verb(c.DeadLetters, "message", "was", "were"))
	return lines
}

func verb(n int, noun, one, many string) string {
	if n == 1 {
		return plural(n, noun) + " " + one
	}
	return plural(n, noun) + " " + many
}

// printNeeds says what consumers need.
func (on target) printNeeds(w *output, consumers []operate.ConsumerStatus) error {
	var lines []string
	for _, c := range consumers {
		lines = append(lines, on.needs(c)...)
	}
	if more := len(lines) - mostNeeds; more > 0 {
		lines = append(lines[:mostNeeds], fmt.Sprintf("%s; leasegen status NAME has those of one consumer", plural(more, "more line")))
	}
	if len(lines) == 0 {
		return nil
	}
	for i := range lines {
		lines[i] = w.paint(attention + lines[i])
	}
	return on.next(w, lines...)
}
