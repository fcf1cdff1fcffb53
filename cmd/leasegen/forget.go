package main

import (
	"context"
	"flag"
	"fmt"
)

// forget is what leasegen forget was asked for.
type forget struct {
	consumer string
	yes      bool
}

func (f *forget) flags(fs *flag.FlagSet) {
	fs.BoolVar(&f.yes, "yes", false, "do it: without -yes it only says what it would do")
}

func (f *forget) lasts() bool { return f.yes }

func (f *forget) arguments(rest []string) (err error) {
	f.consumer, err = oneConsumer(rest)
	return err
}

// do deletes a consumer that no process runs any more: its cursors hold the log.
func (f *forget) do(ctx context.Context, w *output, on target) error {
	be, ok := on.Operator.(interface {
		Forget(ctx context.Context, consumer string) error
	})
	if !ok {
		return usagef("this backend forgets no consumers")
	}
	c, err := known(ctx, on, f.consumer)
	switch {
	case err != nil:
		return err
	case c.Members > 0:
		return usagef("%s has %s; stop its programs first, or take it out of them", f.consumer, plural(c.Members, "live member"))
	case c.DeadLetters > 0:
		return usagef("%s has %s; look at them, and replay or purge them first: %s", f.consumer, plural(c.DeadLetters, "dead letter"), on.command("dlq list %s", f.consumer))
	case !f.yes:
		_, err := fmt.Fprintf(w, "would forget %s, in %s: the cursors of %s, %s unread or being retried; a consumer of that name would start as a new one; run again with -yes\n",
			named(f.consumer), on.where, plural(c.Resources, "resource"), plural(c.LagTotal, "message"))
		return err
	}
	stop := w.progress.clock(fmt.Sprintf("forgetting %s, in %s", named(f.consumer), on.where))
	err = lasting(ctx, func(ctx context.Context) error { return be.Forget(ctx, f.consumer) })
	stop()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "forgot %s, in %s\n", named(f.consumer), on.where)
	return err
}
