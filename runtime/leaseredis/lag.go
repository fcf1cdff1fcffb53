package leaseredis

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
)

// lagged is how far a cursor is behind.
type lagged struct {
	// count of messages that follow it. Above 10,000 it is an estimate by their times.
	count int64
	// oldest is the age of the first of them; 0 when there is none.
	oldest time.Duration
	// kept says that messages before a cursor are still there; up to cut, if it is set, others of that stream are not.
	kept bool
	cut  string
}

// input of a resource, to be looked at.
type looked struct {
	resource string
	in       input
	at       position
}

// eachInput passes on what the server reports of the streams of resources, tag by tag, without reading their messages.
func (st *streams) eachInput(ctx context.Context, sh *shape, info backend.ConsumerInfo, at map[string]cursor, each func(l looked, s streamInfo, now int64) error) error {
	byTag := map[int][]looked{}
	for resource, c := range at {
		ins := st.inputsOf(sh, info, resource)
		for i, p := range c.positions(ins) {
			byTag[ins[i].tag] = append(byTag[ins[i].tag], looked{resource, ins[i], p})
		}
	}
	for tag, all := range byTag {
		for page := range slices.Chunk(all, scoresPage) {
			keys := make([]string, len(page))
			for i := range page {
				keys[i] = page[i].in.key
			}
			infos, now, err := st.describe(ctx, tag, keys)
			if err != nil {
				return fmt.Errorf("leaseredis: look for unread messages of %s: %w", info.Name, err)
			}
			for i := range page {
				if infos[i].other {
					st.warnOther(info.Name, keys[i])
					continue
				}
				if err := each(page[i], infos[i], now); err != nil {
					return fmt.Errorf("leaseredis: look for unread messages of %s: %w", info.Name, err)
				}
			}
		}
	}
	return nil
}

// warnOther warns of a key that holds something else than the stream that a consumer reads.
func (st *streams) warnOther(consumer, key string) {
	st.warn("type "+key, "a key that is to be a stream holds something else; it is read when it is one", "consumer", consumer, "key", key)
}

// unread reports for each resource whether messages follow its cursor.
func (st *streams) unread(ctx context.Context, sh *shape, info backend.ConsumerInfo, at map[string]cursor) (map[string]bool, error) {
	out := make(map[string]bool, len(at))
	for resource := range at {
		out[resource] = false
	}
	return out, st.eachInput(ctx, sh, info, at, func(l looked, s streamInfo, _ int64) error {
		if s.length > 0 && l.at.compare(s.top) < 0 {
			out[l.resource] = true
		}
		return nil
	})
}

// lag counts the messages that follow cursors.
func (st *streams) lag(ctx context.Context, sh *shape, info backend.ConsumerInfo, at map[string]cursor) (map[string]lagged, error) {
	out := make(map[string]lagged, len(at))
	for resource := range at {
		out[resource] = lagged{}
	}
	return out, st.eachInput(ctx, sh, info, at, func(l looked, s streamInfo, now int64) error {
		if s.length > 0 && s.first.compare(l.at) <= 0 {
			sum := out[l.resource]
			if sum.kept = true; l.in.tag >= 0 && s.counted && s.added > s.length {
				sum.cut = messageID(l.in, position{ms: s.first.ms - 1})
			}
			out[l.resource] = sum
		}
		n, first, err := st.behind(ctx, l.in.tag, l.in.key, s, l.at)
		if err != nil || n == 0 {
			return err
		}
		unit := uint64(1)
		if l.in.tag < 0 {
			unit = 1000 // the ids of applications are milliseconds
		}
		age := max(now-int64(min(first.ms, math.MaxInt64/1000)*unit), 0)
		sum := out[l.resource]
		sum.count += n
		sum.oldest = max(sum.oldest, time.Duration(age)*time.Microsecond)
		out[l.resource] = sum
		return nil
	})
}

// bodies reads messages of resources by id and packs them, in one round trip. Those that are gone are
// absent: deleted by others, or their whole stream replaced.
func (st *streams) bodies(ctx context.Context, sh *shape, info backend.ConsumerInfo, ids map[string][]string) (map[string]map[string]string, error) {
	type message struct {
		resource, id string
		from         input
		read         *read
	}
	var wanted []message
	var reads []*read
	for resource, some := range ids {
		ins := st.inputsOf(sh, info, resource)
		for _, id := range some {
			if n, at, ok := findMessage(ins, id); ok {
				r := &read{key: ins[n].key, after: at, exact: true}
				wanted, reads = append(wanted, message{resource, id, ins[n], r}), append(reads, r)
			}
		}
	}
	if err := st.readAll(ctx, reads); err != nil {
		return nil, err
	}
	naming := logNaming
	if s := sourceOf(info); s != nil {
		naming = s.naming()
	}
	out := make(map[string]map[string]string, len(ids))
	texts := interned{}
	for _, m := range wanted {
		if m.read.err != nil && !redis.HasErrorPrefix(m.read.err, "WRONGTYPE") {
			return nil, fmt.Errorf("leaseredis: read message %s of %s/%s: %w", m.id, info.Name, m.resource, m.read.err)
		}
		if m.read.err != nil || len(m.read.entries) == 0 {
			continue
		}
		topic := m.from.name
		if info.Per == backend.PerTopic {
			topic = m.resource
		}
		if out[m.resource] == nil {
			out[m.resource] = map[string]string{}
		}
		out[m.resource][m.id] = packMessage(m.read.entries[0].raw(naming, m.from, topic, texts, 1<<40))
	}
	return out, nil
}
