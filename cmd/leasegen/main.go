// Command leasegen generates the consumers that annotated structs declare, tells when
// they are out of date, and looks after their leases and dead letters. Run
// leasegen help for its commands and leasegen explain for the annotations.
//
// Its frame is its own: a library of commands would stand in the go.mod and go.sum of every module that uses the
// runtime, wants --yes where leasegen has -yes, and saves few lines, as completion must ask the backend anyway.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	dir, err := os.Getwd()
	if err != nil {
		fmt.Fprintln(os.Stderr, "leasegen:", err)
		os.Exit(exitError)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends a command that does not come to its end
	e := &env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Dir: dir, Getenv: os.Getenv}
	code := run(ctx, e, os.Args[1:])
	if ctx.Err() != nil {
		code = exitInterrupted
	}
	stop()
	os.Exit(code)
}
