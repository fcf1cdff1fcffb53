package leasepg

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// commits stores what became of messages and items, and finds the messages that wait for another attempt.
type commits struct {
	*sessions
	places sync.Map // [session, consumer] → place of parked messages
}

// Commit stores progress in one round trip.
func (cs *commits) Commit(ctx context.Context, session, consumer string, progress []backend.Progress) ([]string, error) {
	fenced, err := cs.commit(ctx, cs.pool, "", session, consumer, progress)
	if err != nil && !errors.Is(err, errOvertaken) {
		return nil, cs.fail("commit progress of "+consumer, err)
	}
	return fenced, nil
}

// errOvertaken: the lease is held and has stored later progress, so this one had no effect.
var errOvertaken = errors.New("later progress of the lease has been stored")

// commit stores progress. mark is that of a handler's transaction, or empty.
func (cs *commits) commit(ctx context.Context, on database, mark, session, consumer string, progress []backend.Progress) (fenced []string, err error) {
	if len(progress) == 0 {
		return nil, nil
	}
	c := leasedb.CommitLeasesParams{Consumer: consumer, Session: session}
	again := leasedb.ParkAgainParams{Consumer: consumer, Session: session}
	fresh := leasedb.ParkNewParams{Consumer: consumer, Session: session}
	done := leasedb.ParkedDoneParams{Consumer: consumer, Session: session}
	dead := leasedb.GiveUpParams{Consumer: consumer, Session: session}
	var cursors []*cursor
	for i := range progress {
		p := &progress[i]
		at, err := from(p.Cursor)
		if err != nil {
			return nil, err
		}
		cursors = append(cursors, at)
		mark, err := messageID(p.Mark, true)
		if err != nil {
			return nil, err
		}
		c.Resources, c.Epochs, c.Seqs = append(c.Resources, p.Resource), append(c.Epochs, p.Epoch), append(c.Seqs, p.Seq)
		c.Moved, c.Positions = append(c.Moved, p.Cursor != nil), append(c.Positions, at.pos)
		c.Snaps, c.Xs = append(c.Snaps, at.snap), append(c.Xs, at.xText())
		c.LateSnaps, c.LatePositions = append(c.LateSnaps, at.lateSnap), append(c.LatePositions, at.latePos)
		c.Marks, c.Trusts = append(c.Marks, mark), append(c.Trusts, p.Trust)
		for _, k := range p.Park {
			id, err := messageID(k.ID, false)
			if err != nil {
				return nil, err
			}
			again.Resources, again.Epochs, again.Seqs = append(again.Resources, p.Resource), append(again.Epochs, p.Epoch), append(again.Seqs, p.Seq)
			again.Ids, again.Attempts = append(again.Ids, id), append(again.Attempts, int32(k.Attempt))
			again.Micros, again.Errors = append(again.Micros, k.After.Microseconds()), append(again.Errors, k.Error)
			fresh.Lanes = append(fresh.Lanes, k.Lane)
		}
		for _, d := range p.Done {
			id, err := messageID(d, false)
			if err != nil {
				return nil, err
			}
			done.Resources, done.Epochs, done.Seqs = append(done.Resources, p.Resource), append(done.Epochs, p.Epoch), append(done.Seqs, p.Seq)
			done.Ids = append(done.Ids, id)
		}
		for _, d := range p.Dead {
			id, err := messageID(d.ID, false)
			if err != nil {
				return nil, err
			}
			dead.Resources, dead.Epochs, dead.Seqs = append(dead.Resources, p.Resource), append(dead.Epochs, p.Epoch), append(dead.Seqs, p.Seq)
			dead.Ids, dead.Attempts = append(dead.Ids, id), append(dead.Attempts, int32(d.Attempt))
			dead.Reasons = append(dead.Reasons, d.Reason)
		}
	}
	var held []string
	expected := cs.expectIn(ctx, mark, session, cursors...)
	steps := []step{durable(ctx), expected, func(q *leasedb.Queries) (err error) {
		held, err = q.CommitLeases(ctx, c)
		return err
	}}
	if len(progress) == 1 {
		steps = []step{expected, func(q *leasedb.Queries) error {
			n, err := q.CommitLease(ctx, leasedb.CommitLeaseParams{
				Moved: c.Moved[0], Position: c.Positions[0], Snap: c.Snaps[0], X: c.Xs[0], LateSnap: c.LateSnaps[0],
				LatePosition: c.LatePositions[0], Mark: c.Marks[0], Trust: c.Trusts[0],
				Consumer: consumer, Resource: c.Resources[0], Session: session, Epoch: c.Epochs[0], Seq: c.Seqs[0],
			})
			if n == 1 {
				held = c.Resources
			}
			return err
		}}
	}
	table := cs.tables.named(consumer)
	if len(again.Ids) > 0 {
		fresh.Resources, fresh.Epochs, fresh.Seqs, fresh.Ids = again.Resources, again.Epochs, again.Seqs, again.Ids
		fresh.Attempts, fresh.Micros, fresh.Errors = again.Attempts, again.Micros, again.Errors
		steps = append(steps, func(q *leasedb.Queries) error { return q.ParkAgain(ctx, again) })
		if table == nil {
			steps = append(steps, func(q *leasedb.Queries) error { return q.ParkNew(ctx, fresh) })
		}
	}
	if len(done.Ids) > 0 {
		steps = append(steps, func(q *leasedb.Queries) error { return q.ParkedDone(ctx, done) })
	}
	if table != nil {
		copies, err := cs.tableSteps(ctx, table, on, fresh, dead)
		if err != nil {
			return nil, err
		}
		steps = append(steps, copies...)
	} else if len(dead.Ids) > 0 {
		steps = append(steps, func(q *leasedb.Queries) error { return q.GiveUp(ctx, dead) })
	}
	once, err := endOnce(ctx, session, consumer, progress)
	if err != nil {
		return nil, err
	}
	if once != nil {
		steps = append(steps, once)
	}
	// Other writes of the same progress join here: its statements see the leases locked, and
	// have to leave out those whose lease has another epoch, session or seq.
	err = cs.pipeline(ctx, on, steps...)
	if errors.Is(err, backend.ErrSessionLost) {
		cs.estrangeNamed(err, session)
	}
	if err != nil {
		return nil, err
	}
	if len(progress) == 1 && len(held) == 0 {
		// Fenced, or overtaken by later progress of the same epoch.
		still, err := cs.queries(on).HoldsLease(ctx, leasedb.HoldsLeaseParams{
			Consumer: consumer, Resource: c.Resources[0], Session: session, Epoch: c.Epochs[0],
		})
		if still {
			err = errOvertaken
		}
		if err != nil {
			return nil, err
		}
	}
	if len(held) == len(progress) {
		return nil, nil
	}
	passed := make(map[string]struct{}, len(held))
	for _, r := range held {
		passed[r] = struct{}{}
	}
	for i := range progress {
		if _, ok := passed[progress[i].Resource]; !ok {
			fenced = append(fenced, progress[i].Resource)
		}
	}
	return fenced, nil
}

func messageID(id string, optional bool) (int64, error) {
	if optional && id == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("there is no message %q", id)
	}
	return n, nil
}

// notNil returns an empty array where a nil one would be NULL.
func notNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// FetchParked reads parked messages whose wait is over, the lane that is due longest first.
func (cs *commits) FetchParked(ctx context.Context, req backend.ParkedRequest) (backend.Parked, error) {
	out := backend.Parked{Next: -1}
	per := req.PerResource
	if per <= 0 {
		per = req.Limit
	}
	p := leasedb.FetchParkedParams{Consumer: req.Consumer.Name, MaxPayload: int32(req.MaxPayload), PerLane: int64(per) + 1, Max: int64(req.Limit) + 1}
	lanes := cs.dueLanes
	if len(req.Resources) > 0 {
		lanes = cs.dueLanesOf
	}
	var err error
	if p.Resources, p.Lanes, err = lanes(ctx, req, per, &out); err != nil {
		return out, cs.fail("read parked messages of "+req.Consumer.Name, err)
	}
	if len(p.Lanes) == 0 {
		return out, nil
	}
	p.Items = make([]int32, len(p.Lanes))
	for i := range p.Items {
		p.Items[i] = int32(i)
	}
	var rows []leasedb.FetchParkedRow
	err = cs.pipeline(ctx, cs.pool, steady(ctx), func(q *leasedb.Queries) (err error) { rows, err = q.FetchParked(ctx, p); return err })
	if err != nil {
		return out, cs.fail("read parked messages of "+req.Consumer.Name, err)
	}
	passed := map[int32]bool{} // lanes that have come to a message that still waits, or to the limit
	read := map[string]int{}   // by resource
	out.More = out.More || len(rows) > req.Limit
	for i, r := range rows {
		if passed[r.Item] || len(out.Messages) >= req.Limit {
			continue
		}
		if passed[r.Item] = !r.Due; passed[r.Item] {
			continue
		}
		if read[p.Resources[r.Item]] >= per {
			out.More, passed[r.Item] = true, true
			continue
		}
		read[p.Resources[r.Item]]++
		m := backend.ParkedMessage{Resource: p.Resources[r.Item], Lane: p.Lanes[r.Item]}
		m.ID, m.Topic, m.Key, m.Kind = strconv.FormatInt(r.MessageID, 10), r.Topic, r.Key, r.Kind
		m.Payload, m.Size, m.Attempt, m.PublishedAt = r.Payload, int(r.Size), int(r.Attempt), r.PublishedAt
		m.Headers = decodeHeaders([]byte(r.Headers))
		m.Last = i+1 == len(rows) && len(rows) <= req.Limit || i+1 < len(rows) && rows[i+1].Item != r.Item
		m.Error, m.Waited = r.Error, time.Duration(r.WaitedMicros)*time.Microsecond
		out.Messages = append(out.Messages, m)
	}
	if t := cs.tables.of(req.Consumer); t != nil {
		if err := cs.rereadParked(ctx, t, out.Messages); err != nil {
			return out, cs.fail("read parked messages of "+req.Consumer.Name, err)
		}
	}
	return out, nil
}

const (
	parkedScan  = 400 // parked messages looked at in one statement
	parkedScans = 10  // statements of one read
)

// place is how far a read of parked messages has got among those that are due. They may be many,
// of other sessions, or queued behind the heads of their lanes: one read looks at some of
// them, and the next one goes on there.
type place struct {
	at  time.Time
	seq int64
}

// dueLanes are the lanes of a session that are due, the one that is due longest first.
func (cs *commits) dueLanes(ctx context.Context, req backend.ParkedRequest, per int, out *backend.Parked) (resources, names []string, err error) {
	reader := [2]string{req.Session, req.Consumer.Name}
	var from place
	if v, ok := cs.places.LoadAndDelete(reader); ok {
		from = v.(place)
	}
	began := from
	of := map[string]int{} // lanes by resource
	micros := int64(-1)    // until the next one is due
	for range parkedScans {
		var rows []leasedb.DueLanesRow
		steps := []step{steady(ctx), func(q *leasedb.Queries) (err error) {
			rows, err = q.DueLanes(ctx, leasedb.DueLanesParams{
				Consumer: req.Consumer.Name, Session: req.Session, Exclude: notNil(req.Exclude), AfterAt: from.at, AfterSeq: from.seq, Scan: parkedScan,
			})
			return err
		}}
		if from == (place{}) {
			steps = append(steps, func(q *leasedb.Queries) (err error) {
				micros, err = q.NextLane(ctx, leasedb.NextLaneParams{
					Consumer: req.Consumer.Name, Session: req.Session, Exclude: notNil(req.Exclude), Scan: parkedScan,
				})
				return err
			})
		}
		if err := cs.pipeline(ctx, cs.pool, steps...); err != nil {
			return nil, nil, err
		}
		looked := int64(0)
		for _, r := range rows {
			if r.Looked > 0 {
				looked, from = r.Looked, place{r.NextAt, r.Seq}
			} else if of[r.Resource] <= per && len(names) <= req.Limit {
				of[r.Resource]++
				resources, names = append(resources, r.Resource), append(names, r.Lane)
			}
		}
		switch {
		case len(names) > req.Limit:
			return resources, names, nil // begins at the beginning again: what was found is gone by then
		case looked < parkedScan && began == place{}:
			if micros >= 0 {
				out.Next = time.Duration(micros) * time.Microsecond
			}
			return resources, names, nil
		case looked < parkedScan:
			out.More = true // at the beginning, where this read did not look
			return resources, names, nil
		}
	}
	out.More = true
	cs.places.Store(reader, from)
	return resources, names, nil
}

// dueLanesOf are the same of some resources.
func (cs *commits) dueLanesOf(ctx context.Context, req backend.ParkedRequest, per int, out *backend.Parked) (resources, names []string, err error) {
	var lanes []leasedb.ParkedLanesRow
	err = cs.pipeline(ctx, cs.pool, steady(ctx), func(q *leasedb.Queries) (err error) {
		// One lane more than can be read says when the next one is due.
		lanes, err = q.ParkedLanes(ctx, leasedb.ParkedLanesParams{
			Consumer: req.Consumer.Name, Session: req.Session, Max: int64(req.Limit) + 1, PerResource: int64(per) + 1,
			Resources: notNil(req.Resources), Exclude: notNil(req.Exclude),
		})
		return err
	})
	for _, l := range lanes {
		if l.DueInMicros > 0 {
			out.Next = time.Duration(l.DueInMicros) * time.Microsecond
			break
		}
		resources, names = append(resources, l.Resource), append(names, l.Lane)
	}
	return resources, names, err
}
