package main

import (
	"context"
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
	name  string
	usage string // after "leasegen "
	short string
	run   func(ctx context.Context, e *env, args []string) int
}

func commands() []command {
	return slices.Concat([]command{
		generateCommand("generate", "write the generated files; what leasegen does without a command", mode{}),
		generateCommand("check", "exit 1 if a generated file is out of date; write nothing", mode{check: true}),
		generateCommand("diff", "print what would change; write nothing", mode{diff: true}),
		{name: "explain", usage: "explain [directive or code]", short: "explain an annotation or a code such as LG0104", run: explain},
		{name: "version", usage: "version", short: "print the version", run: version},
		{name: "help", usage: "help [command]", short: "print this, or the flags of a command", run: help},
	}, operatorCommands())
}

func lookup(name string) (command, bool) {
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == name })
	if i < 0 {
		return command{}, false
	}
	return all[i], true
}

func commandNames() []string {
	var names []string
	for _, c := range commands() {
		names = append(names, c.name)
	}
	return names
}

// run picks the command: the first argument if it is one, else generate.
func run(ctx context.Context, e *env, args []string) int {
	if len(args) > 0 {
		if c, ok := lookup(args[0]); ok {
			return c.run(ctx, e, args[1:])
		}
		if slices.Contains([]string{"-h", "-help", "--help"}, args[0]) {
			return help(ctx, e, nil)
		}
	}
	generate, _ := lookup("generate")
	return generate.run(ctx, e, args)
}

func help(ctx context.Context, e *env, args []string) int {
	if len(args) > 0 {
		c, ok := lookup(args[0])
		if !ok {
			fmt.Fprintf(e.Stderr, "leasegen help: there is no command %q; leasegen help lists them\n", args[0])
			return exitError
		}
		if c.name != "help" && c.name != "version" {
			return c.run(ctx, &env{e.Stdin, e.Stdout, e.Stdout, e.Dir, e.Getenv}, []string{"-h"})
		}
	}
	var b strings.Builder
	b.WriteString("leasegen generates the consumers that annotated structs declare.\n\n" +
		"usage: leasegen [flags] [packages]\n       leasegen COMMAND [flags] [arguments]\n\ncommands:\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %-9s %s\n", c.name, c.short)
	}
	b.WriteString("\nleasegen help COMMAND shows the flags of a command; leasegen explain shows the annotations.\n" +
		"In a program: //go:generate go tool leasegen ./...   In CI: go tool leasegen -check ./...\n")
	fmt.Fprint(e.Stdout, b.String())
	return exitOK
}

func version(_ context.Context, e *env, _ []string) int {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		fmt.Fprintln(e.Stdout, "leasegen (unknown version)")
		return exitOK
	}
	v := info.Main.Version
	if v == "" {
		v = "(devel)"
	}
	fmt.Fprintf(e.Stdout, "leasegen %s %s\n", v, info.GoVersion)
	return exitOK
}
