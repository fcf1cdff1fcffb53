package leasepg

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
	"github.com/leasegen/leasegen/runtime/operate"
)

// lagBound is up to where messages behind one lease are counted, and lagBudget up to where
// those of all leases of a consumer are.
const (
	lagBound  = 100_000
	lagBudget = 2_000_000
)

func lagBoundFor(leases int) int64 {
	return int64(max(min(lagBound, lagBudget/max(leases, 1)), 100))
}

// operator is for people: what is there, and changes by hand.
type operator struct{ *server }

// Status describes every consumer, all at the same moment. Messages behind one lease are
// counted up to 100,000, fewer when there are many leases.
func (op *operator) Status(ctx context.Context) (out []operate.ConsumerStatus, err error) {
	oneMoment := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, op.pool, oneMoment, func(tx pgx.Tx) error {
		q := op.queries(tx)
		if err := q.AsAsked(ctx); err != nil {
			return err
		}
		consumers, err := q.ListConsumers(ctx)
		if err != nil {
			return err
		}
		out = make([]operate.ConsumerStatus, len(consumers))
		for i, c := range consumers {
			out[i] = operate.ConsumerStatus{
				Consumer: c.Name, Per: c.Per, Lock: c.Lock, Paused: c.Paused, PausedFor: max(seconds(c.PausedFor), 0),
				Members: int(c.Members), Standbys: int(c.Standbys),
				ParkedKeys: int(c.Lanes), DeadLetters: int(c.DeadLetters), Note: note(c.Note),
			}
			leases, err := q.LeaseLags(ctx, leasedb.LeaseLagsParams{Consumer: c.Name, Of: c.Of,
				Bound: lagBoundFor(int(c.Leases)), Counted: c.Note == "", Max: -1})
			if err != nil {
				return err
			}
			out[i].Resources = len(leases)
			for _, l := range leases {
				if l.Session == "" {
					out[i].Unowned++
				}
				out[i].AddLag(l.Lag, seconds(l.Oldest))
			}
		}
		return nil
	})
	return out, op.fail("status", err)
}

// note is the message to an operator when the table of a consumer is not read.
func note(reason string) string {
	if reason == "" {
		return ""
	}
	return "its messages are not counted: " + reason
}

// Members lists the live sessions of a consumer.
func (op *operator) Members(ctx context.Context, consumer string) ([]operate.MemberStatus, error) {
	rows, err := op.queries(op.pool).ListMembers(ctx, consumer)
	if err != nil {
		return nil, op.fail("members of "+consumer, err)
	}
	out := make([]operate.MemberStatus, len(rows))
	for i, r := range rows {
		out[i] = operate.MemberStatus{
			Session: r.ID, Host: r.Host, PID: int(r.Pid), Since: seconds(r.Since), SinceBeat: seconds(r.SinceBeat),
			Owned: int(r.Owned), FairShare: (int(r.Resources) + len(rows) - 1) / len(rows), TTLRemaining: seconds(r.Remaining),
			Detection: r.Detection,
		}
	}
	return out, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Leases lists leases of a consumer. Messages behind are counted up to 100,000 for each,
// without those that were late for the cursor.
func (op *operator) Leases(ctx context.Context, consumer string, limit int) ([]operate.LeaseStatus, error) {
	rows, err := op.lags(ctx, leasedb.LeaseLagsParams{Consumer: consumer, Max: int64(limit)})
	if err != nil {
		return nil, op.fail("leases of "+consumer, err)
	}
	out := make([]operate.LeaseStatus, len(rows))
	for i, r := range rows {
		out[i] = operate.LeaseStatus{
			Resource: r.Resource, Session: r.Session, Epoch: r.Epoch, Since: seconds(r.Since),
			Lag: r.Lag, Parked: int(r.Parked), Suspicion: int(r.Suspicion),
		}
	}
	return out, nil
}

// lags reads leases with a bound that goes with their number.
func (op *operator) lags(ctx context.Context, p leasedb.LeaseLagsParams) ([]leasedb.LeaseLagsRow, error) {
	of, err := op.queries(op.pool).CountLeases(ctx, p.Consumer)
	if err != nil {
		return nil, err
	}
	p.Of, p.Bound, p.Counted = of.Of, lagBoundFor(int(of.Leases)), of.Note == ""
	var rows []leasedb.LeaseLagsRow
	err = op.pipeline(ctx, op.pool,
		func(q *leasedb.Queries) error { return q.AsAsked(ctx) },
		func(q *leasedb.Queries) (err error) { rows, err = q.LeaseLags(ctx, p); return err })
	return rows, err
}
