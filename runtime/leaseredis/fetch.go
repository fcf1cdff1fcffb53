package leaseredis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
)

// reader reads messages and watches for news of them.
type reader struct {
	*catalog
	trimmer *trimmer
	sizes   sync.Map // consumer → *sizes
	missed  missed
}

// Fetch reads the next messages of each item, all in one round trip to each node. A resource
// whose messages come from several tags gets them in the order of their ids, as far as no
// message with a smaller id can still be added anywhere.
func (r *reader) Fetch(ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
	sh, err := r.shape(ctx)
	if err != nil {
		return nil, fmt.Errorf("leaseredis: fetch for %s: %w", req.Consumer.Name, err)
	}
	f := &fetch{r: r, sh: sh, info: req.Consumer, maxPayload: req.MaxPayload, naming: logNaming, texts: interned{}}
	if f.source = sourceOf(req.Consumer); f.source != nil {
		f.naming = f.source.naming()
	}
	out, err := f.run(ctx, req.Items)
	if err != nil {
		return nil, fmt.Errorf("leaseredis: fetch for %s: %w", req.Consumer.Name, err)
	}
	return out, nil
}

// fetch is one call of Fetch.
type fetch struct {
	r          *reader
	sh         *shape
	info       backend.ConsumerInfo
	source     *StreamSource
	naming     naming
	texts      interned
	maxPayload int
	bound      position // of the present round, see fetchedItem
}

// fetchedItem is one item and what was read for it.
type fetchedItem struct {
	backend.FetchItem
	from  cursor
	ins   []input
	at    []position // the cursor's
	reads []*read    // one for each input, with all that the rounds have read
	now   []*read    // those of the present round; nil where no read is left
	begun bool
	bound position // messages from here on may still be preceded by others; zero: none
}

// add adds what a round has read.
func (it *fetchedItem) add() {
	it.begun = true
	for n, now := range it.now {
		if now == nil {
			continue
		}
		r := it.reads[n]
		r.begun = true
		if r.err = now.err; r.entries == nil {
			r.entries = now.entries
		} else {
			r.entries = append(r.entries, now.entries...)
		}
		r.cut = now.err == nil && len(now.entries) == now.count
		if len(now.entries) > 0 {
			r.after = now.entries[len(now.entries)-1].at
		}
	}
}

// left is how many entries a round may still read of an input; 0 when there are no more, or enough were read.
func (it *fetchedItem) left(n int) int {
	if r := it.reads[n]; !r.begun || r.cut {
		return max(it.Limit+1-len(r.entries), 0)
	}
	return 0
}

// divisible reports that its inputs need not be read together: they are streams of applications, which may be very
// many. Those that a Fetch has no room for come with the next.
func (it *fetchedItem) divisible() bool { return len(it.ins) > 1 && it.ins[0].shared }

func (it *fetchedItem) over() bool {
	for n := range it.reads {
		if it.left(n) > 0 {
			return false
		}
	}
	return true
}

// run reads in rounds, each as much as the earlier ones let expect to be little enough. Items that are not reached are
// answered without messages, with the word that there are more.
func (f *fetch) run(ctx context.Context, asked []backend.FetchItem) ([]backend.Fetched, error) {
	items := make([]fetchedItem, len(asked))
	for i, item := range asked {
		from, ok := item.From.(cursor)
		if !ok && item.From != nil {
			return nil, fmt.Errorf("the cursor of %q is a %T of another backend", item.Resource, item.From)
		}
		it := fetchedItem{FetchItem: item, from: from, ins: f.r.inputsOf(f.sh, f.info, item.Resource)}
		it.at = from.positions(it.ins)
		if f.source == nil {
			f.r.distrust(item.Resource, it.at)
		} else {
			f.beginsAgain(&it)
		}
		for n, in := range it.ins {
			it.reads = append(it.reads, &read{key: in.key, after: it.at[n]})
		}
		items[i] = it
	}
	sizes := f.r.sizesOf(f.info.Name)
	r := sizes.ration()
	pending := make([]*fetchedItem, len(items))
	for i := range items {
		pending[i] = &items[i]
	}
	for len(pending) > 0 {
		n := r.plan(pending, sizes)
		if n == 0 {
			break
		}
		if err := f.round(ctx, pending[:n]); err != nil {
			return nil, err
		}
		r.spent(pending[:n], sizes)
		again := slices.DeleteFunc(slices.Clone(pending[:n]), (*fetchedItem).over)
		pending = append(pending[n:], again...)
	}
	out := make([]backend.Fetched, len(items))
	for i := range items {
		it := &items[i]
		if !it.begun { // there was no room for it
			out[i] = backend.Fetched{Resource: it.Resource, Next: it.From, More: true, Cut: func(int) backend.Cursor { return it.From }}
			continue
		}
		if err := f.settle(ctx, it); err != nil {
			return nil, err
		}
		out[i] = f.merge(it)
	}
	f.r.trimmer.touched.add(f.info.Name, f.source, f.info.Per, out)
	return out, nil
}

// round reads items in one round trip.
func (f *fetch) round(ctx context.Context, items []*fetchedItem) error {
	var reads []*read
	for _, it := range items {
		for _, r := range it.now {
			if r != nil {
				reads = append(reads, r)
			}
		}
	}
	f.bound = position{}
	if err := f.read(ctx, items, reads); err != nil {
		return err
	}
	for _, it := range items {
		if !it.begun {
			it.bound = f.bound // what comes later may lie before what other inputs had by then
		}
		it.add()
	}
	return nil
}

// read carries the reads out. When a resource has several inputs, each tag is asked before
// for the least id that it can still give.
func (f *fetch) read(ctx context.Context, items []*fetchedItem, reads []*read) error {
	if f.source == nil && f.info.Per == backend.PerTopic && f.r.clustered() {
		return f.readByTag(ctx, items)
	}
	if f.source != nil || f.sh.tags == 1 || viewed(f.info) == "" {
		return f.r.readAll(ctx, reads)
	}
	clocks := make([]*redis.Cmd, f.sh.tags)
	seen := f.r.seen.Load()
	err := f.r.readAfter(ctx, func(pipe redis.Pipeliner) {
		for tag := range clocks {
			clocks[tag] = pipe.EvalSha(ctx, scripts.clock.sha, f.r.keys(tag), seen)
		}
	}, reads)
	if err != nil {
		return err
	}
	for tag, c := range clocks {
		v, err := c.Result()
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			if _, err = f.r.run(ctx, tag, scripts.clock, seen); err == nil {
				return f.read(ctx, items, reads) // the entries have no meaning without it
			}
		}
		if err = failure(err); err != nil {
			if errors.Is(err, errShape) {
				f.r.forgetShape()
			}
			return err
		}
		if at := (position{ms: uint64(number(v))}); tag == 0 || at.compare(f.bound) < 0 {
			f.bound = at
		}
	}
	return nil
}

// slowTag is how much longer a tag may take to be read than the first of them.
const slowTag = time.Second

// errSlowTag: a node hangs while others answer.
var errSlowTag = errors.New("its node does not answer")

// readByTag reads topics tag by tag at once, so that a node that hangs holds up only what is there.
func (f *fetch) readByTag(ctx context.Context, items []*fetchedItem) error {
	byTag := map[int][]*fetchedItem{}
	for _, it := range items {
		if it.now[0] != nil {
			byTag[it.ins[0].tag] = append(byTag[it.ins[0].tag], it)
		}
	}
	type answer struct {
		tag   int
		reads []*read
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, len(byTag))
	for tag, its := range byTag {
		a := answer{tag: tag}
		for _, it := range its {
			r := it.now[0]
			a.reads = append(a.reads, &read{key: r.key, after: r.after, count: r.count})
			it.now[0] = &read{key: r.key, err: errSlowTag} // until it is answered
		}
		go func() {
			if err := f.r.readAll(ctx, a.reads); err != nil {
				failed := make([]*read, len(a.reads)) // the others may still be written to
				for i, r := range a.reads {
					failed[i] = &read{key: r.key, err: err}
				}
				a.reads = failed
			}
			answers <- a
		}()
	}
	var late <-chan time.Time
	for range len(byTag) {
		select {
		case a := <-answers:
			for i, it := range byTag[a.tag] {
				it.now[0] = a.reads[i]
			}
			if late == nil {
				t := time.NewTimer(slowTag)
				defer t.Stop()
				late = t.C
			}
		case <-late:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// settle decides what becomes of reads that failed, and of a stream that begins again.
func (f *fetch) settle(ctx context.Context, it *fetchedItem) error {
	for n, r := range it.reads {
		switch {
		case r.err == nil:
		case redis.HasErrorPrefix(r.err, "WRONGTYPE"):
			f.r.warn("type "+r.key, "a key that is to be a stream holds something else; its messages wait until it is renamed or deleted",
				"consumer", f.info.Name, "resource", it.Resource, "key", r.key)
			r.err = nil
		case f.info.Per == backend.PerTopic && f.r.clustered():
			// Other topics may be on nodes that work. The feed names this one again.
			f.r.missed.add(f.info.Name, it.Resource)
			f.r.warn("read "+f.info.Name, "a topic cannot be read, trying again", "consumer", f.info.Name, "resource", it.Resource, "error", r.err)
			r.err = nil
		default:
			return r.err
		}
		if f.source == nil {
			if err := f.leaveOut(ctx, it, n); err != nil {
				return err
			}
			continue
		}
		if r.begun && len(r.entries) == 0 && it.at[n] != (position{}) {
			if err := f.beginAgain(ctx, it, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// adoptBytes is how much one script call takes out of a stream.
const adoptBytes = 1 << 20

// leaveOut has entries adopted whose ids no clock gave, see lib_log.lua: with one of them as its
// position, a consumer would pass over all that is published later. They come again with other ids.
func (f *fetch) leaveOut(ctx context.Context, it *fetchedItem, n int) error {
	r, far := it.reads[n], farAhead()
	i := slices.IndexFunc(r.entries, func(e entry) bool { return e.at.compare(far) >= 0 })
	if i < 0 {
		return nil
	}
	args := []any{it.Resource, "", "", adoptBytes}
	if f.info.Per != backend.PerTopic {
		args = []any{"", f.info.Name, it.Resource, adoptBytes}
	}
	reply, err := f.r.run(ctx, it.ins[n].tag, scripts.adopt, args...)
	ns := ints(reply)
	if err != nil || len(ns) != 2 {
		return unexpected(answer{reply, err})
	}
	far = position{ms: uint64(ns[0])}
	if i = slices.IndexFunc(r.entries, func(e entry) bool { return e.at.compare(far) >= 0 }); i < 0 {
		return nil // it is this process's clock that is behind
	}
	r.entries, r.cut = r.entries[:i], false
	f.r.warn("adopt "+r.key, "another program wrote entries with ids far ahead of the clock; they are taken out and come again with others",
		"consumer", f.info.Name, "key", r.key)
	return nil
}

// distrust begins again where a position in the log is one that no clock can have given: messages would be
// passed over. Passed entries are trimmed, so that little comes twice.
func (r *reader) distrust(resource string, at []position) {
	for i, p := range at {
		if p.ms > never {
			r.warn("position "+resource, "a position lies centuries ahead of the clock; what the log holds is read from its beginning",
				"resource", resource, "position", p.String())
			at[i] = position{}
		}
	}
}

// beginsAgain sets positions back in streams that were found to be others than those that were read.
func (f *fetch) beginsAgain(it *fetchedItem) {
	for n, in := range it.ins {
		if it.at[n] != (position{}) && f.r.reads.begins(f.info.Name, in.name) {
			f.r.warn("again "+f.info.Name+" "+in.key, "a stream was deleted and made again; it is read from its beginning",
				"consumer", f.info.Name, "stream", in.key, "cursor", it.at[n].id())
			it.at[n] = position{}
		}
	}
}

// beginAgain reads an application's stream from its beginning when it was deleted and made
// anew with smaller ids, or these were set back: its entries would be passed over.
func (f *fetch) beginAgain(ctx context.Context, it *fetchedItem, n int) error {
	r := it.reads[n]
	infos, _, err := f.r.describe(ctx, -1, []string{r.key})
	if err != nil || !infos[0].there || infos[0].last.compare(it.at[n]) >= 0 {
		return err
	}
	again := &read{key: r.key, count: min(it.Limit+1, fetchLeast)}
	if err := f.r.readAll(ctx, []*read{again}); err != nil || again.err != nil {
		return errors.Join(err, again.err)
	}
	if len(again.entries) == 0 {
		return nil
	}
	again.cut = len(again.entries) == again.count
	f.r.warn("again "+f.info.Name+" "+r.key, "a stream was deleted and has begun again with smaller ids; it is read from its beginning",
		"consumer", f.info.Name, "stream", r.key, "cursor", it.at[n].id(), "last", infos[0].last.id())
	it.at = slices.Clone(it.at)
	it.at[n] = position{}
	it.reads[n] = again
	return nil
}

// merged is one message and where it was read.
type merged struct {
	input int
	e     *entry
}

// merge makes one answer of what was read from the inputs of a resource.
func (f *fetch) merge(it *fetchedItem) backend.Fetched {
	out := backend.Fetched{Resource: it.Resource, Next: it.From}
	all, more := f.ordered(it)
	if len(all) > it.Limit {
		all, more = all[:it.Limit], true
	}
	at := slices.Clone(it.at)
	out.Messages = make([]backend.Raw, len(all))
	for i, m := range all {
		in := it.ins[m.input]
		topic := in.name
		if f.info.Per == backend.PerTopic {
			topic = it.Resource
		}
		out.Messages[i] = m.e.raw(f.naming, in, topic, f.texts, f.maxPayload)
		at[m.input] = m.e.at
	}
	if len(all) > 0 {
		out.Next = it.from.moved(it.ins, at)
	}
	if f.source != nil {
		n := make([]int64, len(it.ins))
		for _, m := range all {
			n[m.input]++
		}
		for i, in := range it.ins {
			f.r.reads.moved(f.info.Name, in.name, it.at[i], at[i], n[i])
		}
	}
	out.More = more
	from, next := it.From, out.Next
	out.Cut = func(n int) backend.Cursor {
		switch n {
		case 0:
			return from
		case len(all):
			return next
		}
		at := slices.Clone(it.at)
		for _, m := range all[:n] {
			at[m.input] = m.e.at
		}
		return it.from.moved(it.ins, at)
	}
	return out
}

// ordered returns the entries that can be delivered, in order, and whether there are others.
func (f *fetch) ordered(it *fetchedItem) (out []merged, more bool) {
	bound, bounded := it.bound, it.bound != position{}
	total := 0
	for _, r := range it.reads {
		total += len(r.entries)
		more = more || !r.begun
		if len(r.entries) == 0 {
			continue
		}
		last := r.entries[len(r.entries)-1].at
		more = more || r.cut && len(r.entries) <= it.Limit
		if bounded && !it.beyond(last) {
			f.r.saw(int64(last.ms)) // the other tags' ids rise above it
		}
		if len(it.ins) > 1 && r.cut {
			// Entries behind the last one read were not read.
			if after := (position{last.ms, last.seq + 1}); !bounded || after.compare(bound) < 0 {
				bound, bounded = after, true
			}
		}
	}
	out = make([]merged, 0, total)
	for n, r := range it.reads {
		for i := range r.entries {
			if bounded && r.entries[i].at.compare(bound) >= 0 {
				more = more || !it.beyond(r.entries[i].at)
				break
			}
			out = append(out, merged{n, &r.entries[i]})
		}
	}
	if len(it.ins) > 1 {
		slices.SortStableFunc(out, func(a, b merged) int { return a.e.at.compare(b.e.at) })
	}
	return out, more
}

// beyond reports that an id is so far ahead of the clocks that it was not leasegen that wrote
// it: the entry waits until they get there.
func (it *fetchedItem) beyond(at position) bool {
	return it.bound != position{} && at.ms > it.bound.ms+uint64(24*time.Hour/time.Microsecond)
}

// missed are topics that could not be read while others could.
type missed struct {
	mu     sync.Mutex
	topics map[string]map[string]time.Time // of each consumer, and when to name them again
}

const missedPause = 250 * time.Millisecond

func (m *missed) add(consumer, topic string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.topics[consumer] == nil {
		m.topics[consumer] = map[string]time.Time{}
	}
	m.topics[consumer][topic] = time.Now().Add(missedPause)
}

// due returns the topics of a consumer to be read again by now, and when to ask for the next; zero: never.
func (m *missed) due(consumer string, now time.Time) (due []string, next time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for topic, at := range m.topics[consumer] {
		switch {
		case !at.After(now):
			due = append(due, topic)
			delete(m.topics[consumer], topic)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	return due, next
}
