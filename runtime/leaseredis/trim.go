package leaseredis

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// A topic's message is kept until all consumers that match the topic have passed it; one that
// no process matches waits for who does. A view's message is kept until its consumer has passed it.
// Cursors only grow, so what was passed when they were read is passed; a consumer that
// registers in between is seen by the script that trims.

const (
	trimTopics = 100    // in one script call
	trimPairs  = 20_000 // of topics and consumers, in one script call
	trimViews  = 300
	trimEvery  = time.Second            // what this process reads
	trimKeys   = 2000                   // streams of a view with messages left, up to which these are looked at for that
	trimAlways = 300                    // up to so many are looked at in every round of housekeeping
	trimPace   = 600 * time.Millisecond // for each of more, until they are looked at again: five commands a second
	trimLeast  = 5 * time.Minute        // but at least so often, while messages are published
)

// trimmer drops what all readers have passed.
type trimmer struct {
	*catalog
	looks   looks
	touched touched
}

// trim drops what all consumers have passed, and returns how many entries. Of a stream that is
// empty then none is left.
func (tr *trimmer) trim(ctx context.Context, sh *shape) (int, error) {
	total := 0
	for tag := range sh.tags {
		readers, err := tr.readersOf(ctx, tag)
		if err != nil {
			return total, err
		}
		passed := map[string]int64{}
		for name, info := range readers {
			if viewed(info) == "" {
				continue
			}
			due, err := tr.trimDue(ctx, tag, name)
			if err != nil {
				return total, err
			}
			if !due {
				continue
			}
			upto, n, err := tr.trimView(ctx, sh, tag, name)
			if total += n; err != nil {
				return total, err
			}
			passed[name] = upto
		}
		for topics, err := range tr.pages(ctx, tr.prefix(tag)+"topics", "-inf") {
			if err != nil {
				return total, err
			}
			n, err := tr.trimTopics(ctx, tag, len(readers), passed, topics)
			if total += n; err != nil {
				return total, err
			}
		}
	}
	return total, nil
}

// looks is when this process has looked at views as a whole.
type looks struct {
	mu sync.Mutex
	at map[viewPart]look
}

type look struct {
	last int64 // id of the tag's last message then
	when time.Time
}

// due reports that a view with n streams that have messages left is to be looked at whole. Of
// one with many that is rarely, and never while no message is published: what is read is trimmed within
// seconds by who reads it, so that held streams need no looking after.
func (l *looks) due(view viewPart, last int64, n int) bool {
	if n <= trimAlways {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == nil {
		l.at = map[viewPart]look{}
	}
	before, known := l.at[view]
	if known && (before.last == last || time.Since(before.when) < min(time.Duration(n)*trimPace, trimLeast)) {
		return false
	}
	l.at[view] = look{last, time.Now()}
	return known
}

// trimDue asks what looks.due is to know.
func (tr *trimmer) trimDue(ctx context.Context, tag int, consumer string) (bool, error) {
	last, err := tr.lastID(ctx, tag)
	if err != nil {
		return false, err
	}
	n, err := tr.dirty(ctx, tag, consumer)
	if err != nil {
		return false, err
	}
	return tr.looks.due(viewPart{tag: tag, consumer: consumer}, int64(last.ms), int(n)), nil
}

// dirty counts the streams of a view that have messages left.
func (tr *trimmer) dirty(ctx context.Context, tag int, consumer string) (int64, error) {
	key := tr.prefix(tag) + "dirty:" + consumer
	return ask(ctx, tr.shards, key, func(ctx context.Context) (int64, error) { return tr.client.ZCard(ctx, key).Result() })
}

// readersOf returns the consumers that are known under a tag, with the patterns of all their members.
func (cat *catalog) readersOf(ctx context.Context, tag int) (map[string]backend.ConsumerInfo, error) {
	read := func(key string) (map[string]string, error) {
		return ask(ctx, cat.shards, key, func(ctx context.Context) (map[string]string, error) { return cat.client.HGetAll(ctx, key).Result() })
	}
	stored, err := read(cat.prefix(tag) + "consumers")
	if err != nil {
		return nil, err
	}
	patterns, err := read(cat.prefix(tag) + "patterns")
	if err != nil {
		return nil, err
	}
	out := make(map[string]backend.ConsumerInfo, len(stored))
	for name, s := range stored {
		info, err := infoOf(name, s)
		if err != nil {
			return nil, err
		}
		if p, ok := patterns[name]; ok {
			if info.Topics, err = patternsIn(p); err != nil {
				return nil, fmt.Errorf("leaseredis: the patterns that are stored of consumer %q cannot be read: %w", name, err)
			}
		}
		out[name] = info
	}
	return out, nil
}

// lastID is the id of the last message of a tag.
func (st *streams) lastID(ctx context.Context, tag int) (position, error) {
	key := st.prefix(tag) + "meta"
	last, err := st.hget(ctx, key, key, "last")
	return parsePosition(last), err
}

// trimView trims the streams of a consumer's view under a tag. It returns the id up to which
// the consumer has passed all that is copied there, and how many entries were dropped.
func (tr *trimmer) trimView(ctx context.Context, sh *shape, tag int, consumer string) (upto int64, dropped int, err error) {
	last, err := tr.lastID(ctx, tag)
	if err != nil {
		return 0, 0, err
	}
	upto = int64(last.ms)
	for resources, err := range tr.pages(ctx, tr.prefix(tag)+"dirty:"+consumer, "-inf") {
		if err != nil {
			return upto, dropped, err
		}
		least, n, err := tr.trimCopies(ctx, sh, tag, consumer, resources)
		if dropped += n; err != nil {
			return upto, dropped, err
		}
		if least > 0 {
			upto = min(upto, least-1)
		}
	}
	return upto, dropped, nil
}

// trimCopies trims streams of a consumer's view under a tag. It returns the least id that is
// left in them, 0 for none, and how many entries were dropped.
func (tr *trimmer) trimCopies(ctx context.Context, sh *shape, tag int, consumer string, resources []string) (least int64, dropped int, err error) {
	at, err := tr.cursors(ctx, sh, consumer, resources)
	if err != nil {
		return 0, 0, err
	}
	for part := range slices.Chunk(resources, trimViews) {
		args := []any{consumer}
		for _, r := range part {
			keep := ""
			if p := at[r].positions([]input{{tag: tag}})[0]; p != (position{}) {
				p.seq++
				keep = p.id()
			}
			args = append(args, r, keep)
		}
		reply, err := tr.run(ctx, tag, scripts.trimviews, args...)
		if err != nil {
			return 0, dropped, fmt.Errorf("leaseredis: trim what was copied for %s: %w", consumer, err)
		}
		ns := ints(reply)
		if len(ns) != 2 {
			return 0, dropped, fmt.Errorf("leaseredis: trim what was copied for %s: the server answered with %d values", consumer, len(ns))
		}
		dropped += int(ns[0])
		if ns[1] > 0 && (least == 0 || ns[1] < least) {
			least = ns[1]
		}
	}
	return least, dropped, nil
}

// trimTopics trims topics of a tag that has so many readers, given how far consumers with views have got.
func (tr *trimmer) trimTopics(ctx context.Context, tag, readers int, passed map[string]int64, topics []string) (dropped int, err error) {
	for part := range slices.Chunk(topics, max(1, min(trimTopics, trimPairs/max(1, readers)))) {
		args := []any{tag, len(passed)}
		for name, upto := range passed {
			args = append(args, name, upto)
		}
		reply, err := tr.run(ctx, tag, scripts.trimtopics, with(args, part...)...)
		if err != nil {
			return dropped, fmt.Errorf("leaseredis: trim topics: %w", err)
		}
		dropped += int(number(reply))
	}
	return dropped, nil
}

// touched is what this process has read since it trimmed last.
type touched struct {
	mu sync.Mutex
	reading
}

// reading is which topics were read, and which parts of views.
type reading struct {
	topics map[string]struct{}
	views  map[viewPart]struct{}
}

// viewPart is one stream of a view.
type viewPart struct {
	tag                int
	consumer, resource string
}

func (t *touched) add(consumer string, source *StreamSource, per backend.Per, fetched []backend.Fetched) {
	if source != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.topics == nil {
		t.reading = reading{map[string]struct{}{}, map[viewPart]struct{}{}}
	}
	for i := range fetched {
		topic, part := "", viewPart{tag: -1}
		for j := range fetched[i].Messages {
			m := &fetched[i].Messages[j]
			if m.Topic != topic {
				topic = m.Topic
				t.topics[topic] = struct{}{}
			}
			if per == backend.PerTopic {
				continue
			}
			if tag, err := strconv.Atoi(m.ID[strings.LastIndexByte(m.ID, '-')+1:]); err == nil && tag != part.tag {
				part = viewPart{tag, consumer, fetched[i].Resource}
				t.views[part] = struct{}{}
			}
		}
	}
}

func (t *touched) drain() reading {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.reading
	t.reading = reading{}
	return r
}

// trimTouched trims what this process reads, until ctx ends: between two rounds of
// housekeeping too much would pile up. That it fails is left to these to report.
func (tr *trimmer) trimTouched(ctx context.Context) {
	ticker := time.NewTicker(trimEvery)
	defer ticker.Stop()
	var older reading // before the last tick: progress is stored a little later
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := tr.touched.drain()
		if len(now.topics)+len(older.topics) > 0 {
			err := tr.trimOf(ctx, reading{union(now.topics, older.topics), union(now.views, older.views)})
			if err != nil && ctx.Err() == nil {
				tr.log.Debug("leaseredis: trimming failed, it is tried again", "error", err)
			}
		}
		older = now
	}
}

func union[K comparable](a, b map[K]struct{}) map[K]struct{} {
	out := make(map[K]struct{}, len(a)+len(b))
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}

func (tr *trimmer) trimOf(ctx context.Context, r reading) error {
	sh, err := tr.shape(ctx)
	if err != nil {
		return err
	}
	topics := make([][]string, sh.tags)
	for t := range r.topics {
		tag := sh.tagOf(t)
		topics[tag] = append(topics[tag], t)
	}
	views := make([]map[string][]string, sh.tags)
	for v := range r.views {
		if v.tag < 0 || v.tag >= sh.tags {
			continue
		}
		if views[v.tag] == nil {
			views[v.tag] = map[string][]string{}
		}
		views[v.tag][v.consumer] = append(views[v.tag][v.consumer], v.resource)
	}
	var failed error
	for tag := range topics {
		failed = cmp.Or(failed, tr.trimTag(ctx, sh, tag, topics[tag], views[tag]))
	}
	return failed
}

// trimTag trims what was read under a tag. Topics that a consumer with a view matches wait for
// housekeeping when too much of the view has not been passed to see how far that is.
func (tr *trimmer) trimTag(ctx context.Context, sh *shape, tag int, topics []string, views map[string][]string) error {
	for consumer, resources := range views {
		if _, _, err := tr.trimCopies(ctx, sh, tag, consumer, resources); err != nil {
			return err
		}
	}
	if len(topics) == 0 {
		return nil
	}
	readers, err := tr.readersOf(ctx, tag)
	if err != nil {
		return err
	}
	passed := map[string]int64{}
	for name, info := range readers {
		if viewed(info) == "" || !slices.ContainsFunc(topics, func(t string) bool { return backend.MatchTopic(info.Topics, t) }) {
			continue
		}
		left, err := tr.dirty(ctx, tag, name)
		if err != nil {
			return err
		}
		if left > trimKeys {
			continue
		}
		if passed[name], _, err = tr.trimView(ctx, sh, tag, name); err != nil {
			return err
		}
	}
	_, err = tr.trimTopics(ctx, tag, len(readers), passed, topics)
	return err
}
