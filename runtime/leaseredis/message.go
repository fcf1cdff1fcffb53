package leaseredis

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// Fields of an entry of the log, in this order.
const (
	fieldTopic   = "topic" // in views only
	fieldKind    = "kind"
	fieldKey     = "key"
	fieldPayload = "payload"
	fieldHeaders = "headers" // JSON, if there are any
)

// entry is one of a stream.
type entry struct {
	at   position
	body []byte // names and values in turn, as the server has sent them: a part of the reply
}

// fields yields names and values, which are parts of the reply.
func (e *entry) fields(yield func(name, value []byte) bool) {
	for p := (reply{rest: e.body}); len(p.rest) > 0; {
		if name, value := p.bulk(), p.bulk(); p.err != nil || !yield(name, value) {
			return
		}
	}
}

// naming says which fields of an entry mean what.
type naming struct {
	kind, key, payload string
	defaultKind        string
	log                bool // the entry is leasegen's own: it may have a topic and headers
}

var logNaming = naming{kind: fieldKind, key: fieldKey, payload: fieldPayload, log: true}

func (s *StreamSource) naming() naming {
	return naming{kind: s.Kind, key: s.Key, payload: s.Payload, defaultKind: s.DefaultKind}
}

// interned keeps one copy of texts that repeat.
type interned map[string]string

func (in interned) of(b []byte) string {
	if s, ok := in[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(in) < 1000 {
		in[s] = s
	}
	return s
}

// lastMilli is the end of the year 9999: JSON knows no later time.
const lastMilli = 253402300799999

// raw makes a message of an entry. An entry that somebody else wrote, without the payload
// field, has all its fields as payload, so that no field is lost in a dead letter.
func (e *entry) raw(n naming, in input, topic string, texts interned, maxPayload int) backend.Raw {
	r := backend.Raw{ID: messageID(in, e.at), Topic: topic, Kind: n.defaultKind}
	if n.log {
		r.PublishedAt = time.UnixMicro(int64(min(e.at.ms, lastMilli*1000)))
	} else {
		r.PublishedAt = time.UnixMilli(int64(min(e.at.ms, lastMilli)))
	}
	whole := false
	for name, value := range e.fields {
		switch string(name) { // the last wins, as in a map
		case n.kind:
			r.Kind = texts.of(value)
		case n.key:
			r.Key = string(value)
		case n.payload:
			r.Payload, whole = value, true
		case fieldTopic:
			if n.log {
				r.Topic = texts.of(value)
			}
		case fieldHeaders:
			if n.log && json.Unmarshal(value, &r.Headers) != nil {
				r.Headers = nil
			}
		}
	}
	if !whole {
		r.Payload = e.object()
	}
	if r.Size = len(r.Payload); r.Size > maxPayload {
		r.Payload = nil
	}
	return r
}

// object is all fields as JSON.
func (e *entry) object() []byte {
	all := map[string]string{}
	for name, value := range e.fields {
		all[string(name)] = string(value)
	}
	b, err := json.Marshal(all)
	if err != nil {
		panic(err) // strings
	}
	return b
}

// messageID names an entry: "<µs>-<tag>" in the log, "<µs>-<n>-<tag>" for one in it that
// somebody else wrote with a sequence number, the entry's id with its stream's name for those
// of applications.
func messageID(in input, at position) string {
	if in.tag < 0 {
		return at.id() + "/" + in.name
	}
	buf := make([]byte, 0, 24)
	buf = strconv.AppendUint(buf, at.ms, 10)
	if at.seq > 0 {
		buf = append(buf, '-')
		buf = strconv.AppendUint(buf, at.seq, 10)
	}
	buf = append(buf, '-')
	return string(strconv.AppendInt(buf, int64(in.tag), 10))
}

// findMessage is the inverse of messageID: it tells which of the inputs has the message, and where.
func findMessage(ins []input, id string) (n int, at position, ok bool) {
	if at, name, found := strings.Cut(id, "/"); found {
		n = slices.IndexFunc(ins, func(in input) bool { return in.tag < 0 && in.name == name })
		return n, parsePosition(at), n >= 0
	}
	i := strings.LastIndexByte(id, '-')
	if i < 0 {
		return 0, position{}, false
	}
	tag, err := strconv.Atoi(id[i+1:])
	if at = parsePosition(id[:i]); err != nil || at == (position{}) {
		return 0, position{}, false
	}
	n = slices.IndexFunc(ins, func(in input) bool { return in.tag == tag })
	return n, at, n >= 0 && tag >= 0
}

// packMessage makes one string of a message, which scripts keep without looking into it.
func packMessage(r backend.Raw) string {
	headers := headersJSON(r.Headers)
	published := ""
	if !r.PublishedAt.IsZero() {
		published = strconv.FormatInt(r.PublishedAt.UnixMicro(), 10)
	}
	buf := make([]byte, 0, 32+len(r.ID)+len(r.Topic)+len(r.Key)+len(r.Kind)+len(headers)+len(r.Payload))
	for _, s := range [...]string{r.ID, r.Topic, r.Key, r.Kind, headers, published} {
		buf = binary.AppendUvarint(buf, uint64(len(s)))
		buf = append(buf, s...)
	}
	return string(append(buf, r.Payload...)) // the rest is the payload
}

// unpackMessage reads what packMessage made.
func unpackMessage(packed string) (backend.Raw, error) {
	var parts [6]string
	rest := packed
	for i := range parts {
		n, used := binary.Uvarint([]byte(rest[:min(len(rest), binary.MaxVarintLen64)]))
		if used <= 0 || n > uint64(len(rest)-used) {
			return backend.Raw{}, errors.New("leaseredis: a stored message cannot be read: it was cut or overwritten")
		}
		parts[i], rest = rest[used:used+int(n)], rest[used+int(n):]
	}
	r := backend.Raw{ID: parts[0], Topic: parts[1], Key: parts[2], Kind: parts[3], Payload: []byte(rest), Size: len(rest)}
	if parts[4] != "" {
		if err := json.Unmarshal([]byte(parts[4]), &r.Headers); err != nil {
			return backend.Raw{}, errors.New("leaseredis: a stored message cannot be read: its headers were overwritten")
		}
	}
	if parts[5] != "" {
		us, err := strconv.ParseInt(parts[5], 10, 64)
		if err != nil {
			return backend.Raw{}, errors.New("leaseredis: a stored message cannot be read: its time was overwritten")
		}
		r.PublishedAt = time.UnixMicro(us)
	}
	return r, nil
}

// headersJSON is how headers are stored; empty when there are none.
func headersJSON(headers map[string]string) string {
	if len(headers) == 0 {
		return ""
	}
	b, err := json.Marshal(headers)
	if err != nil {
		panic(err) // strings
	}
	return string(b)
}
