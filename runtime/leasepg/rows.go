package leasepg

import (
	"context"
	"slices"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// Renew extends leases that expire one by one.
func (o *owner) Renew(ctx context.Context, session string, c backend.ConsumerInfo, leases []backend.Ref) (lost []string, err error) {
	renewed := make(map[string]bool, len(leases))
	for some := range slices.Chunk(leases, leaseChunk) {
		p := leasedb.RenewLeasesParams{Consumer: c.Name, Session: session, Ttl: c.TTL}
		p.Resources, p.Epochs = refColumns(some)
		err = o.pipeline(ctx, o.pool, durable(ctx), o.expect(ctx, session), func(q *leasedb.Queries) error {
			resources, err := q.RenewLeases(ctx, p)
			for _, r := range resources {
				renewed[r] = true
			}
			return err
		})
		if err != nil {
			return nil, o.fail("renew leases of "+c.Name, err)
		}
	}
	for _, l := range leases {
		if !renewed[l.Resource] {
			lost = append(lost, l.Resource)
		}
	}
	return lost, nil
}

// Retire gives streams back that have no more work, as far as their owner knows. First they come to rest. A message that was not seen
// of them until then is looked for in a second transaction, which is repeated with the first when it fails. A process that
// ends between the two leaves it to a sweep.
func (o *owner) Retire(ctx context.Context, session, consumer string, leases []backend.Ref) error {
	for some := range slices.Chunk(leases, leaseChunk) {
		p := leasedb.RetireStreamsParams{Consumer: consumer, Session: session}
		p.Resources, p.Epochs = refColumns(some)
		err := o.pipeline(ctx, o.pool, durable(ctx), o.expect(ctx, session), func(q *leasedb.Queries) error { return q.RetireStreams(ctx, p) })
		if err != nil {
			return o.fail("retire streams of "+consumer, err)
		}
		r := leasedb.RouseStreamsParams{Consumer: consumer, Resources: slices.Sorted(slices.Values(p.Resources)), Channel: o.schema.name, Payload: wakeWanted + consumer}
		err = o.pipeline(ctx, o.pool, durable(ctx), steady(ctx), func(q *leasedb.Queries) error { return q.RouseStreams(ctx, r) })
		if err != nil {
			return o.fail("look for work of streams of "+consumer, err)
		}
	}
	return nil
}
