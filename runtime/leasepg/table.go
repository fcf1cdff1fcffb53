package leasepg

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// TableSource makes a consumer read a table of the application instead of leasegen's log:
// its rows are the messages. Generated code fills it in, with functions around the queries
// that sqlc has made for that table, and sets it as lease.Spec.Source.
//
// The table is read with the same cursor as the log, so it has to keep the log's two rules:
// every insert draws its xid before its position, and positions are drawn one by one. What
// is not so is told by Register, with the statement that mends it.
//
// The functions are called by many goroutines at once.
type TableSource struct {
	// Table is the table's schema and name, as in app.outbox.
	Table string
	// Position, XID and Topic are columns: the increasing number, the xid8, and the one whose
	// values are the resources of a PerTopic consumer (empty for others).
	Position, XID, Topic string
	// Slots is how many partitions a PerPartition consumer has, Key the column whose hash
	// decides, and Slot the expression that gives a row's; zero for others.
	Slots     int
	Key, Slot string
	// Filtered says that rows are left out, so that positions without a message are passed.
	Filtered bool

	// Now returns the table's present: a cursor behind all that is there.
	Now func(context.Context, Querier) (TableNow, error)
	// News tells which resources have rows that a cursor has not passed.
	News func(context.Context, Querier, TableNewsParams) ([]TableNews, error)
	// Topics lists the resources of a PerTopic consumer; nil for others.
	Topics func(context.Context, Querier) ([]string, error)
	// Heads returns how far a read of many resources goes, and Read its rows. Both are
	// called in one snapshot, with the same parameters.
	Heads func(context.Context, Querier, TableHeadsParams) ([]TableHead, error)
	Read  func(context.Context, Querier, TableReadParams) ([]TableRow, error)
	// Rows returns the rows at the positions given, with a copy as JSON.
	Rows func(context.Context, Querier, []int64) ([]TableRow, error)
}

// Querier is what code made by sqlc runs queries on.
type Querier = leasedb.DBTX

// TableNow is the present of a table.
type TableNow struct {
	Position int64  // the greatest one
	Snap     string // of the statement
	X        string // an xid drawn after Snap
	Foreign  bool   // rows carry xids of another cluster
}

// TableNewsParams is a cursor and how many rows beyond it to look at.
type TableNewsParams struct {
	Position int64
	Max      int64
	Late     []string // xids
}

// TableNews is a resource with news, or, with Snap, how far the statement has looked.
type TableNews struct {
	Resource string
	Snap     string
	Position int64
	X        string // empty when there is nothing beyond the cursor
}

// TableHeadsParams are resources and how far each has been read. Scan is how many rows of
// one resource are looked at.
type TableHeadsParams struct {
	Items     []int32
	Resources []string
	Positions []int64
	Scan      int64
}

// TableHead is how far a read of one resource goes.
type TableHead struct {
	Item   int32
	Top    int64  // position of the last row looked at; 0 when there is none
	Looked int64  // rows looked at
	Snap   string // of the statement
	X      string // an xid drawn after Snap; empty when there is no row
}

// TableReadParams asks for the rows of many resources: those that were late, which are found
// by xid; further pages of such; and those beyond a position.
type TableReadParams struct {
	LateItems     []int32
	LateResources []string
	LateUpto      []int64
	LateXids      []string
	LateLimits    []int64

	PagedItems     []int32
	PagedResources []string
	PagedAfter     []int64
	PagedUpto      []int64
	PagedSnaps     []string
	PagedLateSnaps []string
	PagedLimits    []int64

	Items     []int32
	Resources []string
	Positions []int64
	Limits    []int64
	Scan      int64
}

// TableRow is a row as a message. Part and Item are set by Read, JSON by Rows.
type TableRow struct {
	Part, Item       int32
	Position         int64
	Topic, Key, Kind string
	JSON             string
	Row              any // sqlc's type, or an error in its place
}

// TableRows converts what a generated query returned.
func TableRows[A, B any](rows []A, err error, convert func(A) B) ([]B, error) {
	if err != nil {
		return nil, err
	}
	out := make([]B, len(rows))
	for i := range rows {
		out[i] = convert(rows[i])
	}
	return out, nil
}

// identity says what the consumer's cursors mean. It is stored with the consumer.
func (t *TableSource) identity() string {
	b, err := json.Marshal(struct {
		Table    string `json:"table"`
		Position string `json:"position"`
		XID      string `json:"xid"`
		Topic    string `json:"topic,omitempty"`
		Slots    int    `json:"slots,omitempty"`
		Key      string `json:"key,omitempty"`
	}{t.Table, t.Position, t.XID, t.Topic, t.Slots, t.Key})
	if err != nil {
		panic(err) // strings and a number
	}
	return string(b)
}

// tables are the sources of consumers, by the consumer's name. A commit names its consumer only.
type tables struct {
	names   schema   // of what generated queries call
	sources sync.Map // string → *TableSource
	checked sync.Map // *TableSource → the name of the sequence of its positions; "" when that may not be read
}

func (t *tables) sequence(s *TableSource) string {
	v, _ := t.checked.Load(s)
	name, _ := v.(string)
	return name
}

// of returns the consumer's table, or nil if it reads the log.
func (t *tables) of(c backend.ConsumerInfo) *TableSource {
	s, _ := c.Source.(*TableSource)
	if s != nil {
		t.sources.Store(c.Name, s)
	}
	return s
}

func (t *tables) named(consumer string) *TableSource {
	v, _ := t.sources.Load(consumer)
	s, _ := v.(*TableSource)
	return s
}

// registerTable is Register for a consumer of a table.
func (b *Backend) registerTable(ctx context.Context, t *TableSource, c backend.ConsumerInfo, resources []string) error {
	if err := b.mendTable(ctx, t, c.Name); err != nil {
		return err
	}
	if err := b.checkTable(ctx, t, c); err != nil {
		return err
	}
	p := leasedb.DescribeTableConsumerParams{
		Name: c.Name, Per: c.Per.String(), Grace: c.Grace, Lock: c.Lock.String(), Source: t.identity(),
	}
	known, err := b.checkKind(ctx, c.Name, p.Per, p.Source)
	if err != nil {
		return err
	}
	if !known && c.From == backend.FromNow {
		var now TableNow
		err := b.readTable(ctx, t, func(db Querier) (err error) { now, err = t.Now(ctx, db); return err })
		if err != nil {
			return err
		}
		p.StartPos, p.StartSnap, p.StartX = now.Position, now.Snap, now.X
	}
	switch c.Per {
	case backend.PerPartition:
		resources = make([]string, t.Slots)
		for i := range resources {
			resources[i] = strconv.Itoa(i)
		}
	case backend.PerTopic:
		if resources == nil {
			err := b.readTable(ctx, t, func(db Querier) (err error) { resources, err = t.Topics(ctx, db); return err })
			if err != nil {
				return err
			}
		}
		resources = slices.DeleteFunc(slices.Clone(resources), func(r string) bool {
			long := r == "" || len(r) > maxText
			if !long {
				return false
			}
			if _, told := b.squatters.LoadOrStore(fmt.Sprintf("%s %x", c.Name, sha256.Sum256([]byte(r))), true); !told {
				b.log.Error("leasepg: rows of a topic are not read: a topic has 1 to 1,024 bytes", "consumer", c.Name, "table", t.Table, "bytes", len(r),
					"fix", "give these rows a shorter "+t.Topic)
			}
			return true
		})
	default:
		resources = []string{backend.Whole}
	}
	return b.pipeline(ctx, b.pool, durable(ctx),
		func(q *leasedb.Queries) error { return q.DescribeTableConsumer(ctx, p) },
		func(q *leasedb.Queries) error {
			_, err := q.RegisterResources(ctx, leasedb.RegisterResourcesParams{Consumer: c.Name, Resources: append([]string{}, resources...)})
			return err
		})
}

func describeSource(identity string) string {
	if identity == "" {
		return "leasegen's log"
	}
	var s struct{ Table, Topic string }
	if err := json.Unmarshal([]byte(identity), &s); err != nil {
		return identity
	}
	return "table " + s.Table + " as " + identity
}

// tableScan is how many rows one read of a filtered table looks at, all resources together.
const tableScan = 20_000

// fetchTable is Fetch for a consumer of a table.
func (b *Backend) fetchTable(ctx context.Context, t *TableSource, req backend.FetchRequest, out []backend.Fetched) error {
	if _, ok := b.tables.checked.Load(t); !ok { // a lease may be taken before Register has answered
		if err := b.mendTable(ctx, t, req.Consumer.Name); err != nil {
			return err
		}
	}
	// Empty arrays, since nil would be NULL.
	h := TableHeadsParams{Items: []int32{}, Resources: []string{}, Positions: []int64{}, Scan: 1}
	p := TableReadParams{Items: []int32{}, Limits: []int64{}}
	if t.Filtered {
		h.Scan = max(tableScan/int64(len(req.Items)), 100)
	}
	reads, late, err := b.inQuestion(ctx, b.ledgers.get(t), b.askTable(t), false, req)
	if err != nil {
		return err
	}
	left := make([]bool, len(reads)) // not read: so much was in question for those before them
	pairs := 0
	for i, item := range req.Items {
		c := reads[i].from
		if left[i] = pairs > 0 && pairs+len(late[i].xids) > mostPairs; left[i] {
			continue
		}
		pairs += len(late[i].xids)
		limit, n := int64(item.Limit)+1, int32(i)
		if t.Filtered {
			h.Scan = max(h.Scan, limit)
		}
		if c.lateSnap != "" {
			p.PagedItems, p.PagedResources = append(p.PagedItems, n), append(p.PagedResources, item.Resource)
			p.PagedAfter, p.PagedUpto = append(p.PagedAfter, c.latePos), append(p.PagedUpto, c.pos)
			p.PagedSnaps, p.PagedLateSnaps = append(p.PagedSnaps, c.snap), append(p.PagedLateSnaps, c.lateSnap)
			p.PagedLimits = append(p.PagedLimits, limit)
			continue
		}
		for _, x := range xidTexts(late[i].xids) {
			p.LateItems, p.LateResources = append(p.LateItems, n), append(p.LateResources, item.Resource)
			p.LateUpto, p.LateXids = append(p.LateUpto, c.pos), append(p.LateXids, x)
			p.LateLimits = append(p.LateLimits, limit)
		}
		h.Items, h.Resources = append(h.Items, n), append(h.Resources, item.Resource)
		h.Positions, p.Limits = append(h.Positions, c.pos), append(p.Limits, limit)
	}
	p.Items, p.Resources, p.Positions, p.Scan = h.Items, h.Resources, h.Positions, h.Scan
	if !t.Filtered {
		p.Scan = slices.Max(append(p.Limits, 1))
	}
	more := make([]bool, len(reads)) // the table goes on where the read stopped looking
	var now horizon
	err = b.readTable(ctx, t, b.horizon(ctx, t, &now),
		func(db Querier) error {
			heads, err := t.Heads(ctx, db, h)
			for _, h := range heads {
				if err := reads[h.Item].head(t, h); err != nil {
					return err
				}
				more[h.Item] = t.Filtered && h.Looked >= p.Scan
			}
			return err
		},
		func(db Querier) error {
			rows, err := rowsOf(db, func(db Querier) ([]TableRow, error) { return t.Read(ctx, db, p) })
			for i := range rows {
				row := &rows[i]
				r := &reads[row.Item]
				if row.Part == partLate {
					r.late++
				}
				r.ids, r.messages = append(r.ids, row.Position), append(r.messages, row.message())
			}
			return err
		})
	if err != nil {
		return err
	}
	var suspects []int
	for i, item := range req.Items {
		if left[i] {
			out[i] = unread(item)
			continue
		}
		reads[i].at = now
		if err := reads[i].from.in(now); err != nil {
			return err
		}
		if reads[i].from.suspect(now) {
			suspects = append(suspects, i)
		}
		out[i] = reads[i].result(item.Resource, item.Limit)
		out[i].More = out[i].More || more[i]
	}
	return b.takeBack(ctx, t, req, now, suspects, reads, out)
}

func (r *read) head(t *TableSource, h TableHead) (err error) {
	r.snap = h.Snap
	if h.X == "" {
		return nil
	}
	if t.Filtered {
		r.top = h.Top
	}
	r.x, err = strconv.ParseUint(h.X, 10, 64)
	return err
}

func (row *TableRow) message() backend.Raw {
	return backend.Raw{ID: strconv.FormatInt(row.Position, 10), Topic: row.Topic, Key: laneOf(row.Key), Kind: row.Kind, Value: row.Row}
}

// longest text that is indexed, some two of them together.
const maxText = 1024

// laneOf shortens a key that no index could hold. Rows with the same key keep their order.
func laneOf(key string) string {
	if len(key) <= maxText {
		return key
	}
	return fmt.Sprintf("%s… sha256:%x", strings.ToValidUTF8(key[:maxText/2], ""), sha256.Sum256([]byte(key)))
}

// errRowGone is why a parked message of a table is given up on.
var errRowGone = errors.New("its row was deleted before it was handled")

// rereadParked gives parked messages their rows as they are now.
func (b *Backend) rereadParked(ctx context.Context, t *TableSource, messages []backend.ParkedMessage) error {
	if len(messages) == 0 {
		return nil
	}
	ids := make([]int64, len(messages))
	for i := range messages {
		var err error
		if ids[i], err = messageID(messages[i].ID, false); err != nil {
			return err
		}
	}
	var rows map[int64]*TableRow
	err := b.readTable(ctx, t, func(db Querier) (err error) { rows, err = t.byPosition(ctx, db, ids); return err })
	if err != nil {
		return err
	}
	for i := range messages {
		m := &messages[i]
		m.Payload, m.Size, m.Value = nil, 0, errRowGone
		if row, ok := rows[ids[i]]; ok {
			m.Value = row.Row
		}
	}
	return nil
}

func (t *TableSource) byPosition(ctx context.Context, db Querier, ids []int64) (map[int64]*TableRow, error) {
	rows, err := rowsOf(db, func(db Querier) ([]TableRow, error) { return t.Rows(ctx, db, ids) })
	if err != nil {
		return nil, err
	}
	out := make(map[int64]*TableRow, len(rows))
	for i := range rows {
		out[rows[i].Position] = &rows[i]
	}
	return out, nil
}

// contents are copies of rows, for people who look at parked messages and dead letters.
type contents struct {
	topics, keys, kinds []string
	payloads            [][]byte
}

// copyRows copies the rows at ids, in their order. Of a row that is gone its position is left.
func (b *Backend) copyRows(ctx context.Context, t *TableSource, on database, ids []int64) (c contents, err error) {
	if len(ids) == 0 {
		return c, nil
	}
	var rows map[int64]*TableRow
	read := func(db Querier) (err error) { rows, err = t.byPosition(ctx, db, ids); return err }
	if tx, ok := on.(pgx.Tx); ok {
		err = b.readTableIn(ctx, t, tx, read)
	} else {
		err = b.readTable(ctx, t, read)
	}
	if err != nil {
		return c, err
	}
	for _, id := range ids {
		row, ok := rows[id]
		if !ok {
			row = &TableRow{JSON: fmt.Sprintf(`{%q: %d}`, t.Position, id)}
		}
		c.topics, c.keys, c.kinds = append(c.topics, row.Topic), append(c.keys, laneOf(row.Key)), append(c.kinds, row.Kind)
		c.payloads = append(c.payloads, []byte(row.JSON))
	}
	return c, nil
}

// tableSteps replaces what copies messages from the log in a commit.
func (b *Backend) tableSteps(ctx context.Context, t *TableSource, on database, fresh leasedb.ParkNewParams, dead leasedb.GiveUpParams) ([]step, error) {
	var steps []step
	if len(fresh.Ids) > 0 {
		c, err := b.copyRows(ctx, t, on, fresh.Ids)
		if err != nil {
			return nil, err
		}
		p := leasedb.ParkRowsParams{
			Resources: fresh.Resources, Epochs: fresh.Epochs, Seqs: fresh.Seqs, Ids: fresh.Ids, Attempts: fresh.Attempts,
			Micros: fresh.Micros, Errors: fresh.Errors, Lanes: fresh.Lanes,
			Topics: c.topics, Keys: c.keys, Kinds: c.kinds, Payloads: c.payloads, Consumer: fresh.Consumer, Session: fresh.Session,
		}
		steps = append(steps, func(q *leasedb.Queries) error { return q.ParkRows(ctx, p) })
	}
	if len(dead.Ids) > 0 {
		c, err := b.copyRows(ctx, t, on, dead.Ids)
		if err != nil {
			return nil, err
		}
		p := leasedb.GiveUpRowsParams{
			Resources: dead.Resources, Epochs: dead.Epochs, Seqs: dead.Seqs, Ids: dead.Ids, Attempts: dead.Attempts, Reasons: dead.Reasons,
			Topics: c.topics, Keys: c.keys, Kinds: c.kinds, Payloads: c.payloads, Consumer: dead.Consumer, Session: dead.Session,
		}
		steps = append(steps, func(q *leasedb.Queries) error { return q.GiveUpRows(ctx, p) })
	}
	return steps, nil
}
