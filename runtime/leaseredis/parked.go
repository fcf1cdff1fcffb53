package leaseredis

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// parkedBytes bounds what one read of parked messages loads from a tag; the rest comes with the next.
const parkedBytes = 4 << 20

// FetchParked reads due parked messages, the lane that is due longest first.
func (cs *commits) FetchParked(ctx context.Context, req backend.ParkedRequest) (backend.Parked, error) {
	out := backend.Parked{Next: -1}
	sh, err := cs.shape(ctx)
	if err != nil {
		return out, fmt.Errorf("leaseredis: read parked messages of %s: %w", req.Consumer.Name, err)
	}
	type lane struct {
		resource, name string
		waited         int64 // µs since it has been due
		messages       []any
	}
	var lanes []lane
	reach := cs.reach(sh, req.Consumer.Name) // what a lost shard keeps waits for it
	per := req.PerResource
	if per <= 0 {
		per = req.Limit
	}
	args := with([]any{req.Consumer.Name, req.Session, req.Limit, parkedBytes, per, len(req.Resources)}, req.Resources...)
	args = with(append(args, len(req.Exclude)), req.Exclude...)
	steps := cs.leaseSteps(sh, req.Consumer, scripts.fetchparked, args...)
	steps = slices.DeleteFunc(steps, func(s step) bool { return !slices.Contains(reach, s.tag) })
	for _, a := range cs.runAll(ctx, steps) {
		if a.err != nil {
			return backend.Parked{Next: -1}, fmt.Errorf("leaseredis: read parked messages of %s: %w", req.Consumer.Name, a.err)
		}
		r := list(a.value)
		out.More = out.More || number(r[0]) == 1
		if next := time.Duration(number(r[1])) * time.Microsecond; next >= 0 && (out.Next < 0 || next < out.Next) {
			out.Next = next
		}
		if len(r) < 3 {
			continue
		}
		for _, l := range list(r[2]) {
			l := list(l)
			lanes = append(lanes, lane{text(l[0]), text(l[1]), number(l[2]), l[3:]})
		}
	}
	slices.SortStableFunc(lanes, func(a, b lane) int { return cmp.Compare(b.waited, a.waited) })
	for _, l := range lanes {
		for _, m := range l.messages {
			if len(out.Messages) >= req.Limit {
				out.More = true
				return out, nil
			}
			m := list(m)
			raw := cs.unpackKept(text(m[3]), text(m[0]))
			raw.Attempt = int(number(m[2]))
			if raw.Size > req.MaxPayload {
				raw.Payload = nil
			}
			out.Messages = append(out.Messages, backend.ParkedMessage{Resource: l.resource, Lane: l.name, Raw: raw, Last: number(m[1]) == 1,
				Waited: time.Duration(number(m[4])) * time.Microsecond, Error: text(m[5])})
		}
	}
	return out, nil
}

// leaseSteps runs a script under every tag that keeps leases of the consumer.
func (cat *catalog) leaseSteps(sh *shape, info backend.ConsumerInfo, s *script, args ...any) []step {
	if info.Per.Whole() {
		return []step{{tag: sh.leaseTag(info.Name, backend.Whole), script: s, args: args}}
	}
	return same(sh.all(), s, args...)
}

// unpackKept reads a message that was kept beside the log. One that cannot be read, because another
// program wrote there, is a message without kind and payload, which no handler takes.
func (st *streams) unpackKept(packed, id string) backend.Raw {
	raw, err := unpackMessage(packed)
	if err != nil {
		st.log.Warn("a kept message cannot be read", "id", id, "error", err)
		return backend.Raw{ID: id}
	}
	return raw
}
