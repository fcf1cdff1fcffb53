package leaseredis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/leasegen/leasegen/runtime/backend"
)

// The bounds of one script call. A lease's progress is never divided, so it may be above.
const (
	commitLeases = 500
	commitBytes  = 1 << 20
)

// commits stores what became of messages, and finds those that wait for another attempt.
type commits struct{ *catalog }

// Commit stores progress: one script call for each tag that has leases among it, in one
// round trip. Messages that are set aside or given up on for the first time are read before, since
// their entries in the log do not stay.
func (cs *commits) Commit(ctx context.Context, session, consumer string, progress []backend.Progress) ([]string, error) {
	sh, err := cs.shape(ctx)
	if err != nil {
		return nil, fmt.Errorf("leaseredis: commit of %s: %w", consumer, err)
	}
	c := &commit{cat: cs.catalog, sh: sh, session: session, consumer: consumer}
	for i := range progress {
		if _, ok := progress[i].Cursor.(cursor); !ok && progress[i].Cursor != nil {
			return nil, fmt.Errorf("leaseredis: commit %s/%s: the cursor is a %T of another backend", consumer, progress[i].Resource, progress[i].Cursor)
		}
		c.entries = append(c.entries, &commitEntry{Progress: progress[i]})
	}
	fenced, err := c.run(ctx)
	if err != nil {
		return nil, fmt.Errorf("leaseredis: commit of %s: %w", consumer, err)
	}
	return fenced, nil
}

// commit is one call of Commit.
type commit struct {
	cat               *catalog
	sh                *shape
	session, consumer string
	entries           []*commitEntry
}

// commitEntry is the progress of one lease.
type commitEntry struct {
	backend.Progress
	bodies map[string]string // messages sent along, by id
	fenced bool
}

func (c *commit) run(ctx context.Context) (fenced []string, err error) {
	// How executions ended is stored first: if only that is, the message comes again and its item
	// is done.
	if err := c.tellEnds(ctx); err != nil {
		return nil, err
	}
	if err := c.read(ctx, c.entries, func(e *commitEntry) (ids []string) { return e.fresh() }); err != nil {
		return nil, err
	}
	pending := c.entries
	for round := 0; len(pending) > 0; round++ {
		missing, err := c.send(ctx, pending)
		if err != nil {
			return nil, err
		}
		if pending = nil; len(missing) == 0 {
			break
		}
		if round == 2 {
			return nil, errors.New("messages to be set aside were asked for again and again; another program changes the keys of this namespace")
		}
		for e := range missing {
			pending = append(pending, e)
		}
		if err := c.read(ctx, pending, func(e *commitEntry) []string { return missing[e] }); err != nil {
			return nil, err
		}
		if err := c.replaceLost(ctx, missing); err != nil {
			return nil, err
		}
	}
	// The item that was asked about is noted last: before its message is a dead letter, no process can replay it.
	if err := c.tellAsked(ctx); err != nil {
		return nil, err
	}
	for _, e := range c.entries {
		if e.fenced {
			fenced = append(fenced, e.Resource)
		}
	}
	return fenced, nil
}

// fresh lists the messages that are probably not parked yet.
func (e *commitEntry) fresh() (ids []string) {
	for _, k := range e.Park {
		if k.Attempt <= 1 {
			ids = append(ids, k.ID)
		}
	}
	for _, d := range e.Dead {
		if d.Attempt <= 1 {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

// read loads messages from the log, as far as they are there.
func (c *commit) read(ctx context.Context, entries []*commitEntry, want func(*commitEntry) []string) error {
	ids := map[string][]string{}
	for _, e := range entries {
		if some := want(e); len(some) > 0 {
			ids[e.Resource] = append(ids[e.Resource], some...)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	info, err := c.cat.info(ctx, c.consumer)
	if err != nil {
		return err
	}
	bodies, err := c.cat.bodies(ctx, c.sh, info, ids)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.bodies == nil {
			e.bodies = map[string]string{}
		}
		maps.Copy(e.bodies, bodies[e.Resource])
	}
	return nil
}

// send runs the scripts. It marks what was fenced and returns which messages have to be sent along.
func (c *commit) send(ctx context.Context, entries []*commitEntry) (missing map[*commitEntry][]string, err error) {
	byTag := make([][]*commitEntry, c.sh.tags)
	for _, e := range entries {
		tag := c.sh.leaseTag(c.consumer, e.Resource)
		byTag[tag] = append(byTag[tag], e)
	}
	var steps []step
	var sent [][]*commitEntry
	for tag, es := range byTag {
		for len(es) > 0 {
			args, n := c.arguments(tag, es)
			steps, sent = append(steps, step{tag: tag, script: scripts.commit, args: args}), append(sent, es[:n])
			es = es[n:]
		}
	}
	for i, a := range c.cat.runAll(ctx, steps) {
		if a.err != nil {
			err = cmp.Or(err, a.err)
			continue
		}
		for _, r := range list(a.value) {
			r := list(r)
			e := sent[i][number(r[0])-1]
			switch text(r[1]) {
			case "fenced":
				e.fenced = true
			case "missing":
				if missing == nil {
					missing = map[*commitEntry][]string{}
				}
				missing[e] = texts(r[2])
			case "unusable":
				err = cmp.Or(err, fmt.Errorf("%s: key %q is a %s that another program put there; rename or delete it; no key was changed", e.Resource, text(r[2]), text(r[3])))
			}
		}
	}
	return missing, err
}

// arguments encodes entries up to the bounds of a call, and says how many.
func (c *commit) arguments(tag int, es []*commitEntry) (args []any, n int) {
	args = make([]any, 4, 4+5*min(len(es), commitLeases))
	size, top := 0, uint64(0)
	for n < len(es) && n < commitLeases && size < commitBytes {
		e := es[n]
		n++
		what := ""
		at := len(args)
		args = append(args, e.Resource, e.Epoch, e.Seq, nil)
		if to, ok := e.Cursor.(cursor); ok {
			what += "c"
			args = append(args, string(to))
			top = max(top, to.passed(tag))
		}
		if e.Mark != "" {
			what += "m"
			args = append(args, e.Mark)
		}
		if e.Trust {
			what += "t"
		}
		if len(e.Done) > 0 {
			what += "d"
			args = with(append(args, len(e.Done)), e.Done...)
		}
		if len(e.Park) > 0 {
			what += "p"
			args = append(args, len(e.Park))
			for _, k := range e.Park {
				args = append(args, k.ID, k.Lane, k.Attempt, k.After.Microseconds(), k.Error, e.bodies[k.ID])
				size += len(e.bodies[k.ID])
			}
		}
		if len(e.Dead) > 0 {
			what += "x"
			args = append(args, len(e.Dead))
			for _, d := range e.Dead {
				args = append(args, d.ID, d.Attempt, d.Reason, e.bodies[d.ID])
				size += len(e.bodies[d.ID])
			}
		}
		args[at+3] = what
	}
	args[0], args[1], args[2], args[3] = c.session, c.consumer, top, n
	return args, n
}

const lostReason = "its entry was deleted from the stream by someone else"

// replaceLost turns messages that cannot be read any more, since somebody else deleted or trimmed
// their entries, into dead letters without payload: they must not hold up their resource. A
// message that never was is an error.
func (c *commit) replaceLost(ctx context.Context, missing map[*commitEntry][]string) error {
	var last []position
	for e, ids := range missing {
		lost := map[string]bool{}
		for _, id := range ids {
			if e.bodies[id] != "" {
				continue
			}
			info, err := c.cat.info(ctx, c.consumer)
			if err != nil {
				return err
			}
			if last == nil {
				if last, err = c.cat.lastIDs(ctx, c.sh); err != nil {
					return err
				}
			}
			ins := c.cat.inputsOf(c.sh, info, e.Resource)
			if n, at, ok := findMessage(ins, id); !ok || ins[n].tag >= 0 && at.ms > last[ins[n].tag].ms {
				return fmt.Errorf("%s: there is no message %q to set aside or to give up on", e.Resource, id)
			}
			lost[id] = true
			stub := backend.Raw{ID: id}
			if info.Per == backend.PerTopic {
				stub.Topic = e.Resource
			}
			e.bodies[id] = packMessage(stub)
			c.cat.log.Warn("a message failed, and its entry was deleted from the stream by someone else before it could be kept; it becomes a dead letter without payload",
				"consumer", c.consumer, "resource", e.Resource, "id", id)
		}
		e.Dead = slices.Clone(e.Dead)
		for i := range e.Dead {
			if d := &e.Dead[i]; lost[d.ID] {
				d.Reason = withoutPayload(d.Reason)
			}
		}
		e.Park = slices.DeleteFunc(slices.Clone(e.Park), func(k backend.Park) bool {
			if lost[k.ID] {
				e.Dead = append(e.Dead, backend.Dead{ID: k.ID, Attempt: k.Attempt, Reason: withoutPayload(k.Error)})
			}
			return lost[k.ID]
		})
	}
	return nil
}

func withoutPayload(reason string) string {
	if reason == "" {
		return lostReason
	}
	return lostReason + "; before that: " + reason
}
