package leasepg

import (
	"context"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// StartOnce notes durably that the execution of an item is about to begin.
func (cs *commits) StartOnce(ctx context.Context, session, consumer string, ref backend.Ref, key, message string) (backend.OnceState, error) {
	id, err := messageID(message, true)
	if err != nil {
		return 0, cs.fail("start an item of "+consumer, err)
	}
	var r leasedb.StartOnceRow
	err = cs.pipeline(ctx, cs.pool, durable(ctx), cs.expect(ctx, session), func(q *leasedb.Queries) (err error) {
		r, err = q.StartOnce(ctx, leasedb.StartOnceParams{
			Consumer: consumer, Session: session, Resource: ref.Resource, Epoch: ref.Epoch, Key: key, Message: id,
		})
		return err
	})
	switch {
	case err != nil:
		return 0, cs.fail("start an item of "+consumer, err)
	case !r.Held:
		return 0, backend.ErrFenced
	case r.Begun && r.Unknown:
		return backend.OnceUnknown, nil
	case r.Begun:
		return backend.OnceNew, nil
	case r.Done:
		return backend.OnceDone, nil
	}
	return backend.OnceBusy, nil
}

// endOnce is the step of a commit that tells how executions have ended; nil when there is
// none.
func endOnce(ctx context.Context, session, consumer string, progress []backend.Progress) (step, error) {
	p := leasedb.EndOnceParams{Consumer: consumer, Session: session}
	for i := range progress {
		for _, o := range progress[i].Once {
			asked, err := messageID(o.Asked, true)
			if err != nil {
				return nil, err
			}
			p.Resources, p.Epochs = append(p.Resources, progress[i].Resource), append(p.Epochs, progress[i].Epoch)
			p.Seqs, p.Keys = append(p.Seqs, progress[i].Seq), append(p.Keys, o.Key)
			p.Dones, p.Asked = append(p.Dones, o.Done), append(p.Asked, asked)
		}
	}
	if len(p.Keys) == 0 {
		return nil, nil
	}
	return func(q *leasedb.Queries) error { return q.EndOnce(ctx, p) }, nil
}

// Once notes an item as done when the transaction commits.
func (t *effects) Once(ctx context.Context, consumer, key string) (bool, error) {
	n, err := t.tr.queries(t.tx).NoteOnce(ctx, leasedb.NoteOnceParams{Consumer: consumer, Key: key})
	return n == 1, t.tr.fail("note an item of "+consumer, err)
}
