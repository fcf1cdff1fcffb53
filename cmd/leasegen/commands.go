package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
)

// Exit codes, as diff has them.
const (
	exitOK          = 0
	exitDiffers     = 1   // check and diff: what is on disk is not what would be generated
	exitError       = 2   // findings, wrong flags, or anything that went wrong
	exitInterrupted = 130 // as a shell says of a command that SIGINT ended
)

// env is what a command sees of its process.
type env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Dir            string // working directory
	Getenv         func(string) string
}

// command is one word that leasegen understands as its first argument.
type command struct {
	usage    string // after "leasegen ": its name, then its arguments; completion reads them here
	short    string
	notes    string   // what help says below the usage
	examples []string // each after "leasegen "
	// flagsFirst says that flags end where the other arguments begin.
	flagsFirst bool
	// set declares the flags, and returns the work.
	set func(e *env, fs *flag.FlagSet) work
}

// work is what a command does with the arguments that are no flags. An error is printed, and ends in an exit code.
type work func(ctx context.Context, e *env, rest []string) error

// exit is an exit code where all has been said.
type exit int

func (c exit) Error() string { return fmt.Sprintf("exit %d", int(c)) }

func commands() []command {
	return slices.Concat([]command{
		generateCommand("generate", "write the generated files; what leasegen does without a command", mode{}),
		generateCommand("check", "exit 1 if a generated file is out of date; write no file", mode{check: true}),
		generateCommand("diff", "print what would change; write no file", mode{diff: true}),
		plainCommand("explain [directive or code]", "explain an annotation or a code such as LG0104", explain,
			"explain", "explain consumer", "explain LG0104"),
		plainCommand("completion bash|zsh|fish", "print the script that lets a shell complete commands, flags and consumers", completion,
			"completion bash > ~/.local/share/bash-completion/completions/leasegen", "completion zsh > ~/.zfunc/_leasegen",
			"completion fish > ~/.config/fish/completions/leasegen.fish"),
		plainCommand("version", "print the version; --version does, too", version),
		plainCommand("help [command]", "print this, or the flags and examples of a command", help, "help dlq"),
	}, operatorCommands())
}

// plainCommand is a command without flags.
func plainCommand(usage, short string, do func(e *env, args []string) error, examples ...string) command {
	return command{usage: usage, short: short, examples: examples, set: func(*env, *flag.FlagSet) work {
		return func(_ context.Context, e *env, rest []string) error { return do(e, rest) }
	}}
}

// noting adds what help says below the usage.
func (c command) noting(notes string) command {
	c.notes = notes
	return c
}

func (c command) name() string {
	name, _, _ := strings.Cut(c.usage, " ")
	return name
}

func lookup(name string) (command, bool) {
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name() == name })
	if i < 0 {
		return command{}, false
	}
	return all[i], true
}

func commandNames() []string {
	var names []string
	for _, c := range commands() {
		names = append(names, c.name())
	}
	return names
}

// run picks the command: the first argument if it is one, else generate.
func run(ctx context.Context, e *env, args []string) int {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	switch name {
	case completing:
		return complete(ctx, e, args[1:])
	case "-version", "--version":
		name = "version"
	case "-h", "-help", "--help":
		name, args = "help", args[:1]
	}
	c, ok := lookup(name)
	if !ok {
		c, _ = lookup("generate")
		return c.run(ctx, e, args)
	}
	return c.run(ctx, e, args[1:])
}

func (c command) run(ctx context.Context, e *env, args []string) int {
	fs, do := c.flags(e)
	rest, err := c.parse(fs, args)
	if errors.Is(err, flag.ErrHelp) {
		c.help(e, e.Stderr)
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(e.Stderr, "leasegen %s: %s; leasegen help %[1]s shows the flags\n", c.name(), printable(err.Error(), 500))
		return exitError
	}
	err = do(ctx, e, rest)
	if code, ok := errors.AsType[exit](err); ok {
		return int(code)
	}
	if err == nil {
		return exitOK
	}
	text := printable(oneLine(err), 2000)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		text = "interrupted"
	}
	fmt.Fprintf(e.Stderr, "leasegen %s: %s\n", c.name(), text)
	return exitError
}

// flags returns the flags of a command with their defaults, and its work.
func (c command) flags(e *env) (*flag.FlagSet, work) {
	fs := flag.NewFlagSet(c.name(), flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	return fs, c.set(e, fs)
}

// parse reads flags, which may stand before, between and behind the other arguments, unless flagsFirst. It returns the
// others.
func (c command) parse(fs *flag.FlagSet, args []string) (rest []string, err error) {
	for {
		if err := fs.Parse(args); err != nil {
			return nil, err
		}
		if c.flagsFirst {
			return fs.Args(), nil
		}
		if fs.NArg() == 0 {
			return rest, nil
		}
		rest, args = append(rest, fs.Arg(0)), fs.Args()[1:]
	}
}

func (c command) help(e *env, w io.Writer) {
	fs, _ := c.flags(e)
	fmt.Fprintf(w, "usage: leasegen %s\n\n%s\n", c.usage, c.short)
	if c.notes != "" {
		fmt.Fprintln(w, c.notes)
	}
	section := "\nflags:\n"
	fs.VisitAll(func(*flag.Flag) {
		fmt.Fprint(w, section)
		section = ""
	})
	fs.SetOutput(w)
	fs.PrintDefaults()
	for i, x := range c.examples {
		if i == 0 {
			fmt.Fprint(w, "\nexamples:\n")
		}
		fmt.Fprintf(w, "  leasegen %s\n", x)
	}
}

func help(e *env, args []string) error {
	if len(args) > 0 {
		c, ok := lookup(args[0])
		if !ok {
			return usagef("there is no command %q; leasegen help lists them", args[0])
		}
		c.help(e, e.Stdout)
		return nil
	}
	var b strings.Builder
	b.WriteString("leasegen generates the consumers that annotated structs declare.\n\n" +
		"usage: leasegen [flags] [packages]\n       leasegen COMMAND [flags] [arguments]\n\ncommands:\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %-10s %s\n", c.name(), c.short)
	}
	b.WriteString("\nIs a message stuck? Begin with leasegen status: each answer ends with the command that goes on.\n" +
		"leasegen help COMMAND shows the flags of a command, and examples; leasegen explain shows the annotations.\n" +
		"In a program: //go:generate go tool leasegen ./...   In CI: go tool leasegen -check ./...\n")
	_, err := io.WriteString(e.Stdout, b.String())
	return err
}

func version(e *env, _ []string) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	_, err := fmt.Fprintln(e.Stdout, versionOf(info))
	return err
}

// versionOf is the module's version, the revision it was built from where that is known, and the version of Go.
func versionOf(info *debug.BuildInfo) string {
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	from := ""
	if revision := set["vcs.revision"]; revision != "" {
		from = " (" + set["vcs"] + " " + revision
		if at := set["vcs.time"]; at != "" {
			from += " of " + at
		}
		if set["vcs.modified"] == "true" {
			from += ", modified"
		}
		from += ")"
	}
	return strings.TrimSpace(fmt.Sprintf("leasegen %s%s %s", cmp.Or(info.Main.Version, "(devel)"), from, info.GoVersion))
}
