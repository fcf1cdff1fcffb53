package main

import (
	"context"
	"flag"
	"fmt"
)

// pause is what leasegen pause, or leasegen resume, was asked for.
type pause struct {
	consumer string
	resume   bool
}

func (p *pause) flags(*flag.FlagSet) {}

func (p *pause) lasts() bool { return false }

func (p *pause) arguments(rest []string) (err error) {
	p.consumer, err = oneConsumer(rest)
	return err
}

// do stops a consumer, or lets it go on. It asks for no -yes: the one takes back the other.
func (p *pause) do(ctx context.Context, w *output, on target) error {
	c, err := known(ctx, on, p.consumer)
	if err != nil {
		return err
	}
	change := on.Pause
	if p.resume {
		change = on.Resume
	}
	if err := lasting(ctx, func(ctx context.Context) error { return change(ctx, p.consumer) }); err != nil {
		return err
	}
	name, members := named(p.consumer), plural(c.Members, "live member")
	resume := on.command("resume %s", p.consumer)
	switch {
	case !p.resume && c.Paused:
		_, err = fmt.Fprintf(w, "%s, in %s, was paused already, %s ago; %s\n", name, on.where, age(c.PausedFor), hint("let it go on", resume))
	case !p.resume:
		_, err = fmt.Fprintf(w, "paused %s, in %s (%s): owners finish the calls they are in and give back what they have of %s; its log grows; %s\n",
			name, on.where, members, plural(c.Resources, "resource"), hint("let it go on", resume))
	case !c.Paused:
		_, err = fmt.Fprintf(w, "%s, in %s, was not paused\n", name, on.where)
	default:
		_, err = fmt.Fprintf(w, "resumed %s, in %s (%s) after %s: %s of %s unread\n",
			name, on.where, members, age(c.PausedFor), plural(c.LagTotal, "message"), plural(c.Resources, "resource"))
	}
	return err
}
