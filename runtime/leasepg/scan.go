package leasepg

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/leasegen/leasegen/runtime/backend"
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

// position is what a row says of itself before its content is looked at.
type position struct {
	part, item int
	id         int64
	x          uint64
	snap       string // in the head row, as are
	history    string
	last       int64  // drawn
	patterns   string // that count in the snapshot, as JSON; empty: not asked
}

// scanner decodes the rows of a read. It exists because reading the log is the one place
// where the cost per row counts: values are taken from the wire as they are, names that
// repeat are made once, payloads share buffers.
type scanner struct {
	names map[string]string
	last  [2]string // the topic and kind before
	arena []byte
}

// isBinary reports whether rows have the format that is decoded here; text is the same in both. A
// pool that runs the simple protocol gives text.
func isBinary(rows pgx.Rows) bool {
	for _, f := range rows.FieldDescriptions() {
		if f.Format != pgx.BinaryFormatCode && f.DataTypeOID != pgtype.TextOID {
			return false
		}
	}
	return true
}

// epoch2000 is PostgreSQL's zero time, in µs.
const epoch2000 = 946_684_800_000_000

// each decodes binary rows. place says where a message goes; nil if it is not wanted.
func (s *scanner) each(rows pgx.Rows, head func(position), place func(position) *backend.Raw) (err error) {
	for rows.Next() {
		v := rows.RawValues()
		if len(v) != columnCount || len(v[colPart]) != 4 || len(v[colItem]) != 4 || len(v[colID]) != 8 || len(v[colSize]) != 4 {
			return errors.New("a row of the log has an unknown shape")
		}
		p := position{
			part: int(binary.BigEndian.Uint32(v[colPart])), item: int(binary.BigEndian.Uint32(v[colItem])),
			id: int64(binary.BigEndian.Uint64(v[colID])),
		}
		if len(v[colX]) == 8 {
			p.x = binary.BigEndian.Uint64(v[colX])
		}
		if p.part == partHead {
			p.snap, p.history, p.patterns = string(v[colHeaders]), string(v[colKind]), string(v[colKey])
			if p.last, err = strconv.ParseInt(string(v[colTopic]), 10, 64); err != nil {
				return err
			}
			head(p)
			continue
		}
		m := place(p)
		if m == nil {
			continue
		}
		m.ID = strconv.FormatInt(p.id, 10)
		m.Topic, m.Kind = s.name(0, v[colTopic]), s.name(1, v[colKind])
		m.Size = int(binary.BigEndian.Uint32(v[colSize]))
		if len(v[colKey]) > 0 {
			m.Key = string(v[colKey])
		}
		if v[colPayload] != nil {
			m.Payload = s.keep(v[colPayload])
		}
		if len(v[colPublishedAt]) == 8 {
			m.PublishedAt = time.UnixMicro(int64(binary.BigEndian.Uint64(v[colPublishedAt])) + epoch2000)
		}
		if v[colHeaders] != nil {
			m.Headers = decodeHeaders(v[colHeaders])
		}
	}
	return rows.Err()
}

// eachText is each for rows in text.
func eachText(rows pgx.Rows, head func(position), place func(position) *backend.Raw) error {
	for rows.Next() {
		var (
			p       position
			m       backend.Raw
			headers *string
			at      *time.Time
			x       pgtype.Uint64
		)
		err := rows.Scan(&p.part, &p.item, &p.id, &m.Topic, &m.Key, &m.Kind, &m.Payload, &m.Size, &headers, &at, &x)
		if err != nil {
			return err
		}
		p.x = x.Uint64
		if p.part == partHead {
			p.snap, p.history, p.patterns = *headers, m.Kind, m.Key
			if p.last, err = strconv.ParseInt(m.Topic, 10, 64); err != nil {
				return err
			}
			head(p)
			continue
		}
		to := place(p)
		if to == nil {
			continue
		}
		m.ID = strconv.FormatInt(p.id, 10)
		m.PublishedAt = *at
		if headers != nil {
			m.Headers = decodeHeaders([]byte(*headers))
		}
		*to = m
	}
	return rows.Err()
}

// decodeHeaders takes what plain inserts have made of headers: a value that is no string becomes its JSON text, and
// so does, under the name headers, what is no object at all.
func decodeHeaders(v []byte) (headers map[string]string) {
	if len(v) == 0 || json.Unmarshal(v, &headers) == nil {
		return headers
	}
	var values map[string]json.RawMessage
	if json.Unmarshal(v, &values) != nil {
		return map[string]string{"headers": string(v)}
	}
	headers = make(map[string]string, len(values))
	for name, value := range values {
		var s string
		if json.Unmarshal(value, &s) != nil {
			s = string(value)
		}
		headers[name] = s
	}
	return headers
}

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
