package main

import (
	"cmp"
	"context"
	"embed"
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/leasegen/leasegen/generator"
)

// The scripts ask leasegen itself for what may stand at the cursor.
//
//go:embed completion
var completionScripts embed.FS

func completion(e *env, args []string) error {
	if len(args) == 1 {
		if script, err := completionScripts.ReadFile("completion/leasegen." + args[0]); err == nil {
			_, err = e.Stdout.Write(script)
			return err
		}
	}
	return usagef("name one shell: bash, zsh, fish")
}

const (
	// completing is the command that the scripts call, with the words up to the cursor. It prints what may stand in the
	// last one's place, each on a line, with a tab and a description behind.
	completing = "__complete"
	// directories stands for a choice that the shell makes itself.
	directories = ":directories"
	// answerTime is how long a shell waits for a server.
	answerTime = 2 * time.Second
)

// complete prints candidates. Errors are silent: the user is typing.
func complete(ctx context.Context, e *env, words []string) int {
	if len(words) == 0 {
		return exitOK
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	quiet := *e
	quiet.Stderr = io.Discard
	before, word := words[:len(words)-1], words[len(words)-1]
	for _, c := range candidates(ctx, &quiet, before, word) {
		if c == directories || strings.HasPrefix(c, word) {
			fmt.Fprintln(e.Stdout, c)
		}
	}
	return exitOK
}

// candidates are what may stand behind the words before.
func candidates(ctx context.Context, e *env, before []string, word string) (out []string) {
	c, ok := command{}, false
	if len(before) > 0 {
		if c, ok = lookup(before[0]); ok {
			before = before[1:]
		}
	}
	if !ok { // generate, as long as it is no other command
		if len(before) == 0 && !strings.HasPrefix(word, "-") {
			for _, c := range commands() {
				out = append(out, c.name()+"\t"+c.short)
			}
			return append(out, directories)
		}
		c, _ = lookup("generate")
	}
	fs, _ := c.flags(e)
	rest, pending := c.soFar(fs, before)
	name, _, isValue := strings.Cut(strings.TrimLeft(word, "-"), "=")
	switch {
	case pending != "":
		return valuesOf(c, pending)
	case strings.HasPrefix(word, "-") && isValue:
		given := word[:strings.Index(word, "=")+1]
		for _, v := range valuesOf(c, name) {
			out = append(out, given+v)
		}
		return out
	case strings.HasPrefix(word, "-"):
		fs.VisitAll(func(f *flag.Flag) {
			_, usage := flag.UnquoteUsage(f)
			out = append(out, "-"+f.Name+"\t"+usage)
		})
		return out
	}
	return c.argumentAt(ctx, e, fs, len(rest))
}

// soFar reads what has been typed. It returns the arguments, and the flag whose value comes next, if one does.
func (c command) soFar(fs *flag.FlagSet, words []string) (rest []string, pending string) {
	for i := 0; i < len(words); i++ {
		name, value, isSet := strings.Cut(strings.TrimLeft(words[i], "-"), "=")
		f := fs.Lookup(name)
		switch {
		case !strings.HasPrefix(words[i], "-") || words[i] == "-":
			rest = append(rest, words[i])
		case f == nil:
		case isSet:
			_ = fs.Set(name, value)
		case isBool(f):
			_ = fs.Set(name, "true")
		case i+1 == len(words):
			return rest, name
		default:
			i++
			_ = fs.Set(name, words[i])
		}
	}
	return rest, ""
}

func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// valuesOf are the values of a flag, where there are few.
func valuesOf(c command, flag string) []string {
	switch flag {
	case "format":
		if c.flagsFirst {
			return generator.Formats()
		}
		return []string{"text", "json"}
	case "to":
		return []string{"beginning", "now"}
	case "rights":
		return []string{"publish", "consume"}
	case "C":
		return []string{directories}
	}
	return nil
}

// argumentWords are the words of a usage: the name, then the arguments.
var argumentWords = regexp.MustCompile(`\[[^\]]*\]|\S+`)

// argumentAt are candidates for the i-th argument, as the usage has it.
func (c command) argumentAt(ctx context.Context, e *env, fs *flag.FlagSet, i int) []string {
	places := slices.DeleteFunc(argumentWords.FindAllString(c.usage, -1)[1:], func(w string) bool { return w == "[flags]" })
	if slices.Contains(places, "[packages]") {
		return []string{directories}
	}
	if i >= len(places) {
		return nil
	}
	switch place := strings.Trim(places[i], "[]"); place {
	case "consumer":
		return consumers(ctx, e, fs)
	case "command":
		return commandNames()
	case "directive or code":
		return generator.Explained()
	default:
		if !strings.Contains(place, "|") {
			return nil
		}
		return strings.Split(place, "|")
	}
}

// plainName is a name that no shell reads anything into.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// consumers asks the database that the flags and the environment name.
func consumers(ctx context.Context, e *env, fs *flag.FlagSet) (names []string) {
	value := func(name string) string {
		if f := fs.Lookup(name); f != nil {
			return f.Value.String()
		}
		return ""
	}
	d := &database{fs: fs, dsn: value("dsn"), schema: value("schema"), namespace: value("namespace")}
	_ = d.withTarget(ctx, e, func(on target) error {
		all, err := on.Status(ctx)
		for _, s := range all {
			if plainName.MatchString(s.Consumer) {
				what := cmp.Or(s.Per, "consumer")
				if s.DeadLetters > 0 {
					what += ", " + plural(s.DeadLetters, "dead letter")
				}
				names = append(names, s.Consumer+"\t"+printable(what, 100))
			}
		}
		return err
	})
	return names
}
