package leasepg

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// owner registers consumers, gives leases to sessions and takes them back.
type owner struct {
	*sessions
	squatters sync.Map // strangers that hold the lock of a consumer, and were reported
	reads     sync.Map // string → backend.Per of consumers that read the log

	rehearsing atomic.Bool // a connection is
}

// Survey counts members and leases.
func (o *owner) Survey(ctx context.Context, consumers []string) ([]backend.Survey, error) {
	var rows []leasedb.SurveyRow
	c, err := o.pool.Acquire(ctx)
	if err != nil {
		return nil, o.fail("survey", err)
	}
	err = o.pipeline(ctx, c,
		func(q *leasedb.Queries) error { return q.Uncompiled(ctx) },
		func(q *leasedb.Queries) (err error) { rows, err = q.Survey(ctx, consumers); return err })
	if err != nil || slices.ContainsFunc(rows, func(r leasedb.SurveyRow) bool { return r.Free > 0 }) {
		c.Release()
	} else {
		o.rehearse(ctx, c, consumers)
	}
	if err != nil {
		return nil, o.fail("survey", err)
	}
	out := make([]backend.Survey, len(consumers))
	for i, name := range consumers {
		out[i].Consumer = name
	}
	for _, r := range rows {
		s := &out[slices.Index(consumers, r.Consumer)]
		s.Resources += int(r.Leases)
		s.Free += int(r.Free)
		s.Paused = s.Paused || r.Paused
		if r.Member {
			s.Members = append(s.Members, backend.Member{Session: r.Session, Owned: int(r.Leases)})
		}
	}
	return out, nil
}

// Owned lists the leases of a session.
func (o *owner) Owned(ctx context.Context, session, consumer string) ([]backend.Ref, error) {
	var refs []backend.Ref
	err := o.pipeline(ctx, o.pool, func(q *leasedb.Queries) error {
		rows, err := q.OwnedLeases(ctx, leasedb.OwnedLeasesParams{Consumer: consumer, Session: session})
		refs = make([]backend.Ref, len(rows))
		for i, r := range rows {
			refs[i] = backend.Ref{Resource: r.Resource, Epoch: r.Epoch}
		}
		return err
	})
	return refs, o.fail("list the leases of "+consumer, err)
}

// Acquire takes free leases in one round trip, whatever their number.
func (o *owner) Acquire(ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
	if req.Consumer.Lock == backend.LockAdvisory {
		return o.acquireAdvisory(ctx, req)
	}
	grants, err := o.acquire(ctx, o.pool, req)
	if err != nil {
		return nil, o.fail("acquire leases of "+req.Consumer.Name, err)
	}
	return grants, nil
}

func (o *owner) acquire(ctx context.Context, on sender, req backend.AcquireRequest) ([]backend.Grant, error) {
	var got acquisition
	err := o.pipeline(ctx, on, o.acquiring(ctx, req, &got)...)
	if errors.Is(err, backend.ErrSessionLost) {
		o.estrangeNamed(err, req.Session)
	}
	if err == nil && got.lost {
		err = backend.ErrSessionLost
	}
	if err != nil {
		return nil, err
	}
	for i := range got.grants {
		got.grants[i].Cursor.(*cursor).history = got.now.history
	}
	if err := o.rescue(ctx, on, req.Session, req.Consumer.Name, got.now, got.grants); err != nil {
		return nil, err
	}
	return got.grants, nil
}

// acquisition is what came of an Acquire.
type acquisition struct {
	grants []backend.Grant
	lost   bool // the session is
	now    horizon
}

// acquiring are the steps of Acquire.
func (ss *sessions) acquiring(ctx context.Context, req backend.AcquireRequest, got *acquisition) []step {
	var (
		name   = req.Consumer.Name
		byName = map[string]int{}
		rowTTL time.Duration
	)
	if req.Consumer.Lock == backend.LockRow {
		rowTTL = req.Consumer.TTL
	}
	return []step{durable(ctx), steady(ctx), ss.expect(ctx, req.Session),
		func(q *leasedb.Queries) error {
			return q.LockAttempts(ctx, leasedb.LockAttemptsParams{Session: req.Session, Consumer: name, Attempt: req.Attempt})
		},
		func(q *leasedb.Queries) error {
			_, err := q.LockSession(ctx, req.Session)
			if errors.Is(err, pgx.ErrNoRows) {
				got.lost = true
				return nil
			}
			return err
		},
		func(q *leasedb.Queries) error { _, err := q.BuryExpired(ctx); return err },
		func(q *leasedb.Queries) error {
			return q.NotifyIfBuried(ctx, leasedb.NotifyIfBuriedParams{Channel: ss.schema.name, Payload: wakeOwnership})
		},
		func(q *leasedb.Queries) error {
			rows, err := q.AcquireLeases(ctx, leasedb.AcquireLeasesParams{
				Consumer: name, Grace: req.Consumer.Grace, Exclude: append([]string{}, req.Exclude...),
				Session: req.Session, Attempt: req.Attempt, Max: int64(req.Max),
				RowTtl: rowTTL, Advisory: req.Consumer.Lock == backend.LockAdvisory,
			})
			if err != nil {
				return err
			}
			got.grants = make([]backend.Grant, len(rows))
			for i, r := range rows {
				c, err := storedCursor(r.Pos, r.Snap, r.X, r.LateSnap, r.LatePos)
				if err != nil {
					return err
				}
				got.grants[i] = backend.Grant{
					Ref: backend.Ref{Resource: r.Resource, Epoch: r.Epoch}, Cursor: c,
					Suspicion: int(r.Suspicion), MarkCount: int(r.MarkCount),
				}
				if r.Mark != 0 {
					got.grants[i].Mark = strconv.FormatInt(r.Mark, 10)
				}
				byName[r.Resource] = i
			}
			return nil
		},
		func(q *leasedb.Queries) error {
			rows, err := q.GrantedLanes(ctx, leasedb.GrantedLanesParams{Consumer: name, Session: req.Session, Attempt: req.Attempt})
			for _, r := range rows {
				if i, ok := byName[r.Resource]; ok {
					got.grants[i].Lanes = append(got.grants[i].Lanes, r.Lane)
				}
			}
			return err
		},
		func(q *leasedb.Queries) error {
			h, err := q.Horizon(ctx)
			if err != nil {
				return err
			}
			got.now, err = newHorizon(h.History, h.Snap, -1, 0)
			return err
		},
	}
}

// How many leases one transaction gives back at most, so that it locks few rows at a time, and soon makes room for others; and how many it
// changes that waits for the disk.
const (
	releaseChunk = 250
	leaseChunk   = 1000
)

// Release gives leases back. The others hear of it when all are free; of those that were given back before a failure when it is repeated,
// or by a survey.
func (o *owner) Release(ctx context.Context, session, consumer string, leases []backend.Ref) error {
	if s := o.session(session); s != nil && s.leads(consumer) {
		return o.fail("release the lease of "+consumer, s.releaseAdvisory(ctx, releasing(session, consumer, leases)))
	}
	for left := leases; ; left = left[releaseChunk:] {
		p := releasing(session, consumer, left[:min(releaseChunk, len(left))])
		steps := []step{hasty(ctx), func(q *leasedb.Queries) error { _, err := q.ReleaseLeases(ctx, p); return err }}
		last := len(left) <= releaseChunk
		if last {
			steps = append(steps, o.notify(ctx, wakeOwnership))
		}
		if err := o.pipeline(ctx, o.pool, steps...); err != nil || last {
			return o.fail("release leases of "+consumer, err)
		}
	}
}

func releasing(session, consumer string, leases []backend.Ref) leasedb.ReleaseLeasesParams {
	p := leasedb.ReleaseLeasesParams{Consumer: consumer, Session: session}
	p.Resources, p.Epochs = refColumns(leases)
	return p
}

func refColumns(leases []backend.Ref) (resources []string, epochs []int64) {
	resources, epochs = make([]string, len(leases)), make([]int64, len(leases))
	for i, l := range leases {
		resources[i], epochs[i] = l.Resource, l.Epoch
	}
	return resources, epochs
}
