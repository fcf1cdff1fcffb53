package leaseredis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
)

// catalog is what is known of consumers: in this process, and as it is stored. It finds their resources and where these are read up to.
type catalog struct {
	*streams
	running  sync.Map // name → backend.ConsumerInfo, of those this process works for
	attached sync.Map // name → attachment
	changes  changes
}

// attachment is a consumer that was attached by this process.
type attachment struct {
	sh     *shape
	record string
	start  cursor
}

// record is what is stored of a consumer.
type record struct {
	Per       string          `json:"per"`
	Topics    []string        `json:"topics,omitempty"`
	Lock      string          `json:"lock"`
	TTL       time.Duration   `json:"ttl"`
	Grace     time.Duration   `json:"grace"`
	From      string          `json:"from"`
	Announced bool            `json:"announced,omitempty"`
	OnceKeep  time.Duration   `json:"once_keep"`
	Keep      time.Duration   `json:"keep"`
	Max       int             `json:"max"`
	Source    json.RawMessage `json:"source,omitempty"`
}

func recordOf(info backend.ConsumerInfo) (string, error) {
	r := record{
		Per: info.Per.String(), Topics: info.Topics, Lock: info.Lock.String(), TTL: info.TTL, Grace: info.Grace,
		From: info.From.String(), Announced: info.Announced, OnceKeep: info.OnceKeep, Keep: info.Keep, Max: info.Max,
	}
	if s := sourceOf(info); s != nil {
		b, err := json.Marshal(s)
		if err != nil {
			return "", err
		}
		r.Source = b
	}
	b, err := json.Marshal(r)
	return string(b), err
}

// infoOf reads a record.
func infoOf(name, stored string) (backend.ConsumerInfo, error) {
	var r record
	if err := json.Unmarshal([]byte(stored), &r); err != nil {
		return backend.ConsumerInfo{}, fmt.Errorf("leaseredis: what is stored of consumer %q cannot be read: %w", name, err)
	}
	info := backend.ConsumerInfo{
		Name: name, Topics: r.Topics, TTL: r.TTL, Grace: r.Grace, Announced: r.Announced,
		OnceKeep: r.OnceKeep, Keep: r.Keep, Max: r.Max,
		Per:  wordOf(r.Per, backend.PerTopic, backend.PerGroup, backend.PerCluster, backend.PerPartition, backend.PerStream),
		Lock: wordOf(r.Lock, backend.LockSession, backend.LockAdvisory, backend.LockRow),
		From: wordOf(r.From, backend.FromBeginning, backend.FromNow),
	}
	if len(r.Source) > 0 {
		var s StreamSource
		if err := json.Unmarshal(r.Source, &s); err != nil {
			return backend.ConsumerInfo{}, fmt.Errorf("leaseredis: the source that is stored of consumer %q cannot be read: %w", name, err)
		}
		info.Source = s
	}
	return info, nil
}

// wordOf returns the value whose String is word, or the zero value.
func wordOf[T fmt.Stringer](word string, values ...T) (v T) {
	if i := slices.IndexFunc(values, func(v T) bool { return v.String() == word }); i >= 0 {
		v = values[i]
	}
	return v
}

// errUnknownConsumer: no process ever registered the consumer.
var errUnknownConsumer = errors.New("no such consumer has run")

// info returns what is known of a consumer: in this process, else what is stored. It returns
// errUnknownConsumer for one that was never registered.
func (cat *catalog) info(ctx context.Context, consumer string) (backend.ConsumerInfo, error) {
	if v, ok := cat.running.Load(consumer); ok {
		return v.(backend.ConsumerInfo), nil
	}
	sh, err := cat.shape(ctx)
	if err != nil {
		return backend.ConsumerInfo{}, err
	}
	key := cat.prefix(sh.tagOf(consumer)) + "consumers"
	stored, err := cat.hget(ctx, key+" of "+consumer, key, consumer)
	switch {
	case err != nil:
		return backend.ConsumerInfo{}, err
	case stored == "":
		return backend.ConsumerInfo{}, fmt.Errorf("leaseredis: consumer %q: %w", consumer, errUnknownConsumer)
	}
	return infoOf(consumer, stored)
}

// viewed says how a consumer's messages are copied for it: the word for it, or empty when
// it reads topics, an application's streams or none.
func viewed(info backend.ConsumerInfo) string {
	if info.Source != nil || info.Announced {
		return ""
	}
	switch info.Per {
	case backend.PerGroup, backend.PerPartition, backend.PerStream:
		return info.Per.String()
	}
	return ""
}

// attach notes a consumer under every tag, creates its views and fills them with what the log
// holds. It returns where its resources begin. Calls that have no effect are free.
func (cat *catalog) attach(ctx context.Context, sh *shape, info backend.ConsumerInfo) (cursor, error) {
	if err := checkSource(info); err != nil {
		return "", err
	}
	cat.running.Store(info.Name, info) // for calls that tell its name only
	stored, err := recordOf(info)
	if err != nil {
		return "", fmt.Errorf("leaseredis: register consumer %q: %w", info.Name, err)
	}
	if v, ok := cat.attached.Load(info.Name); ok {
		if a := v.(attachment); a.sh == sh && a.record == stored {
			return a.start, nil
		}
	}
	start, err := cat.attachAll(ctx, sh, info, stored)
	if err != nil {
		return "", err
	}
	cat.attached.Store(info.Name, attachment{sh, stored, start})
	return start, nil
}

func (cat *catalog) attachAll(ctx context.Context, sh *shape, info backend.ConsumerInfo, stored string) (cursor, error) {
	source, from := "", ""
	if info.From == backend.FromNow {
		from = "now"
	}
	if s := sourceOf(info); s != nil {
		source = "streams"
		if from != "" {
			at, err := cat.present(ctx, s)
			if err != nil {
				return "", fmt.Errorf("leaseredis: register consumer %q: %w", info.Name, err)
			}
			from = string(at)
		}
	}
	patterns, err := json.Marshal(append([]string{}, info.Topics...))
	if err != nil {
		return "", fmt.Errorf("leaseredis: register consumer %q: %w", info.Name, err)
	}
	steps := same(sh.all(), scripts.attach, info.Name, stored, info.Per.String(), source, viewed(info), string(patterns), from)
	starts := make([]position, sh.tags)
	var start cursor
	for tag, a := range cat.runAll(ctx, steps) {
		switch {
		case a.err != nil && strings.Contains(a.err.Error(), otherKind):
			_, was, _ := strings.Cut(a.err.Error(), otherKind+" ")
			return "", errOtherKind(info, was)
		case a.err != nil:
			return "", a.err
		}
		reply := list(a.value)
		if len(reply) != 2 {
			return "", fmt.Errorf("leaseredis: register consumer %q: the server answered with %d values", info.Name, len(reply))
		}
		if source != "" {
			start = cursor(text(reply[0]))
			continue
		}
		starts[tag] = parsePosition(text(reply[0]))
		if building := text(reply[1]); building != "" {
			if err := cat.backfill(ctx, sh, tag, info, building); err != nil {
				return "", fmt.Errorf("leaseredis: register consumer %q: copy what topics hold: %w", info.Name, err)
			}
		}
	}
	if source == "" {
		start = ofTags(starts)
	}
	return start, nil
}

// ofTags is the cursor for positions under all tags.
func ofTags(at []position) cursor {
	if !slices.ContainsFunc(at, func(p position) bool { return p != position{} }) {
		return ""
	}
	all := make([]input, len(at))
	for tag := range all {
		all[tag].tag = tag
	}
	return cursorAt(all, at)
}

// startOf reads where a consumer's resources begin.
func (cat *catalog) startOf(ctx context.Context, sh *shape, consumer string) (cursor, error) {
	stored, err := askTags(ctx, cat.shards, sh.tags, "starts of "+consumer, func(pipe redis.Pipeliner, prefix string) *redis.StringCmd {
		return pipe.HGet(ctx, prefix+"starts", consumer)
	})
	if err != nil {
		return "", err
	}
	starts := make([]position, sh.tags)
	for tag, start := range stored {
		if strings.HasPrefix(start, "{") {
			return cursor(start), nil // of an application's streams
		}
		starts[tag] = parsePosition(start)
	}
	return ofTags(starts), nil
}

// otherKind is the word with which a consumer is refused that was registered as another kind.
const otherKind = "LEASEKIND"

// discover returns the resources that a consumer's source holds: topics that match, streams
// with unread messages that are not wanted yet, the streams of an application.
func (cat *catalog) discover(ctx context.Context, sh *shape, info backend.ConsumerInfo) ([]string, error) {
	if s := sourceOf(info); s != nil {
		if info.Per == backend.PerTopic {
			return slices.Clone(s.Names), nil
		}
		return []string{backend.Whole}, nil
	}
	switch info.Per {
	case backend.PerTopic:
		return cat.scores(ctx, sh, info.Name, "topics", func(topic string) bool { return backend.MatchTopic(info.Topics, topic) })
	case backend.PerPartition:
		out := make([]string, sh.slots)
		for i := range out {
			out[i] = strconv.Itoa(i)
		}
		return out, nil
	case backend.PerStream:
		if info.Announced {
			return nil, nil
		}
		// Those that are wanted are registered; held ones are among them, and no process has to look at these.
		wanted := map[string]bool{}
		for tag := range sh.tags {
			names, err := cat.members(ctx, cat.prefix(tag)+"want:"+info.Name)
			if err != nil {
				return nil, err
			}
			for _, n := range names {
				wanted[n] = true
			}
		}
		keys, err := cat.scores(ctx, sh, info.Name, "dirty:"+info.Name, func(stream string) bool { return !wanted[stream] })
		if err != nil {
			return nil, err
		}
		at, err := cat.cursors(ctx, sh, info.Name, keys)
		if err != nil {
			return nil, err
		}
		unread, err := cat.unread(ctx, sh, info, at)
		if err != nil {
			return nil, err
		}
		return slices.DeleteFunc(keys, func(k string) bool { return !unread[k] }), nil
	}
	return []string{backend.Whole}, nil
}

const scoresPage = 1000

// scores lists the members of a sorted set of that name under all tags in the consumer's reach, each once.
func (cat *catalog) scores(ctx context.Context, sh *shape, consumer, name string, keep func(string) bool) ([]string, error) {
	var all []string
	for _, tag := range cat.reach(sh, consumer) {
		for page, err := range cat.pages(ctx, cat.prefix(tag)+name, "-inf") {
			if err != nil {
				return nil, err
			}
			all = append(all, slices.DeleteFunc(page, func(m string) bool { return !keep(m) })...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// cursors reads the stored cursors of resources. Those that are not known are where the consumer begins.
func (cat *catalog) cursors(ctx context.Context, sh *shape, consumer string, resources []string) (map[string]cursor, error) {
	at := make(map[string]cursor, len(resources))
	for page := range slices.Chunk(resources, scoresPage) {
		stored, err := askEach(ctx, cat.shards, len(page),
			func(pipe redis.Pipeliner, i int) *redis.StringCmd {
				return pipe.HGet(ctx, cat.prefix(sh.leaseTag(consumer, page[i]))+"l:"+consumer+":"+page[i], "c")
			},
			func(i int) string { return "leaseredis: read the cursor of " + consumer + "/" + page[i] })
		if err != nil {
			return nil, err
		}
		for i, r := range page {
			at[r] = cursor(stored[i])
		}
	}
	return at, nil
}

// warnEvery is how often the same warning is logged at most.
const warnEvery = time.Minute

// warn logs what others do to the keys, or what goes on for long, not more than once a minute each.
func (d *shards) warn(about, message string, args ...any) {
	now := time.Now()
	if v, ok := d.warned.Load(about); ok && now.Sub(v.(time.Time)) < warnEvery {
		return
	}
	n := 0
	d.warned.Range(func(k, v any) bool {
		if n++; now.Sub(v.(time.Time)) >= warnEvery || n > 1000 {
			d.warned.Delete(k)
		}
		return true
	})
	d.warned.Store(about, now)
	d.log.Warn("leaseredis: "+message, args...)
}
