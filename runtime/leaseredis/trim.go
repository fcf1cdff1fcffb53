package leaseredis

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/lease"
)

// A topic's message is kept until all consumers that match the topic have passed it; one that
// nobody matches waits for who does. A view's message is kept until its consumer has passed it.
// Cursors only grow, so what was passed when they were read is passed; a consumer that
// registers meanwhile is seen by the script that trims.

const (
	trimTopics = 100 // in one script call
	trimViews  = 300
	trimEvery  = time.Second // what this process reads
	trimKeys   = 2000        // resources of a view up to which that is worth it
)

// trim drops what all consumers have passed, and returns how many entries. Streams that have
// been empty for a minute leave nothing behind.
func (b *Backend) trim(ctx context.Context, sh *shape, _ []lease.ConsumerInfo) (int, error) {
	total := 0
	for tag := range sh.tags {
		readers, err := b.readersOf(ctx, tag)
		if err != nil {
			return total, err
		}
		passed := map[string]int64{}
		for name, info := range readers {
			if viewed(info) == "" {
				continue
			}
			upto, n, err := b.trimView(ctx, sh, tag, name)
			if total += n; err != nil {
				return total, err
			}
			passed[name] = upto
		}
		err = b.pages(ctx, b.prefix(tag)+"topics", "-inf", func(page []redis.Z) error {
			topics := make([]string, len(page))
			for i, z := range page {
				topics[i] = z.Member.(string)
			}
			n, err := b.trimTopics(ctx, tag, passed, topics)
			total += n
			return err
		})
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// readersOf returns the consumers that are known under a tag.
func (b *Backend) readersOf(ctx context.Context, tag int) (map[string]lease.ConsumerInfo, error) {
	key := b.prefix(tag) + "consumers"
	stored, err := within(ctx, func(ctx context.Context) (map[string]string, error) { return b.client.HGetAll(ctx, key).Result() })
	if err != nil {
		b.look(err)
		return nil, fmt.Errorf("leaseredis: read %s: %w", key, err)
	}
	out := make(map[string]lease.ConsumerInfo, len(stored))
	for name, s := range stored {
		info, err := infoOf(name, s)
		if err != nil {
			return nil, err
		}
		out[name] = info
	}
	return out, nil
}

// lastID is the id of the last message of a tag.
func (b *Backend) lastID(ctx context.Context, tag int) (position, error) {
	last, err := within(ctx, func(ctx context.Context) (string, error) {
		return b.client.HGet(ctx, b.prefix(tag)+"meta", "last").Result()
	})
	if err != nil && err != redis.Nil {
		b.look(err)
		return position{}, fmt.Errorf("leaseredis: read the last id of %s: %w", b.prefix(tag), err)
	}
	return parsePosition(last), nil
}

// trimView trims the streams of a consumer's view under a tag. It returns the id up to which
// the consumer has passed all that is copied there, and how many entries were dropped.
func (b *Backend) trimView(ctx context.Context, sh *shape, tag int, consumer string) (upto int64, dropped int, err error) {
	last, err := b.lastID(ctx, tag)
	if err != nil {
		return 0, 0, err
	}
	upto = int64(last.ms)
	err = b.pages(ctx, b.prefix(tag)+"dirty:"+consumer, "-inf", func(page []redis.Z) error {
		resources := make([]string, len(page))
		for i, z := range page {
			resources[i] = z.Member.(string)
		}
		at, err := b.cursors(ctx, sh, consumer, resources)
		if err != nil {
			return err
		}
		for part := range slices.Chunk(resources, trimViews) {
			args := []any{consumer}
			for _, r := range part {
				in := []input{{tag: tag}}
				min := ""
				if p := at[r].positions(in)[0]; p != (position{}) {
					p.seq++
					min = p.id()
				}
				args = append(args, r, min)
			}
			reply, err := b.run(ctx, tag, scripts.trimviews, args...)
			if err != nil {
				return fmt.Errorf("leaseredis: trim what was copied for %s: %w", consumer, err)
			}
			ns := ints(reply)
			if len(ns) != 2 {
				return fmt.Errorf("leaseredis: trim what was copied for %s: the server answered with %d values", consumer, len(ns))
			}
			dropped += int(ns[0])
			if ns[1] > 0 {
				upto = min(upto, ns[1]-1)
			}
		}
		return nil
	})
	return upto, dropped, err
}

// trimTopics trims topics of a tag, given how far the consumers with views have got.
func (b *Backend) trimTopics(ctx context.Context, tag int, passed map[string]int64, topics []string) (dropped int, err error) {
	for part := range slices.Chunk(topics, trimTopics) {
		args := []any{tag, len(passed)}
		for name, upto := range passed {
			args = append(args, name, upto)
		}
		for _, t := range part {
			args = append(args, t)
		}
		reply, err := b.run(ctx, tag, scripts.trimtopics, args...)
		if err != nil {
			return dropped, fmt.Errorf("leaseredis: trim topics: %w", err)
		}
		dropped += int(number(reply))
	}
	return dropped, nil
}

// touched is what this process has read since it trimmed last.
type touched struct {
	mu        sync.Mutex
	topics    map[string]struct{}
	consumers map[string]struct{} // with views
}

func (t *touched) add(consumer string, source *StreamSource, per lease.Per, fetched []lease.Fetched) {
	if source != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.topics == nil {
		t.topics, t.consumers = map[string]struct{}{}, map[string]struct{}{}
	}
	last := ""
	for i := range fetched {
		ms := fetched[i].Messages
		if len(ms) > 0 && per != lease.PerTopic {
			t.consumers[consumer] = struct{}{}
		}
		for j := range ms {
			if topic := ms[j].Topic; topic != last {
				t.topics[topic] = struct{}{}
				last = topic
			}
		}
	}
}

func (t *touched) take() (topics, consumers map[string]struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	topics, consumers = t.topics, t.consumers
	t.topics, t.consumers = nil, nil
	return topics, consumers
}

// trimTouched trims what this process reads, until ctx ends: between two rounds of
// housekeeping too much would pile up. That it fails is left to these to report.
func (b *Backend) trimTouched(ctx context.Context) {
	ticker := time.NewTicker(trimEvery)
	defer ticker.Stop()
	var older [2]map[string]struct{} // read before the last tick: progress is stored a little later
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		topics, consumers := b.known.touched.take()
		if len(topics)+len(older[0]) > 0 {
			err := b.trimOf(ctx, union(topics, older[0]), union(consumers, older[1]))
			if err != nil && ctx.Err() == nil {
				b.log.Debug("leaseredis: trimming failed, it is tried again", "error", err)
			}
		}
		older = [2]map[string]struct{}{topics, consumers}
	}
}

func union(a, b map[string]struct{}) map[string]struct{} {
	out := make(map[string]struct{}, len(a)+len(b))
	for _, m := range []map[string]struct{}{a, b} {
		for k := range m {
			out[k] = struct{}{}
		}
	}
	return out
}

func (b *Backend) trimOf(ctx context.Context, topics, consumers map[string]struct{}) error {
	sh, err := b.shape(ctx)
	if err != nil {
		return err
	}
	byTag := make([][]string, sh.tags)
	for t := range topics {
		tag := sh.tagOf(t)
		byTag[tag] = append(byTag[tag], t)
	}
	var failed error
	for tag, topics := range byTag {
		if len(topics) == 0 {
			continue
		}
		failed = cmp.Or(failed, b.trimTag(ctx, sh, tag, topics, consumers))
	}
	return failed
}

func (b *Backend) trimTag(ctx context.Context, sh *shape, tag int, topics []string, consumers map[string]struct{}) error {
	passed := map[string]int64{}
	if len(consumers) > 0 { // what others have not passed of these topics is not known, and so not trimmed
		for name := range consumers {
			size, err := within(ctx, func(ctx context.Context) (int64, error) {
				return b.client.ZCard(ctx, b.prefix(tag)+"dirty:"+name).Result()
			})
			if err != nil || size > trimKeys {
				return err
			}
			if passed[name], _, err = b.trimView(ctx, sh, tag, name); err != nil {
				return err
			}
		}
	}
	_, err := b.trimTopics(ctx, tag, passed, topics)
	return err
}
