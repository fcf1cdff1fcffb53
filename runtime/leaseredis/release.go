package leaseredis

import (
	"context"
	"slices"
	"strconv"

	"github.com/leasegen/leasegen/runtime/backend"
)

// Release gives leases back.
func (o *owner) Release(ctx context.Context, session, consumer string, leases []backend.Ref) error {
	sh, err := o.shape(ctx)
	if err != nil {
		return err
	}
	steps, _ := refSteps(sh, scripts.release, consumer, leases, []any{session, consumer}, nil)
	err = firstError(o.runAll(ctx, steps))
	if err == nil {
		o.holdings.gave(session, consumer, leases)
	}
	return fail("release leases of "+consumer, err)
}

// refSteps are the calls of a script for leases: by tag, in chunks, each with the arguments
// first, and then resource, epoch and what more says of each lease. The chunks
// are returned beside.
func refSteps(sh *shape, s *script, consumer string, leases []backend.Ref, first []any, more func(backend.Ref) any) (steps []step, chunks [][]backend.Ref) {
	byTag := make([][]backend.Ref, sh.tags)
	for _, ref := range leases {
		tag := sh.leaseTag(consumer, ref.Resource)
		byTag[tag] = append(byTag[tag], ref)
	}
	for tag, refs := range byTag {
		for chunk := range slices.Chunk(refs, leaseChunk) {
			args := slices.Clone(first)
			for _, ref := range chunk {
				args = append(args, ref.Resource, strconv.FormatInt(ref.Epoch, 10))
				if more != nil {
					args = append(args, more(ref))
				}
			}
			steps, chunks = append(steps, step{tag: tag, script: s, args: args}), append(chunks, chunk)
		}
	}
	return steps, chunks
}

// Retire gives streams back; those without work are not granted until they are registered again.
//
// Whether there is work is looked up between two steps: the first notes how often a stream
// was wanted, the second leaves it wanted when that has changed. So a message that comes in between is not
// forgotten, and a process that dies in between leaves the stream to be taken over.
func (o *owner) Retire(ctx context.Context, session, consumer string, leases []backend.Ref) error {
	sh, err := o.shape(ctx)
	if err != nil {
		return err
	}
	info, err := o.info(ctx, consumer)
	if err != nil {
		return fail("retire streams of "+consumer, err)
	}
	first := []any{session, consumer}
	idle := func(backend.Ref) any { return "*" }
	if !info.Announced {
		wanted := map[string]string{}
		at := map[string]cursor{}
		steps, chunks := refSteps(sh, scripts.retiring, consumer, leases, first, nil)
		for i, a := range o.runAll(ctx, steps) {
			reply := list(a.value)
			if a.err != nil || len(reply) != len(chunks[i]) {
				return fail("retire streams of "+consumer, unexpected(a))
			}
			for j, ref := range chunks[i] {
				if l := list(reply[j]); len(l) == 2 {
					wanted[ref.Resource], at[ref.Resource] = text(l[0]), cursor(text(l[1]))
				}
			}
		}
		unread, err := o.unread(ctx, sh, info, at)
		if err != nil {
			return fail("retire streams of "+consumer, err)
		}
		idle = func(ref backend.Ref) any {
			if unread[ref.Resource] {
				return ""
			}
			return wanted[ref.Resource]
		}
	}
	steps, _ := refSteps(sh, scripts.retire, consumer, leases, first, idle)
	if err = firstError(o.runAll(ctx, steps)); err == nil {
		o.holdings.gave(session, consumer, leases)
	}
	return fail("retire streams of "+consumer, err)
}

// Renew extends leases that expire one by one.
func (o *owner) Renew(ctx context.Context, session string, info backend.ConsumerInfo, leases []backend.Ref) ([]string, error) {
	sh, err := o.shape(ctx)
	if err != nil {
		return nil, err
	}
	steps, _ := refSteps(sh, scripts.renew, info.Name, leases, []any{session, info.Name, info.TTL.Microseconds(), info.Grace.Microseconds()}, nil)
	lost := map[string]bool{}
	for _, a := range o.runAll(ctx, steps) {
		if a.err != nil {
			return nil, fail("renew leases of "+info.Name, a.err)
		}
		for _, r := range texts(a.value) {
			lost[r] = true
		}
	}
	var out []string
	for _, ref := range leases { // in the order asked for
		if lost[ref.Resource] {
			out = append(out, ref.Resource)
		}
	}
	return out, nil
}
