package leaseredis

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/lease"
)

// lagged is how far a cursor is behind.
type lagged struct {
	// count of messages that follow it. Above 10,000 it is an estimate by their times.
	count int64
	// oldest is the age of the first of them; 0 when there is none.
	oldest time.Duration
}

// unread tells of each resource whether messages follow its cursor.
func (b *Backend) unread(ctx context.Context, sh *shape, info lease.ConsumerInfo, at map[string]cursor) (map[string]bool, error) {
	out := make(map[string]bool, len(at))
	var reads []*read
	var owners []string
	flush := func() error {
		if err := b.readAll(ctx, reads); err != nil {
			return err
		}
		for i, r := range reads {
			if r.err != nil {
				return fmt.Errorf("leaseredis: look for unread messages of %s/%s: %w", info.Name, owners[i], r.err)
			}
			out[owners[i]] = out[owners[i]] || len(r.entries) > 0
		}
		reads, owners = reads[:0], owners[:0]
		return nil
	}
	for resource, c := range at {
		out[resource] = false
		ins := b.inputsOf(sh, info, resource)
		for i, p := range c.positions(ins) {
			reads, owners = append(reads, &read{key: ins[i].key, after: p, count: 1}), append(owners, resource)
		}
		if len(reads) >= scoresPage {
			if err := flush(); err != nil {
				return nil, err
			}
		}
	}
	return out, flush()
}

// lag counts the messages that follow cursors.
func (b *Backend) lag(ctx context.Context, sh *shape, info lease.ConsumerInfo, at map[string]cursor) (map[string]lagged, error) {
	out := make(map[string]lagged, len(at))
	if sourceOf(info) != nil {
		return out, b.lagOfStreams(ctx, sh, info, at, out)
	}
	type part struct{ resource, key, after string }
	byTag := make([][]part, sh.tags)
	for resource, c := range at {
		out[resource] = lagged{}
		ins := b.inputsOf(sh, info, resource)
		for i, p := range c.positions(ins) {
			byTag[ins[i].tag] = append(byTag[ins[i].tag], part{resource, ins[i].key, p.id()})
		}
	}
	for tag, parts := range byTag {
		for page := range slices.Chunk(parts, 200) {
			args := make([]any, 0, 2*len(page))
			for _, p := range page {
				args = append(args, p.key, p.after)
			}
			reply, err := b.run(ctx, tag, scripts.lag, args...)
			if err != nil {
				return nil, fmt.Errorf("leaseredis: count unread messages of %s: %w", info.Name, err)
			}
			ns := ints(reply)
			if len(ns) != 1+2*len(page) {
				return nil, fmt.Errorf("leaseredis: count unread messages of %s: the server answered with %d values", info.Name, len(ns))
			}
			for i, p := range page {
				l := out[p.resource]
				l.add(ns[1+2*i], time.Duration(ns[0]-ns[2+2*i])*time.Microsecond)
				out[p.resource] = l
			}
		}
	}
	return out, nil
}

func (l *lagged) add(n int64, oldest time.Duration) {
	if n == 0 {
		return
	}
	l.count += n
	l.oldest = max(l.oldest, oldest)
}

const lagPage = 1000

// lagOfStreams is lag for streams of applications, which scripts do not reach.
func (b *Backend) lagOfStreams(ctx context.Context, sh *shape, info lease.ConsumerInfo, at map[string]cursor, out map[string]lagged) error {
	for resource, c := range at {
		l := lagged{}
		ins := b.inputsOf(sh, info, resource)
		for i, p := range c.positions(ins) {
			n := int64(0)
			oldest := time.Duration(0)
			for n < 10*lagPage {
				r := &read{key: ins[i].key, after: p, count: lagPage}
				if err := b.readAll(ctx, []*read{r}); err != nil {
					return err
				}
				if r.err != nil {
					return fmt.Errorf("leaseredis: count unread entries of stream %q: %w", ins[i].key, r.err)
				}
				if len(r.entries) > 0 && n == 0 {
					oldest = max(time.Since(time.UnixMilli(int64(min(r.entries[0].at.ms, 1<<53)))), 0)
				}
				n += int64(len(r.entries))
				if len(r.entries) < lagPage {
					break
				}
				p = r.entries[lagPage-1].at
			}
			l.add(n, oldest)
		}
		out[resource] = l
	}
	return nil
}

// bodies reads messages of resources by id and packs them, in one round trip. Those that are gone are
// absent: deleted by others, or their whole stream replaced.
func (b *Backend) bodies(ctx context.Context, sh *shape, info lease.ConsumerInfo, ids map[string][]string) (map[string]map[string]string, error) {
	type message struct {
		resource, id string
		from         input
		read         *read
	}
	var wanted []message
	var reads []*read
	for resource, some := range ids {
		ins := b.inputsOf(sh, info, resource)
		for _, id := range some {
			if n, at, ok := findMessage(ins, id); ok {
				r := &read{key: ins[n].key, after: at, exact: true}
				wanted, reads = append(wanted, message{resource, id, ins[n], r}), append(reads, r)
			}
		}
	}
	if err := b.readAll(ctx, reads); err != nil {
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
		if info.Per == lease.PerTopic {
			topic = m.resource
		}
		if out[m.resource] == nil {
			out[m.resource] = map[string]string{}
		}
		out[m.resource][m.id] = packMessage(m.read.entries[0].raw(naming, m.from, topic, texts, 1<<40))
	}
	return out, nil
}
