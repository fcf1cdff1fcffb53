package leasepg

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// fetchMany reads many topics, slots or streams in one statement, and returns the patterns that count.
func (rd *reader) fetchMany(ctx context.Context, req backend.FetchRequest, what *reading, out []backend.Fetched) (patterns string, err error) {
	m, reads, err := rd.newMany(ctx, req, what)
	if err != nil {
		return "", err
	}
	var head position
	if err := rd.readLog(ctx, m.query(ctx), reads, func(p position) { head = p }); err != nil {
		return "", err
	}
	if err := judge(head, reads); err != nil {
		return "", err
	}
	var suspects []int
	for i, item := range req.Items {
		r := &reads[i]
		if m.left[i] {
			out[i] = unread(item)
			continue
		}
		if r.from.suspect(r.at) {
			suspects = append(suspects, i)
		}
		r.snap = head.snap
		if r.x == 0 {
			r.x = head.x
		}
		for j := range r.messages { // what all have in common is not sent along
			switch req.Consumer.Per {
			case backend.PerTopic:
				r.messages[j].Topic = item.Resource
			case backend.PerStream:
				r.messages[j].Key = item.Resource
			}
		}
		if req.Consumer.Per == backend.PerPartition && r.from.lateSnap == "" {
			m.jump(r, head)
		}
		out[i] = r.result(item.Resource, item.Limit)
		out[i].More = out[i].More || r.beyond
	}
	if len(suspects) == 0 {
		return head.patterns, nil
	}
	return head.patterns, rd.takeBack(ctx, nil, req, reads[0].at, suspects, reads, out)
}

// many is what a read of many resources asks for: of each the late messages of some
// transactions and what is beyond its position, or the next page of late messages.
type many struct {
	consumer   string
	per        backend.Per
	maxPayload int32
	every      bool // all topics
	likes      []string
	span, upto int64 // ids that a slot's read passes at most, and ends at
	far        int64 // so many ids without a message of a slot are worth storing

	left []bool // items that are not read: so much was in question for those before them

	items             []int32
	names             []string
	positions, limits []int64

	// Of a topic or stream there is an entry for each transaction in question; of a slot there
	// is one, and the transactions of all are together in lateXids.
	lateItems                                 []int32
	lateNames, lateXids, lateSnaps, lateBelow []string
	lateUpto, lateLimits                      []int64
	lateFrom                                  string // the oldest of these transactions, and of the following

	// Transactions that were running when they were asked for, and items that they may concern, with
	// their cursors' snapshots, each once.
	openXids, openNames, openBelow, snapshots []string
	openItems, openSnaps                      []int32
	openUpto, openLimits                      []int64

	pagedItems                         []int32
	pagedNames, pagedSnaps, pagedLates []string
	pagedAfter, pagedUpto, pagedLimits []int64
}

func (rd *reader) newMany(ctx context.Context, req backend.FetchRequest, what *reading) (*many, []read, error) {
	m := &many{
		consumer: req.Consumer.Name, per: req.Consumer.Per, maxPayload: int32(req.MaxPayload), every: what.every, likes: what.likes, span: slotSpan, upto: math.MaxInt64, far: slotJump,
		items: []int32{}, names: []string{}, positions: []int64{}, limits: []int64{}, // nil would be NULL, of which unnest makes no rows, too
	}
	if m.every {
		m.span = math.MaxInt64 / 2 // no gap to pass over
	}
	reads, late, err := rd.inQuestion(ctx, rd.ledgers.get(m.per), rd.askLog(m.per), m.per != backend.PerPartition, req)
	if err != nil {
		return nil, nil, err
	}
	if m.per == backend.PerPartition && !rd.bySlot.done.Load() {
		if err := rd.plain(ctx, m, reads); err != nil {
			return nil, nil, err
		}
	}
	m.left = make([]bool, len(reads))
	var pairs int
	var oldest uint64
	running, snapshots := map[uint64]struct{}{}, map[string]int32{}
	for i, item := range req.Items {
		c, xids := reads[i].from, late[i].xids
		if _, err := strconv.ParseInt(item.Resource, 10, 16); err != nil && m.per == backend.PerPartition {
			continue // a lease that no program has made: there is no such slot
		}
		if c.pos >= m.upto {
			m.left[i] = true
			continue
		}
		if m.per != backend.PerPartition && pairs > 0 && pairs+len(xids) > mostPairs {
			m.left[i] = true
			continue
		}
		pairs += len(xids)
		limit := int64(item.Limit) + 1
		if c.lateSnap != "" {
			m.pagedItems, m.pagedNames = append(m.pagedItems, int32(i)), append(m.pagedNames, item.Resource)
			m.pagedAfter, m.pagedUpto = append(m.pagedAfter, c.latePos), append(m.pagedUpto, c.pos)
			m.pagedSnaps, m.pagedLates = append(m.pagedSnaps, c.snap), append(m.pagedLates, c.lateSnap)
			m.pagedLimits = append(m.pagedLimits, limit)
			continue
		}
		for n, x := range xids {
			if oldest == 0 || x < oldest {
				oldest = x
			}
			m.lateXids = append(m.lateXids, strconv.FormatUint(x, 10))
			if n > 0 && m.per == backend.PerPartition {
				continue
			}
			m.lateItems, m.lateNames = append(m.lateItems, int32(i)), append(m.lateNames, item.Resource)
			m.lateUpto, m.lateLimits = append(m.lateUpto, c.pos), append(m.lateLimits, limit)
			m.lateSnaps, m.lateBelow = append(m.lateSnaps, c.snap), append(m.lateBelow, c.xText())
		}
		if xids := late[i].running; len(xids) > 0 {
			for _, x := range xids {
				running[x] = struct{}{}
			}
			place, ok := snapshots[c.snap]
			if !ok {
				m.snapshots = append(m.snapshots, c.snap)
				place = int32(len(m.snapshots))
				snapshots[c.snap] = place
			}
			m.openItems, m.openNames, m.openSnaps = append(m.openItems, int32(i)), append(m.openNames, item.Resource), append(m.openSnaps, place)
			m.openUpto, m.openBelow, m.openLimits = append(m.openUpto, c.pos), append(m.openBelow, c.xText()), append(m.openLimits, limit)
		}
		m.items, m.names = append(m.items, int32(i)), append(m.names, item.Resource)
		m.positions, m.limits = append(m.positions, c.pos), append(m.limits, limit)
	}
	for x := range running {
		if oldest == 0 || x < oldest {
			oldest = x
		}
		m.openXids = append(m.openXids, strconv.FormatUint(x, 10))
	}
	m.lateFrom = strconv.FormatUint(oldest, 10)
	if m.per == backend.PerPartition {
		slices.Sort(m.lateXids)
		m.lateXids = slices.Compact(m.lateXids)
	}
	return m, reads, nil
}

// inQuestion returns the reads of a request, and for each the transactions that may have brought
// something that was late for it.
// With apart, those that are running are told apart.
func (rd *reader) inQuestion(ctx context.Context, l *ledger, ask ask, apart bool, req backend.FetchRequest) ([]read, []question, error) {
	reads, late := make([]read, len(req.Items)), make([]question, len(req.Items))
	var history, now string
	for i, item := range req.Items {
		c, err := from(item.From)
		if err != nil {
			return nil, nil, err
		}
		late[i].name = item.Resource
		late[i].xids, err = c.late()
		if errors.Is(err, errFar) {
			if now == "" {
				h, err := rd.queries(rd.pool).Horizon(ctx)
				if err != nil {
					return nil, nil, err
				}
				now = h.Snap
			}
			c, err = c.pages(now), nil
		}
		if err != nil {
			return nil, nil, err
		}
		reads[i].from = c
		if len(late[i].xids) > 0 {
			history = c.history // those of another one fail the read
		}
	}
	return reads, late, l.narrow(ctx, history, late, apart, ask)
}

// query chooses the statement: the one for late messages only when there may be any.
func (m *many) query(ctx context.Context) func(*leasedb.Queries) error {
	late := len(m.lateItems)+len(m.openItems)+len(m.pagedItems) > 0
	beyond := int64(math.MaxInt64) // draw an xid, unless rows do it, if there are messages beyond this
	if len(m.positions) > 0 {
		beyond = slices.Min(m.positions)
	}
	switch {
	case m.per == backend.PerTopic && !late:
		return func(q *leasedb.Queries) error {
			_, err := q.FetchTopics(ctx, leasedb.FetchTopicsParams{
				MaxPayload: m.maxPayload, Items: m.items, Names: m.names, Positions: m.positions, Limits: m.limits, Beyond: beyond,
			})
			return err
		}
	case m.per == backend.PerTopic:
		return func(q *leasedb.Queries) error {
			_, err := q.FetchTopicsLate(ctx, leasedb.FetchTopicsLateParams{
				MaxPayload: m.maxPayload, Items: m.items, Names: m.names, Positions: m.positions, Limits: m.limits,
				LateItems: m.lateItems, LateNames: m.lateNames, LateUpto: m.lateUpto, LateXids: m.lateXids, LateLimits: m.lateLimits, LateFrom: m.lateFrom, Beyond: beyond,
				OpenXids: m.openXids, OpenItems: m.openItems, OpenNames: m.openNames, OpenUpto: m.openUpto, OpenBelow: m.openBelow, OpenLimits: m.openLimits,
				OpenSnaps: m.openSnaps, Snapshots: m.snapshots,
				PagedItems: m.pagedItems, PagedNames: m.pagedNames, PagedAfter: m.pagedAfter, PagedUpto: m.pagedUpto,
				PagedSnaps: m.pagedSnaps, PagedLateSnaps: m.pagedLates, PagedLimits: m.pagedLimits,
			})
			return err
		}
	case m.per == backend.PerPartition && !late:
		return func(q *leasedb.Queries) error {
			_, err := q.FetchSlots(ctx, leasedb.FetchSlotsParams{
				Consumer: m.consumer, MaxPayload: m.maxPayload, Items: m.items, Names: m.names, Positions: m.positions, Limits: m.limits,
				Every: m.every, Likes: m.likes, Span: m.span, Upto: m.upto,
				Beyond: min(beyond, math.MaxInt64-slotJump) + m.far - 1,
			})
			return err
		}
	case m.per == backend.PerPartition:
		return func(q *leasedb.Queries) error {
			_, err := q.FetchSlotsLate(ctx, leasedb.FetchSlotsLateParams{
				Consumer: m.consumer, MaxPayload: m.maxPayload, Items: m.items, Names: m.names, Positions: m.positions, Limits: m.limits,
				Every: m.every, Likes: m.likes, Span: m.span, Upto: m.upto, Beyond: beyond,
				LateItems: m.lateItems, LateNames: m.lateNames, LateUpto: m.lateUpto, LateXids: m.lateXids, LateLimits: m.lateLimits,
				LateSnaps: m.lateSnaps, LateBelow: m.lateBelow,
				PagedItems: m.pagedItems, PagedNames: m.pagedNames, PagedAfter: m.pagedAfter, PagedUpto: m.pagedUpto,
				PagedSnaps: m.pagedSnaps, PagedLateSnaps: m.pagedLates, PagedLimits: m.pagedLimits,
			})
			return err
		}
	case !late:
		return func(q *leasedb.Queries) error {
			_, err := q.FetchStreams(ctx, leasedb.FetchStreamsParams{
				Consumer: m.consumer, MaxPayload: m.maxPayload, Items: m.items, Names: m.names, Positions: m.positions, Limits: m.limits,
				Every: m.every, Likes: m.likes, Beyond: beyond,
			})
			return err
		}
	}
	return func(q *leasedb.Queries) error {
		_, err := q.FetchStreamsLate(ctx, leasedb.FetchStreamsLateParams{
			Consumer: m.consumer, MaxPayload: m.maxPayload, Items: m.items, Names: m.names, Positions: m.positions, Limits: m.limits,
			Every: m.every, Likes: m.likes,
			LateItems: m.lateItems, LateNames: m.lateNames, LateUpto: m.lateUpto, LateXids: m.lateXids, LateLimits: m.lateLimits, LateFrom: m.lateFrom, Beyond: beyond,
			OpenXids: m.openXids, OpenItems: m.openItems, OpenNames: m.openNames, OpenUpto: m.openUpto, OpenBelow: m.openBelow, OpenLimits: m.openLimits,
			OpenSnaps: m.openSnaps, Snapshots: m.snapshots,
			PagedItems: m.pagedItems, PagedNames: m.pagedNames, PagedAfter: m.pagedAfter, PagedUpto: m.pagedUpto,
			PagedSnaps: m.pagedSnaps, PagedLateSnaps: m.pagedLates, PagedLimits: m.pagedLimits,
		})
		return err
	}
}

// plain bounds a read of slots while the log has no index by slot: for each slot all messages are looked at.
func (rd *reader) plain(ctx context.Context, m *many, reads []read) error {
	least := int64(math.MaxInt64)
	for i := range reads {
		least = min(least, reads[i].from.pos)
	}
	m.far = 1
	return rd.pipeline(ctx, rd.pool, steady(ctx), func(q *leasedb.Queries) error {
		upto, err := q.PlainUpto(ctx, leasedb.PlainUptoParams{Pos: least, Rows: plainRows - 1})
		if upto > 0 {
			m.upto = upto
		}
		return err
	})
}

// jump lets a slot's cursor pass over what is not its own, up to where the read looked, when
// it moves anyway or that is far: a long stretch must not be read again and again, nor hold
// back the log. head carries the last visible id.
func (m *many) jump(r *read, head position) {
	upto := head.id
	if end := min(r.from.pos+m.span, m.upto); end < upto {
		upto, r.beyond = end, true
	}
	if r.x != 0 && (len(r.messages) > r.late || upto-r.from.pos >= m.far) {
		r.top = upto
	} else {
		r.beyond = false
	}
}
