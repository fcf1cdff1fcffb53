package leasepg

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// The columns of a read, as the queries in sqlc/queries/log.sql give them.
const (
	colPart = iota
	colItem
	colID
	colTopic
	colKey
	colKind
	colPayload
	colSize
	colHeaders
	colPublishedAt
	colX
	columnCount
)

const (
	partHead  = iota // the statement's snapshot
	partLate         // messages that were late
	partFresh        // messages beyond the position
)

// row is one row of a read.
type row struct {
	part, item int
	x          uint64
	message
}

// scanner decodes the rows of a read. It exists because reading the log is the one place
// where the cost per row counts: values are taken from the wire as they are, names that
// repeat are made once, payloads share buffers.
type scanner struct {
	names map[string]string
	last  [2]string // the topic and kind before
	arena []byte
}

// binaryColumns asks for the binary format of every column.
var binaryColumns = func() pgx.QueryResultFormats {
	f := make(pgx.QueryResultFormats, columnCount)
	for i := range f {
		f[i] = pgx.BinaryFormatCode
	}
	return f
}()

// epoch2000 is PostgreSQL's zero time, in µs.
const epoch2000 = 946_684_800_000_000

func (s *scanner) scan(rows pgx.Rows, r *row) error {
	for _, f := range rows.FieldDescriptions() {
		if f.Format != pgx.BinaryFormatCode {
			return s.scanText(rows, r) // the pool runs the simple protocol
		}
	}
	v := rows.RawValues()
	if len(v) != columnCount || len(v[colPart]) != 4 || len(v[colItem]) != 4 || len(v[colID]) != 8 || len(v[colSize]) != 4 {
		return fmt.Errorf("a row of the log has an unknown shape")
	}
	*r = row{part: int(binary.BigEndian.Uint32(v[colPart])), item: int(binary.BigEndian.Uint32(v[colItem]))}
	r.id = int64(binary.BigEndian.Uint64(v[colID]))
	r.Size = int(binary.BigEndian.Uint32(v[colSize]))
	if len(v[colX]) == 8 {
		r.x = binary.BigEndian.Uint64(v[colX])
	}
	if r.part == partHead {
		r.Kind = string(v[colHeaders])
		return nil
	}
	r.ID = strconv.FormatInt(r.id, 10)
	r.Topic, r.Kind = s.name(0, v[colTopic]), s.name(1, v[colKind])
	if len(v[colKey]) > 0 {
		r.Key = string(v[colKey])
	}
	if v[colPayload] != nil {
		r.Payload = s.keep(v[colPayload])
	}
	if v[colHeaders] != nil {
		if err := json.Unmarshal(v[colHeaders], &r.Headers); err != nil {
			return fmt.Errorf("headers of message %d are not an object of strings", r.id)
		}
	}
	if len(v[colPublishedAt]) == 8 {
		r.PublishedAt = time.UnixMicro(int64(binary.BigEndian.Uint64(v[colPublishedAt])) + epoch2000)
	}
	return nil
}

func (s *scanner) scanText(rows pgx.Rows, r *row) error {
	var (
		headers *string
		at      *time.Time
		x       pgtype.Uint64
	)
	*r = row{}
	err := rows.Scan(&r.part, &r.item, &r.id, &r.Topic, &r.Key, &r.Kind, &r.Payload, &r.Size, &headers, &at, &x)
	if err != nil {
		return err
	}
	r.x = x.Uint64
	if r.part == partHead {
		r.Kind = *headers
		return nil
	}
	r.ID = strconv.FormatInt(r.id, 10)
	if at != nil {
		r.PublishedAt = *at
	}
	if headers != nil {
		if err := json.Unmarshal([]byte(*headers), &r.Headers); err != nil {
			return fmt.Errorf("headers of message %d are not an object of strings", r.id)
		}
	}
	return nil
}

// snapshot is what a head row carries.
func (r *row) snapshot() string { return r.Kind }

// name returns v as a string, the same one for the same bytes.
func (s *scanner) name(column int, v []byte) string {
	if s.last[column] == string(v) {
		return s.last[column]
	}
	n, ok := s.names[string(v)]
	if !ok {
		if s.names == nil {
			s.names = map[string]string{}
		}
		n = string(v)
		s.names[n] = n
	}
	s.last[column] = n
	return n
}

// arenaSize is how much payload shares one buffer. A payload that a handler keeps keeps
// its buffer.
const arenaSize = 64 << 10

func (s *scanner) keep(v []byte) []byte {
	if len(v) > arenaSize/4 {
		return slices.Clone(v)
	}
	if s.arena == nil || cap(s.arena)-len(s.arena) < len(v) {
		s.arena = make([]byte, 0, arenaSize)
	}
	n := len(s.arena)
	s.arena = append(s.arena, v...)
	return s.arena[n:len(s.arena):len(s.arena)]
}

func byID(a, b message) int { return cmp.Compare(a.id, b.id) }
