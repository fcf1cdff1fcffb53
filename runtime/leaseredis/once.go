package leaseredis

import (
	"context"
	"fmt"

	"github.com/leasegen/leasegen/runtime/backend"
)

// An item is kept under the tag of its own name, since messages of any resource may name it. So it
// is begun and ended in steps: the lease is looked at under its tag, then the item is written under
// the item's, with the lease it was begun under. A note written after the lease has ended does no
// harm: it is an execution that the next owner hears of as unknown, or that told the truth about
// its end.

// ledger keeps the items that were executed.
type ledger struct{ *catalog }

// StartOnce notes that an execution is about to begin.
func (l *ledger) StartOnce(ctx context.Context, session, consumer string, ref backend.Ref, key, message string) (backend.OnceState, error) {
	state, err := l.startOnce(ctx, session, consumer, ref, key, message)
	if err != nil && err != backend.ErrFenced {
		err = fmt.Errorf("leaseredis: start an item of %s/%s: %w", consumer, ref.Resource, err)
	}
	return state, err
}

func (l *ledger) startOnce(ctx context.Context, session, consumer string, ref backend.Ref, key, message string) (backend.OnceState, error) {
	sh, err := l.shape(ctx)
	if err != nil {
		return 0, err
	}
	tag, leaseTag := sh.tagOf(key), sh.leaseTag(consumer, ref.Resource)
	look, seq := 1, int64(0)
	if tag != leaseTag {
		reply, err := l.run(ctx, leaseTag, scripts.heldseq, session, consumer, 1, ref.Resource, ref.Epoch)
		if err != nil {
			return 0, err
		}
		look, seq = 0, ints(reply)[0]
		if seq < 0 {
			return 0, backend.ErrFenced
		}
	}
	ended := []any{"", "", ""}
	for range 3 { // it changes hands in between at most
		reply, err := l.run(ctx, tag, scripts.startonce, append([]any{consumer, key, session, ref.Resource, ref.Epoch, message, look, seq}, ended...)...)
		if err != nil {
			return 0, err
		}
		switch text(reply) {
		case "new":
			return backend.OnceNew, nil
		case "unknown":
			return backend.OnceUnknown, nil
		case "done":
			return backend.OnceDone, nil
		case "fenced":
			return 0, backend.ErrFenced
		}
		other := list(reply)
		if len(other) != 3 {
			return 0, fmt.Errorf("key %q was changed by another program", l.prefix(tag)+"once:"+consumer)
		}
		busy, err := l.executing(ctx, sh, consumer, []begunItem{{key, text(other[0]), text(other[1]), text(other[2])}})
		if err != nil {
			return 0, err
		}
		if busy[0] {
			return backend.OnceBusy, nil
		}
		ended = other
	}
	return backend.OnceBusy, nil
}

// begunItem is an item and the lease under which it was begun.
type begunItem struct{ item, session, resource, epoch string }

// executing says which of the leases have not ended.
func (l *ledger) executing(ctx context.Context, sh *shape, consumer string, items []begunItem) ([]bool, error) {
	info, err := l.info(ctx, consumer)
	if err != nil {
		return nil, err
	}
	steps := make([]step, len(items))
	for i, it := range items {
		steps[i] = step{tag: sh.leaseTag(consumer, it.resource), script: scripts.executing, args: []any{consumer, info.Grace.Microseconds(), flag(info.Lock == backend.LockRow), 1, it.session, it.resource, it.epoch}}
	}
	out := make([]bool, len(items))
	for i, a := range l.runAll(ctx, steps) {
		if a.err != nil {
			return nil, a.err
		}
		out[i] = ints(a.value)[0] == 1
	}
	return out, nil
}

// tellEnds stores results of executions, of leases that are held.
func (c *commit) tellEnds(ctx context.Context) error {
	// Leases under other tags than their items are looked at first.
	var steps []step
	var asked []*commitEntry
	for _, e := range c.entries {
		tag := c.sh.leaseTag(c.consumer, e.Resource)
		for _, r := range e.Once {
			if r.Asked == "" && c.sh.tagOf(r.Key) != tag {
				steps = append(steps, step{tag: tag, script: scripts.heldseq, args: []any{c.session, c.consumer, 1, e.Resource, e.Epoch}})
				asked = append(asked, e)
				break
			}
		}
	}
	passed := map[*commitEntry]bool{}
	for i, a := range c.cat.runAll(ctx, steps) {
		if a.err != nil {
			return a.err
		}
		seq := ints(a.value)[0]
		passed[asked[i]] = seq < 0 || asked[i].Seq < seq
	}
	return c.tell(ctx, func(e *commitEntry, r backend.OnceResult) bool { return r.Asked == "" && !passed[e] })
}

// tellAsked notes messages that became dead letters because of an unknown outcome.
func (c *commit) tellAsked(ctx context.Context) error {
	return c.tell(ctx, func(e *commitEntry, r backend.OnceResult) bool { return r.Asked != "" && !e.fenced })
}

// tell stores the results chosen.
func (c *commit) tell(ctx context.Context, chosen func(*commitEntry, backend.OnceResult) bool) error {
	args := make([][]any, c.sh.tags)
	n := make([]int, c.sh.tags)
	var steps []step
	flush := func(tag int) {
		if n[tag] > 0 {
			steps = append(steps, step{tag: tag, script: scripts.endonce, args: append([]any{c.session, c.consumer, n[tag]}, args[tag]...)})
			args[tag], n[tag] = nil, 0
		}
	}
	for _, e := range c.entries {
		for _, r := range e.Once {
			if !chosen(e, r) {
				continue
			}
			tag, look, how := c.sh.tagOf(r.Key), 0, "failed"
			if tag == c.sh.leaseTag(c.consumer, e.Resource) && r.Asked == "" {
				look = 1
			}
			switch {
			case r.Done:
				how = "done"
			case r.Asked != "":
				how = "asked"
			}
			args[tag] = append(args[tag], e.Resource, e.Epoch, e.Seq, look, r.Key, how, r.Asked)
			if n[tag]++; n[tag] == commitLeases {
				flush(tag)
			}
		}
	}
	for tag := range args {
		flush(tag)
	}
	return firstError(c.cat.runAll(ctx, steps))
}
