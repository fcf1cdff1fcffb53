package leasepg

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/pgtable"
)

// pollTables is how long an idle process waits between looks at tables: their writers need
// not notify anyone.
const pollTables = 500 * time.Millisecond

// tablesFeed watches tables alone, through the pool, so that a table costs no connection of its
// own; one bell for the process wakes it.
type tablesFeed struct {
	rd        *reader
	consumers []string
	tables    []*tableFeed
	ear       *ear

	wait    time.Duration // between polls
	next    time.Time     // of polls, at the latest
	members string
	free    int64
	surveys time.Time // when ownership was looked at last
}

// openTables starts watching tables from their present on.
func (rd *reader) openTables(ctx context.Context, consumers []backend.ConsumerInfo) (backend.Feed, error) {
	f := &tablesFeed{rd: rd, ear: rd.bell.hear()}
	for _, c := range consumers {
		f.consumers = append(f.consumers, c.Name)
		f.tables = append(f.tables, &tableFeed{consumer: c.Name, source: rd.tables.of(c)})
	}
	if err := f.open(ctx); err != nil {
		f.Close()
		return nil, rd.fail("open the feed of "+strings.Join(f.consumers, ", "), err)
	}
	return f, nil
}

func (f *tablesFeed) open(ctx context.Context) error {
	var news backend.News
	if err := f.survey(ctx, &news); err != nil {
		return err
	}
	for _, t := range f.tables {
		if err := t.start(ctx, f.rd); err != nil {
			return err
		}
	}
	f.wait = pollLeast
	f.next = time.Now().Add(f.wait)
	return nil
}

// Close stops watching.
func (f *tablesFeed) Close() { f.rd.bell.deafen(f.ear) }

// Next waits until the bell rings or a poll is due.
func (f *tablesFeed) Next(ctx context.Context) (backend.News, error) {
	timer := time.NewTimer(time.Until(f.next))
	defer timer.Stop()
	select {
	case <-f.ear.wake:
	case <-timer.C:
	case <-ctx.Done():
		return backend.News{}, ctx.Err()
	}
	news := f.ear.drain()
	if err := f.poll(ctx, &news); err != nil {
		if ctx.Err() != nil {
			return backend.News{}, ctx.Err()
		}
		return backend.News{}, f.rd.fail("watch the table of "+strings.Join(f.consumers, ", "), err)
	}
	if len(news.Resources) > 0 || news.Ownership || news.Parked {
		f.wait = pollLeast
	} else {
		f.wait = min(2*f.wait, pollTables)
	}
	f.next = time.Now().Add(f.wait)
	return news, nil
}

func (f *tablesFeed) poll(ctx context.Context, news *backend.News) error {
	for _, t := range f.tables {
		if err := t.poll(ctx, f.rd, news); err != nil {
			return err
		}
	}
	every := ownPooled
	if f.rd.bell.listens() {
		every = ownerPoll
	}
	if time.Since(f.surveys) < every {
		return nil
	}
	if every == ownPooled {
		news.Parked = true // no process reports replayed messages
	}
	return f.survey(ctx, news)
}

// survey looks whether members or free leases have changed.
func (f *tablesFeed) survey(ctx context.Context, news *backend.News) error {
	ctx, cancel := context.WithTimeout(ctx, feedTimeout)
	defer cancel()
	w, err := f.rd.queries(f.rd.pool).WatchOwnership(ctx, f.consumers)
	if err != nil {
		return err
	}
	news.Ownership = news.Ownership || w.Members != f.members || w.Free != f.free
	f.members, f.free, f.surveys = w.Members, w.Free, time.Now()
	return nil
}

// tableFeed watches the table of one consumer with a cursor of its own.
type tableFeed struct {
	consumer string
	source   *tableSource
	at       *cursor
	now      horizon // as of the last poll
}

// start begins at the table's present, unless the feed has begun before.
func (f *tableFeed) start(ctx context.Context, rd *reader) error {
	if f.at != nil {
		return nil
	}
	var now pgtable.Now
	err := rd.readTable(ctx, f.source, rd.horizon(ctx, f.source, &f.now),
		func(db pgtable.Querier) (err error) { now, err = f.source.Now(ctx, db); return err })
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
func (f *tableFeed) poll(ctx context.Context, rd *reader, news *backend.News) error {
	late, err := f.at.late()
	if err != nil {
		return err
	}
	var (
		now  horizon
		rows []pgtable.News
	)
	err = rd.readTable(ctx, f.source, rd.horizon(ctx, f.source, &now), func(db pgtable.Querier) (err error) {
		rows, err = f.source.News(ctx, db, pgtable.NewsParams{Position: f.at.pos, Max: feedRows, Late: xidTexts(late)})
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
