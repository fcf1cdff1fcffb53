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
	"github.com/leasegen/leasegen/runtime/leasepg/pgtable"
)

// tableSource is a consumer's table, as generated code describes it.
type tableSource pgtable.Source

// identity says what the consumer's cursors mean. It is stored with the consumer.
func (t *tableSource) identity() string {
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

// tables reads, checks and copies tables of applications. It keeps the sources of consumers by name: a commit names its consumer only.
type tables struct {
	*server
	names   schema   // of what generated queries call
	sources sync.Map // string → *tableSource
	checked sync.Map // *tableSource → the name of the sequence of its positions; "" when that may not be read
}

func (ts *tables) sequence(s *tableSource) string {
	v, _ := ts.checked.Load(s)
	name, _ := v.(string)
	return name
}

// of returns the consumer's table, or nil if it reads the log.
func (ts *tables) of(c backend.ConsumerInfo) *tableSource {
	source, _ := c.Source.(*pgtable.Source)
	s := (*tableSource)(source)
	if s != nil {
		ts.sources.Store(c.Name, s)
	}
	return s
}

func (ts *tables) named(consumer string) *tableSource {
	v, _ := ts.sources.Load(consumer)
	s, _ := v.(*tableSource)
	return s
}

// registerTable is Register for a consumer of a table.
func (o *owner) registerTable(ctx context.Context, t *tableSource, c backend.ConsumerInfo, resources []string) error {
	if err := o.mendTable(ctx, t, c.Name); err != nil {
		return err
	}
	if err := o.checkTable(ctx, t, c); err != nil {
		return err
	}
	p := leasedb.DescribeTableConsumerParams{
		Name: c.Name, Per: c.Per.String(), Grace: c.Grace, Lock: c.Lock.String(), Source: t.identity(),
	}
	known, err := o.checkKind(ctx, c.Name, p.Per, p.Source)
	if err != nil {
		return err
	}
	if !known && c.From == backend.FromNow {
		var now pgtable.Now
		err := o.readTable(ctx, t, func(db pgtable.Querier) (err error) { now, err = t.Now(ctx, db); return err })
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
			err := o.readTable(ctx, t, func(db pgtable.Querier) (err error) { resources, err = t.Topics(ctx, db); return err })
			if err != nil {
				return err
			}
		}
		resources = slices.DeleteFunc(slices.Clone(resources), func(r string) bool {
			long := r == "" || len(r) > maxText
			if !long {
				return false
			}
			if _, told := o.squatters.LoadOrStore(fmt.Sprintf("%s %x", c.Name, sha256.Sum256([]byte(r))), true); !told {
				o.log.Error("leasepg: rows of a topic are not read: a topic has 1 to 1,024 bytes", "consumer", c.Name, "table", t.Table, "bytes", len(r),
					"fix", "give these rows a shorter "+t.Topic)
			}
			return true
		})
	default:
		resources = []string{backend.Whole}
	}
	return o.pipeline(ctx, o.pool, durable(ctx),
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
func (rd *reader) fetchTable(ctx context.Context, t *tableSource, req backend.FetchRequest, out []backend.Fetched) error {
	if _, ok := rd.tables.checked.Load(t); !ok { // a lease may be taken before Register has answered
		if err := rd.mendTable(ctx, t, req.Consumer.Name); err != nil {
			return err
		}
	}
	// Empty arrays, since nil would be NULL.
	h := pgtable.HeadsParams{Items: []int32{}, Resources: []string{}, Positions: []int64{}, Scan: 1}
	p := pgtable.ReadParams{Items: []int32{}, Limits: []int64{}}
	if t.Filtered {
		h.Scan = max(tableScan/int64(len(req.Items)), 100)
	}
	reads, late, err := rd.inQuestion(ctx, rd.ledgers.get(t), rd.askTable(t), false, req)
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
	err = rd.readTable(ctx, t, rd.horizon(ctx, t, &now),
		func(db pgtable.Querier) error {
			heads, err := t.Heads(ctx, db, h)
			for _, h := range heads {
				if err := reads[h.Item].head(t, h); err != nil {
					return err
				}
				more[h.Item] = t.Filtered && h.Looked >= p.Scan
			}
			return err
		},
		func(db pgtable.Querier) error {
			rows, err := rowsOf(db, func(db pgtable.Querier) ([]pgtable.Row, error) { return t.Read(ctx, db, p) })
			for i := range rows {
				row := &rows[i]
				r := &reads[row.Item]
				if row.Part == partLate {
					r.late++
				}
				r.ids, r.messages = append(r.ids, row.Position), append(r.messages, rowMessage(row))
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
	return rd.takeBack(ctx, t, req, now, suspects, reads, out)
}

func (r *read) head(t *tableSource, h pgtable.Head) (err error) {
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

func rowMessage(row *pgtable.Row) backend.Raw {
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
func (ts *tables) rereadParked(ctx context.Context, t *tableSource, messages []backend.ParkedMessage) error {
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
	var rows map[int64]*pgtable.Row
	err := ts.readTable(ctx, t, func(db pgtable.Querier) (err error) { rows, err = t.byPosition(ctx, db, ids); return err })
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

func (t *tableSource) byPosition(ctx context.Context, db pgtable.Querier, ids []int64) (map[int64]*pgtable.Row, error) {
	rows, err := rowsOf(db, func(db pgtable.Querier) ([]pgtable.Row, error) { return t.Rows(ctx, db, ids) })
	if err != nil {
		return nil, err
	}
	out := make(map[int64]*pgtable.Row, len(rows))
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
func (ts *tables) copyRows(ctx context.Context, t *tableSource, on database, ids []int64) (c contents, err error) {
	if len(ids) == 0 {
		return c, nil
	}
	var rows map[int64]*pgtable.Row
	read := func(db pgtable.Querier) (err error) { rows, err = t.byPosition(ctx, db, ids); return err }
	if tx, ok := on.(pgx.Tx); ok {
		err = ts.readTableIn(ctx, t, tx, read)
	} else {
		err = ts.readTable(ctx, t, read)
	}
	if err != nil {
		return c, err
	}
	for _, id := range ids {
		row, ok := rows[id]
		if !ok {
			row = &pgtable.Row{JSON: fmt.Sprintf(`{%q: %d}`, t.Position, id)}
		}
		c.topics, c.keys, c.kinds = append(c.topics, row.Topic), append(c.keys, laneOf(row.Key)), append(c.kinds, row.Kind)
		c.payloads = append(c.payloads, []byte(row.JSON))
	}
	return c, nil
}

// tableSteps replaces what copies messages from the log in a commit.
func (ts *tables) tableSteps(ctx context.Context, t *tableSource, on database, fresh leasedb.ParkNewParams, dead leasedb.GiveUpParams) ([]step, error) {
	var steps []step
	if len(fresh.Ids) > 0 {
		c, err := ts.copyRows(ctx, t, on, fresh.Ids)
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
		c, err := ts.copyRows(ctx, t, on, dead.Ids)
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
