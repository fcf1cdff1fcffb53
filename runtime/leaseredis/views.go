package leaseredis

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// A consumer that does not read by topic has a view: a stream of copies for each of its
// resources, under each tag. Publishers write to it, once it is live. Before that, what
// topics hold is copied in the order of ids: a stream takes no smaller id than it has.

const (
	fillMessages = 1000   // in one script call
	fillBudget   = 50_000 // entries in store for all topics together
	fillRounds   = 3      // after which publishers wait until it is done
	fillHold     = time.Second
)

// fill is the filling of one view under one tag.
type fill struct {
	cat    *catalog
	sh     *shape
	tag    int
	info   backend.ConsumerInfo
	at     position
	end    position // what is behind it is left to the next one
	hold   int64    // µs for which publishers wait
	topics map[string]*filling
}

// filling is what was read of one topic and not yet copied.
type filling struct {
	entries []copied
	last    position // read so far
	more    bool     // the topic may hold more
}

// copied is a message to copy.
type copied struct {
	topic, resource string
	at              position
}

// backfill copies what topics of a tag hold into a consumer's view, and makes it live.
// Replicas may do so at once: each step takes only what the steps before have left. It takes
// what there was up to a moment, then what has come in between, until that is so little that
// one script copies it and makes the view live.
func (cat *catalog) backfill(ctx context.Context, sh *shape, tag int, info backend.ConsumerInfo, at string) error {
	for round := 0; at != ""; round++ {
		patterns, err := cat.viewPatterns(ctx, tag, info.Name)
		if err != nil {
			return err
		}
		f := &fill{cat: cat, sh: sh, tag: tag, info: info, at: parsePosition(at), topics: map[string]*filling{}}
		if round >= fillRounds { // more comes than is copied
			f.hold = fillHold.Microseconds()
		}
		// No id up to this one is given any more.
		if f.end, err = cat.lastID(ctx, tag); err != nil {
			return err
		}
		for topics, err := range cat.pages(ctx, cat.prefix(tag)+"topics", "("+f.at.String()) {
			if err != nil {
				return err
			}
			for _, topic := range topics {
				if backend.MatchTopic(patterns, topic) {
					f.topics[topic] = &filling{last: f.at, more: true}
				}
			}
		}
		if at, err = f.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// viewPatterns are the patterns of a view: those of all versions of its consumer.
func (cat *catalog) viewPatterns(ctx context.Context, tag int, consumer string) ([]string, error) {
	key := cat.prefix(tag) + "views"
	stored, err := cat.hget(ctx, key, key, consumer)
	if err != nil {
		return nil, err
	}
	var view struct {
		P [][]string `json:"p"`
	}
	if err := json.Unmarshal([]byte(stored), &view); err != nil {
		return nil, fmt.Errorf("what is stored of the view cannot be read: %w", err)
	}
	patterns := make([]string, len(view.P))
	for i, parts := range view.P {
		patterns[i] = strings.Join(parts, "*")
	}
	return patterns, nil
}

// run copies all that was there when the topics were listed, and asks then whether that is
// all. It returns how far the view is filled; empty when it is live.
func (f *fill) run(ctx context.Context) (string, error) {
	for len(f.topics) > 0 {
		if err := f.read(ctx); err != nil {
			return "", err
		}
		at, err := f.copy(ctx, f.inOrder())
		if err != nil || at == "" {
			return at, err
		}
		for topic, t := range f.topics {
			if len(t.entries) == 0 && !t.more {
				delete(f.topics, topic)
			}
		}
	}
	upto := max(f.at.ms, f.end.ms)
	reply, err := f.cat.run(ctx, f.tag, scripts.build, f.info.Name, upto, f.hold)
	return text(reply), err
}

// read reads on in the topics of which no message is in store.
func (f *fill) read(ctx context.Context) error {
	var empty []string
	for topic, t := range f.topics {
		if len(t.entries) == 0 && t.more {
			empty = append(empty, topic)
		}
	}
	count := min(max(fillBudget/len(f.topics), 8), 1000)
	for page := range slices.Chunk(empty, 500) {
		reads := make([]*read, len(page))
		for i, topic := range page {
			reads[i] = &read{key: f.cat.topicKey(f.tag, topic), after: f.topics[topic].last, count: count}
		}
		if err := f.cat.readAll(ctx, reads); err != nil {
			return err
		}
		for i, topic := range page {
			if reads[i].err != nil {
				return fmt.Errorf("topic %q: %w", topic, reads[i].err)
			}
			t := f.topics[topic]
			t.more = len(reads[i].entries) == count
			for j := range reads[i].entries {
				e := &reads[i].entries[j]
				if e.at.ms > f.end.ms {
					t.more = false
					break
				}
				t.entries = append(t.entries, copied{topic, f.resource(e), e.at})
				t.last = e.at
			}
		}
	}
	return nil
}

// resource is the one that a message belongs to.
func (f *fill) resource(e *entry) string {
	key := ""
	for name, value := range e.fields {
		if string(name) == fieldKey {
			key = string(value)
		}
	}
	switch f.info.Per {
	case backend.PerStream:
		return key
	case backend.PerPartition:
		if key == "" {
			return strconv.FormatUint(e.at.ms%uint64(f.sh.slots), 10)
		}
		return strconv.Itoa(f.sh.slotOf(key))
	}
	return backend.Whole
}

// inOrder takes what can be copied in order: up to where each topic has been read.
func (f *fill) inOrder() (out []copied) {
	horizon, bounded := position{}, false
	for _, t := range f.topics {
		if t.more && (!bounded || t.last.compare(horizon) < 0) {
			horizon, bounded = t.last, true
		}
	}
	for _, t := range f.topics {
		n := len(t.entries)
		if bounded {
			n, _ = slices.BinarySearchFunc(t.entries, horizon, func(c copied, p position) int {
				return cmp.Or(c.at.compare(p), -1) // those at the horizon too
			})
		}
		out = append(out, t.entries[:n]...)
		t.entries = t.entries[n:]
	}
	slices.SortFunc(out, func(a, b copied) int { return a.at.compare(b.at) })
	return out
}

// copy writes messages to the view, and returns how far it is filled then; empty when
// it is live.
func (f *fill) copy(ctx context.Context, messages []copied) (string, error) {
	at := f.at.String()
	for len(messages) > 0 {
		n := min(len(messages), fillMessages)
		for n < len(messages) && messages[n].at.ms == messages[n-1].at.ms {
			n++ // entries that somebody else wrote: a step takes what is above the one before
		}
		args := make([]any, 0, 3+3*n)
		args = append(args, f.info.Name, messages[n-1].at.ms, f.hold)
		for _, m := range messages[:n] {
			args = append(args, m.topic, m.at.id(), m.resource)
		}
		reply, err := f.cat.run(ctx, f.tag, scripts.build, args...)
		if err != nil {
			return "", err
		}
		if at = text(reply); at == "" {
			return "", nil
		}
		f.at = parsePosition(at)
		messages = messages[n:]
	}
	return at, nil
}
