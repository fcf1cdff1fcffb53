package leaseredis

import (
	"cmp"
	"fmt"
	"unicode/utf8"

	"github.com/leasegen/leasegen/runtime/backend"
)

// StreamSource makes a consumer read streams that others write to, instead of leasegen's
// log: their entries are the messages. Generated code sets it as lease.Spec.Source. It goes
// with PerTopic, where each stream is a resource, and with PerGroup, where all are one.
//
// The streams are only read: no entry is written to them, none is trimmed. Leases,
// cursors, parked messages and dead letters are kept under leasegen's own keys, so a stream
// may have any name and lie anywhere in a cluster. One that does not exist yet is waited for.
//
// A message's Topic is the name of its stream, its PublishedAt the time in the entry's id.
type StreamSource struct {
	// Names are the streams, as their keys are called.
	Names []string
	// Kind, Key and Payload are the fields of an entry that hold these. Defaults: kind, key
	// and payload. An entry without the payload field has all its fields as payload, as one
	// JSON object of strings.
	Kind, Key, Payload string
	// DefaultKind is the kind of entries without the kind field.
	DefaultKind string
}

// inputs are the streams as those of one resource.
func (s *StreamSource) inputs() []input {
	ins := make([]input, len(s.Names))
	for i, n := range s.Names {
		ins[i] = input{key: n, tag: -1, name: n, shared: true}
	}
	return ins
}

// sourceOf returns the streams that a consumer reads instead of the log, with the names of all fields, or nil.
func sourceOf(info backend.ConsumerInfo) *StreamSource {
	var s StreamSource
	switch v := info.Source.(type) {
	case StreamSource:
		s = v
	case *StreamSource:
		if v == nil {
			return nil
		}
		s = *v
	default:
		return nil
	}
	s.Kind = cmp.Or(s.Kind, fieldKind)
	s.Key = cmp.Or(s.Key, fieldKey)
	s.Payload = cmp.Or(s.Payload, fieldPayload)
	return &s
}

// checkSource refuses sources that this backend does not read.
func checkSource(info backend.ConsumerInfo) error {
	if info.Source == nil {
		return nil
	}
	s := sourceOf(info)
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("leaseredis: consumer %q: "+format, append([]any{info.Name}, args...)...)
	}
	switch {
	case s == nil:
		return refuse("its source is a %T, which another backend reads; use a leaseredis.StreamSource", info.Source)
	case info.Per != backend.PerTopic && info.Per != backend.PerGroup:
		return refuse("streams that others write to cannot be read per %s: their entries would have to be copied; use per topic or per group", info.Per)
	case len(s.Names) == 0:
		return refuse("its source names no stream; set StreamSource.Names")
	}
	seen := map[string]bool{}
	for _, n := range s.Names {
		if n == "" {
			return refuse("its source names a stream with an empty name")
		}
		if !utf8.ValidString(n) {
			return refuse("its source names stream %q, which is not UTF-8 text", n)
		}
		if seen[n] {
			return refuse("its source names stream %q twice", n)
		}
		seen[n] = true
	}
	return nil
}
