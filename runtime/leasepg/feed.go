package leasepg

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// As long as notifications reach it the feed of an idle process polls every pollMost. Polls find what no notification told of: a
// message that was published within notifyEvery of another one, in a transaction that was committed long after that. Until
// pollMost it is found in about the time between the two commits. With the runtime's surveys, its looks for parked messages and the
// waiting for other sessions (see wait.go) an idle process reads less than once a second.
const (
	pollLeast  = 2 * time.Millisecond   // between polls right after news
	pollRest   = 100 * time.Millisecond // at most, while a server that is late gets time: a poll has a third of it
	pollMost   = 3 * time.Second        // when idle
	ownerPoll  = 10 * time.Second       // of sessions that died: no process notifies of that
	pollPooled = 500 * time.Millisecond // when idle behind a pooler, where no notification arrives
	ownPooled  = time.Second

	feedRows    = 10_000 // messages looked at in one poll
	feedTimeout = 15 * time.Second
)

// feed watches the log and the ownership tables for one process, on a connection of its
// own. Notifications only make it look sooner.
type feed struct {
	rd        *reader
	consumers []string
	infos     []backend.ConsumerInfo // of those that read the log
	slots     bool                   // some of them read slots
	keys      bool                   // or streams
	tables    []*tableFeed           // of those that read a table
	wanted    map[string]interest    // by topic

	conn     *pgx.Conn
	at       *cursor
	last     int64         // id drawn, as of the last poll
	wait     time.Duration // between polls
	next     time.Time     // of polls, at the latest
	rest     time.Duration // after the last poll, by how long that took
	earliest time.Time     // of the poll that a message asks for
	members  string
	free     int64
	surveys  time.Time // when ownership was looked at last

	delayed time.Duration // until a delayed event is due, as of the last poll; negative: never
	due     time.Time     // when to move delayed events
	refused time.Time     // when that failed
}

// OpenFeed starts watching from the present on.
func (rd *reader) OpenFeed(ctx context.Context, consumers []backend.ConsumerInfo) (backend.Feed, error) {
	if len(consumers) > 0 && !slices.ContainsFunc(consumers, func(c backend.ConsumerInfo) bool { return rd.tables.of(c) == nil }) {
		return rd.openTables(ctx, consumers)
	}
	f := &feed{rd: rd, wanted: map[string]interest{}}
	for _, c := range consumers {
		f.consumers = append(f.consumers, c.Name)
		if t := rd.tables.of(c); t != nil {
			f.tables = append(f.tables, &tableFeed{consumer: c.Name, source: t})
		}
		if len(c.Topics) == 0 || c.Source != nil {
			continue
		}
		f.infos = append(f.infos, c)
		f.slots = f.slots || c.Per == backend.PerPartition
		f.keys = f.keys || c.Per == backend.PerStream
	}
	if err := f.open(ctx); err != nil {
		f.Close()
		return nil, rd.fail("open the feed", err)
	}
	return f, nil
}

// open connects and listens. The cursor survives, so the next poll catches up.
func (f *feed) open(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, feedTimeout)
	defer cancel()
	f.rd.ledgers.forget()
	if f.conn, err = f.rd.connect(ctx); err != nil {
		return err
	}
	if err := f.rd.detectPooler(ctx, f.conn); err != nil {
		return err
	}
	if !f.rd.pooled.Load() {
		if _, err := f.conn.Exec(ctx, "listen "+f.rd.schema.ident()); err != nil {
			return err
		}
	}
	if f.at == nil {
		now, err := f.rd.queries(f.conn).LogNow(ctx)
		if err != nil {
			return err
		}
		if f.at, err = storedCursor(now.Pos, now.Snap, now.X, "", 0); err != nil {
			return err
		}
		f.at.history, f.last = now.History, 0
		w, err := f.rd.queries(f.conn).WatchOwnership(ctx, f.consumers)
		if err != nil {
			return err
		}
		f.members, f.free = w.Members, w.Free
		f.surveys = time.Now()
	}
	for _, t := range f.tables {
		if err := t.start(ctx, f.rd); err != nil {
			return err
		}
	}
	f.wait, f.delayed = pollLeast, -1
	f.next = time.Now().Add(f.wait)
	return nil
}

// Close stops watching.
func (f *feed) Close() {
	if f.conn != nil {
		closeConn(f.conn)
		f.conn = nil
	}
}

// Next waits for news, or until the log has been polled without any.
func (f *feed) Next(ctx context.Context) (backend.News, error) {
	var news backend.News
	err := func() error {
		if f.conn == nil || f.conn.IsClosed() {
			// Notifications in between are lost: look at all leases.
			if err := f.open(ctx); err != nil {
				return err
			}
			news.Ownership, news.Parked = true, true
		} else if err := f.sleep(ctx, &news); err != nil {
			return err
		}
		if (news.Ownership || len(news.Wanted) > 0) && time.Now().Before(f.next) {
			return nil // a lease may be free: the log can wait until its time
		}
		began := time.Now()
		if err := f.poll(ctx, &news); err != nil {
			return err
		}
		f.rest = min(2*time.Since(began), pollRest)
		f.earliest = time.Now().Add(f.rest)
		f.schedule(&news)
		return nil
	}()
	if err != nil {
		f.Close()
		if errors.Is(err, errSetBack) || errors.Is(err, errFar) {
			f.forget()
		}
		if ctx.Err() != nil {
			return backend.News{}, ctx.Err()
		}
		return backend.News{}, f.rd.fail("watch the log", err)
	}
	return news, nil
}

// errSetBack: the feed's cursors are of another history than the server. The runtime opens another
// feed, and then looks at everything.
var errSetBack = errors.New("the server was set back, or replaced by one that lacks writes; everything is looked at again")

// forget drops the cursors, so that none is used on a server that did not give it.
func (f *feed) forget() {
	f.at = nil
	for _, t := range f.tables {
		t.at = nil
	}
}

// schedule sets the time of the next poll: soon when there was something to read, and ever
// later while there is none.
func (f *feed) schedule(news *backend.News) {
	if len(news.Topics)+len(news.Resources) > 0 || news.Parked && !f.rd.pooled.Load() {
		f.wait = max(pollLeast, f.rest)
	} else {
		f.wait = min(2*f.wait, f.idleWait(pollMost, pollPooled))
		if len(f.tables) > 0 {
			f.wait = min(f.wait, pollTables)
		}
	}
	f.next = time.Now().Add(f.wait)
}

func (f *feed) idleWait(notified, pooled time.Duration) time.Duration {
	if f.rd.pooled.Load() {
		return pooled
	}
	return notified
}

// sleep waits until the next poll is due or a notification arrives.
func (f *feed) sleep(ctx context.Context, news *backend.News) error {
	due := time.Until(f.next)
	if f.delayed >= 0 {
		due = min(due, max(time.Until(f.due), pollLeast))
	}
	if f.rd.pooled.Load() {
		select {
		case <-time.After(due):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	wait, cancel := context.WithTimeout(ctx, due)
	defer cancel()
	for {
		n, err := f.conn.WaitForNotification(wait)
		switch {
		case err == nil:
			consumer, wanted := strings.CutPrefix(n.Payload, wakeWanted)
			switch {
			case n.Payload == wakeOwnership:
				news.Ownership = true
			case n.Payload == wakeParked:
				news.Parked = true
			case wanted:
				news.Wanted = append(news.Wanted, consumer)
			default:
				if rest := time.Until(f.earliest); rest > 0 {
					var rested context.CancelFunc
					wait, rested = context.WithTimeout(ctx, rest)
					defer rested()
					continue
				}
			}
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err):
			return nil
		default:
			return err
		}
	}
}

// poll reads what is new since the cursor, in one round trip.
func (f *feed) poll(ctx context.Context, news *backend.News) error {
	ctx, cancel := context.WithTimeout(ctx, feedTimeout)
	defer cancel()
	for _, t := range f.tables {
		if err := t.poll(ctx, f.rd, news); err != nil {
			return err
		}
	}
	var steps []step
	if len(f.infos) > 0 {
		f.release(ctx)
		log, err := f.log(ctx, news)
		if err != nil {
			return err
		}
		steps = append(steps, steady(ctx), log, func(q *leasedb.Queries) error {
			err := nextDelayed(ctx, &f.delayed)(q)
			if f.due = time.Now().Add(f.delayed); f.due.Before(f.refused.Add(releaseFail)) {
				f.due = f.refused.Add(releaseFail)
			}
			return err
		})
	}
	if time.Since(f.surveys) >= f.idleWait(ownerPoll, ownPooled) {
		f.surveys = time.Now()
		steps = append(steps, func(q *leasedb.Queries) error {
			w, err := q.WatchOwnership(ctx, f.consumers)
			if err != nil {
				return err
			}
			if w.Members != f.members || w.Free != f.free {
				news.Ownership = true
			}
			f.members, f.free = w.Members, w.Free
			// No process reports replayed messages here.
			news.Parked = news.Parked || f.rd.pooled.Load()
			return nil
		})
	}
	if len(steps) == 0 {
		return nil
	}
	return f.rd.pipeline(ctx, f.conn, steps...)
}

// release moves delayed events into the log when they may be due. A failure holds up
// no other work.
func (f *feed) release(ctx context.Context) {
	if f.delayed < 0 || time.Now().Before(f.due) {
		return
	}
	if err := f.rd.publisher.releaseDelayed(ctx, f.conn); err != nil && ctx.Err() == nil && !f.conn.IsClosed() {
		f.refused = time.Now()
		f.rd.log.Warn("leasepg: could not move delayed events into the log, trying again", "err", err)
	}
}

func (f *feed) log(ctx context.Context, news *backend.News) (step, error) {
	late, err := f.at.late()
	if err != nil {
		return nil, err
	}
	p := leasedb.FeedLogParams{Pos: f.at.pos, Max: feedRows, Late: xidTexts(late), Slots: f.slots, Keys: f.keys}
	return func(q *leasedb.Queries) error {
		rows, err := q.FeedLog(ctx, p)
		if err != nil {
			return err
		}
		next := *f.at
		for _, r := range rows {
			if r.Snap == "" {
				f.tell(news, r)
				continue
			}
			now, err := newHorizon(r.History, r.Snap, r.Last, 0)
			if err != nil {
				return err
			}
			if f.at.in(now) != nil || r.Last < f.last {
				return errSetBack
			}
			f.last = r.Last
			// Late messages are complete in one answer, so the snapshot moves always.
			next.snap = r.Snap
			if r.Fresh > 0 {
				next.pos = r.Pos
				if next.x, err = strconv.ParseUint(r.X, 10, 64); err != nil {
					return err
				}
			}
		}
		f.at = &next
		news.Compact()
		return nil
	}, nil
}

// tell adds what a row of the log means for the consumers.
func (f *feed) tell(news *backend.News, r leasedb.FeedLogRow) {
	w := f.wants(r.Topic)
	if w.topic {
		news.Topics = append(news.Topics, r.Topic)
	}
	for _, c := range w.slots {
		news.Add(c, strconv.Itoa(int(r.Slot)))
	}
	for _, c := range w.keys {
		news.Add(c, r.Key)
	}
}

// interest is who wants to know of a topic's messages.
type interest struct {
	topic bool     // readers of topics or of the whole log
	slots []string // consumers that read slots
	keys  []string // consumers that read streams
}

// wants remembers its answers: topics repeat.
func (f *feed) wants(topic string) interest {
	w, ok := f.wanted[topic]
	if ok {
		return w
	}
	if len(f.wanted) > 100_000 {
		clear(f.wanted)
	}
	topic = strings.Clone(topic)
	for _, c := range f.infos {
		switch {
		case !backend.MatchTopic(c.Topics, topic):
		case c.Per == backend.PerPartition:
			w.slots = append(w.slots, c.Name)
		case c.Per == backend.PerStream:
			w.keys = append(w.keys, c.Name)
		default:
			w.topic = true
		}
	}
	f.wanted[topic] = w
	return w
}
