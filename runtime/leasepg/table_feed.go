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
}

// start begins at the table's present, unless the feed has begun before.
func (f *tableFeed) start(ctx context.Context, db Querier) error {
	if f.at != nil {
		return nil
	}
	now, err := f.source.Now(ctx, db)
	if err != nil {
		return err
	}
	f.at, err = storedCursor(now.Position, now.Snap, now.X, "", 0)
	return err
}

// poll adds the resources that have rows which the cursor has not passed.
func (f *tableFeed) poll(ctx context.Context, db Querier, news *lease.News) error {
	late, err := f.at.late()
	if err != nil {
		return err
	}
	rows, err := f.source.News(ctx, db, TableNewsParams{Position: f.at.pos, Max: feedRows, Late: append([]string{}, late...)})
	if err != nil {
		return err
	}
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
