package leasepg

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
)

// pollTables is how long an idle process waits between looks at tables: their writers need
// not notify anyone.
const pollTables = 500 * time.Millisecond

// tableFeed watches the table of one consumer with a cursor of its own.
type tableFeed struct {
	consumer string
	source   *TableSource
	at       *cursor
	now      horizon // as of the last poll
}

// start begins at the table's present, unless the feed has begun before.
func (f *tableFeed) start(ctx context.Context, b *Backend) error {
	if f.at != nil {
		return nil
	}
	var now TableNow
	err := b.readTable(ctx, f.source, b.horizon(ctx, f.source, &f.now),
		func(db Querier) (err error) { now, err = f.source.Now(ctx, db); return err })
	if err != nil {
		return err
	}
	if f.at, err = storedCursor(now.Position, now.Snap, now.X, "", 0); err != nil {
		return err
	}
	f.at.history = f.now.history
	return nil
}

// poll adds the resources that have rows which the cursor has not passed.
func (f *tableFeed) poll(ctx context.Context, b *Backend, news *lease.News) error {
	late, err := f.at.late()
	if err != nil {
		return err
	}
	var (
		now  horizon
		rows []TableNews
	)
	err = b.readTable(ctx, f.source, b.horizon(ctx, f.source, &now), func(db Querier) (err error) {
		rows, err = f.source.News(ctx, db, TableNewsParams{Position: f.at.pos, Max: feedRows, Late: append([]string{}, late...)})
		return err
	})
	if err != nil {
		return err
	}
	if f.at.in(now) != nil || now.last < f.now.last && now.last >= 0 || now.file != f.now.file {
		return errSetBack
	}
	f.now = now
	next := *f.at
	var resources []string
	for _, r := range rows {
		if r.Snap == "" {
			resources = append(resources, r.Resource)
			continue
		}
		// Late rows are complete in one answer, so the snapshot moves always.
		next.snap = r.Snap
		if r.X != "" {
			next.pos = r.Position
			if next.x, err = strconv.ParseUint(r.X, 10, 64); err != nil {
				return err
			}
		}
	}
	f.at = &next
	if len(resources) == 0 {
		return nil
	}
	if news.Resources == nil {
		news.Resources = map[string][]string{}
	}
	slices.Sort(resources)
	news.Resources[f.consumer] = slices.Compact(resources)
	return nil
}
