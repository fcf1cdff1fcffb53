package main

import (
	"context"
	"flag"
	"fmt"
	"io"

	"github.com/leasegen/leasegen/runtime/operate"
)

func forgetCommand() command {
	const usage = "forget [flags] consumer"
	return command{
		name: "forget", usage: usage, short: "delete what is stored of a consumer that is no more",
		run: func(ctx context.Context, e *env, args []string) int {
			var (
				db  database
				yes bool
			)
			fs := flag.NewFlagSet("forget", flag.ContinueOnError)
			db.flags(fs)
			fs.BoolVar(&yes, "yes", false, "do it: without -yes it only says what it would do")
			return carryOut(e, fs, usage, args, func(rest []string) error {
				switch len(rest) {
				case 0:
					return usagef("give the name of a consumer")
				case 1:
					return db.withOperator(ctx, e, func(op operate.Operator) error { return forget(ctx, e.Stdout, op, rest[0], yes) })
				}
				return usagef("one consumer at a time, not %q", rest)
			})
		},
	}
}

// forget deletes a consumer that nothing runs any more: its cursors hold the log.
func forget(ctx context.Context, w io.Writer, op operate.Operator, consumer string, yes bool) error {
	be, ok := op.(interface {
		Forget(ctx context.Context, consumer string) error
	})
	if !ok {
		return usagef("this backend forgets no consumers")
	}
	c, err := known(ctx, op, consumer)
	switch {
	case err != nil:
		return err
	case c.Members > 0:
		return usagef("%s has %s; stop its programs first, or take it out of them", consumer, plural(c.Members, "live member"))
	case c.DeadLetters > 0:
		return usagef("%s has %s; look at them (leasegen dlq list %[1]s), then purge them (leasegen dlq purge %[1]s -yes)", consumer, plural(c.DeadLetters, "dead letter"))
	case !yes:
		_, err := fmt.Fprintf(w, "would forget %s: the cursors of %s, %s unread or being retried; a consumer of that name would begin anew; run again with -yes\n",
			consumer, plural(c.Resources, "resource"), plural(c.LagTotal, "message"))
		return err
	}
	if err := be.Forget(ctx, consumer); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "forgot %s\n", consumer)
	return err
}
