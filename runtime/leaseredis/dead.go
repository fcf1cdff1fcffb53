package leaseredis

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// deadPage is how many dead letters one script call looks at.
const deadPage = 200

// deadLetter is one, and where it is.
type deadLetter struct {
	operate.DeadLetterInfo
	number string
	tag    int
}

func (d *deadLetter) id() string { return d.number + "-" + strconv.Itoa(d.tag) }

// parseDeadID splits the id of a dead letter.
func parseDeadID(id string) (number string, tag int, ok bool) {
	number, rest, found := strings.Cut(id, "-")
	_, err := strconv.ParseUint(number, 10, 64)
	tag, err2 := strconv.Atoi(rest)
	return number, tag, found && err == nil && err2 == nil && tag >= 0
}

// DeadLetters lists dead letters, the oldest first.
func (o *operator) DeadLetters(ctx context.Context, f operate.DeadLetterFilter) ([]operate.DeadLetterInfo, error) {
	found, err := repeated(ctx, o.shards, "list dead letters", func() ([]deadLetter, error) { return o.deadLetters(ctx, f) })
	if err != nil {
		return nil, err
	}
	out := make([]operate.DeadLetterInfo, len(found))
	for i := range found {
		out[i] = found[i].DeadLetterInfo
	}
	return out, nil
}

// deadLetters returns what f selects, the oldest first.
func (o *operator) deadLetters(ctx context.Context, f operate.DeadLetterFilter) ([]deadLetter, error) {
	sh, err := o.shape(ctx)
	if err != nil {
		return nil, err
	}
	consumers := []string{f.Consumer}
	if f.Consumer == "" {
		if consumers, err = o.consumers(ctx, sh); err != nil {
			return nil, err
		}
	}
	var found []deadLetter
	for _, consumer := range consumers {
		for tag := range sh.tags {
			some, err := o.deadLettersOf(ctx, consumer, tag, f)
			if err != nil {
				return nil, err
			}
			found = append(found, some...)
		}
	}
	slices.SortStableFunc(found, func(a, b deadLetter) int { return a.DeadAt.Compare(b.DeadAt) })
	return backend.First(found, f.Limit), nil
}

// deadLettersOf selects those of one consumer under one tag, at most f.Limit.
func (o *operator) deadLettersOf(ctx context.Context, consumer string, tag int, f operate.DeadLetterFilter) (found []deadLetter, err error) {
	var numbers []any
	for _, id := range f.IDs {
		if n, of, ok := parseDeadID(id); ok && of == tag {
			numbers = append(numbers, n)
		}
	}
	if len(f.IDs) > 0 && len(numbers) == 0 {
		return nil, nil
	}
	after := "0"
	for {
		args := []any{consumer, flag(len(f.IDs) == 1), after, deadPage}
		if n := min(len(numbers), deadPage); n > 0 {
			args, numbers = append(args, numbers[:n]...), numbers[n:]
		}
		reply, err := o.run(ctx, tag, scripts.deadletters, args...)
		if err != nil {
			return nil, err
		}
		page := list(reply)
		for _, v := range list(page[1]) {
			if d := o.readDead(consumer, tag, list(v), len(f.IDs) == 1); backend.Selects(f, &d.DeadLetterInfo) {
				found = append(found, d)
			}
		}
		after = text(page[0])
		done := after == ""
		if len(f.IDs) > 0 {
			done = len(numbers) == 0
		}
		if done || f.Limit > 0 && len(found) >= f.Limit {
			return found, nil
		}
	}
}

// readDead reads one dead letter as the script returns it.
func (o *operator) readDead(consumer string, tag int, v []any, payload bool) deadLetter {
	m := o.unpackKept(text(v[7]), text(v[2]))
	d := deadLetter{number: text(v[0]), tag: tag, DeadLetterInfo: operate.DeadLetterInfo{
		Consumer: consumer, Resource: text(v[1]), MessageID: text(v[2]),
		Topic: m.Topic, Key: m.Key, Kind: m.Kind, Headers: m.Headers, PublishedAt: m.PublishedAt, Size: int(number(v[8])),
		FirstFailed: time.UnixMicro(number(v[5])), DeadAt: time.UnixMicro(number(v[6])),
		Attempts: int(number(v[3])), Reason: text(v[4]),
	}}
	d.ID = d.id()
	if payload {
		d.Payload = m.Payload
	}
	return d
}

// Replay puts dead letters back, each in the lane of its key, the oldest first.
func (o *operator) Replay(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	n, err := o.moveDead(ctx, f, func(consumer string, some []deadLetter) (*script, []any, error) {
		info, err := o.info(ctx, consumer)
		args := []any{consumer, flag(info.Per == backend.PerStream)}
		for _, d := range some {
			args = append(args, d.number, d.Key)
		}
		return scripts.replay, args, err
	})
	if err != nil {
		return n, fmt.Errorf("leaseredis: replay dead letters: %w", err)
	}
	return n, nil
}

// Purge deletes dead letters.
func (o *operator) Purge(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	n, err := o.moveDead(ctx, f, func(consumer string, some []deadLetter) (*script, []any, error) {
		return scripts.purge, purgeArgs(consumer, some), nil
	})
	if err != nil {
		return n, fmt.Errorf("leaseredis: purge dead letters: %w", err)
	}
	return n, nil
}

func purgeArgs(consumer string, some []deadLetter) []any {
	args := []any{consumer}
	for _, d := range some {
		args = append(args, d.number)
	}
	return args
}

// moveDead runs a script on what f selects, page by page, and returns how many were moved.
func (o *operator) moveDead(ctx context.Context, f operate.DeadLetterFilter, call func(consumer string, some []deadLetter) (*script, []any, error)) (n int, err error) {
	var found []deadLetter
	if err := o.repeat(ctx, func() error {
		var err error
		found, err = o.deadLetters(ctx, f)
		return err
	}); err != nil {
		return 0, err
	}
	type place struct {
		consumer string
		tag      int
	}
	byPlace := map[place][]deadLetter{}
	for _, d := range found {
		p := place{d.Consumer, d.tag}
		byPlace[p] = append(byPlace[p], d)
	}
	places := slices.SortedFunc(maps.Keys(byPlace), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.consumer, b.consumer), cmp.Compare(a.tag, b.tag))
	})
	for _, p := range places {
		for some := range slices.Chunk(byPlace[p], deadPage) {
			unknown := false // an earlier try may have moved them
			err := o.repeat(ctx, func() error {
				s, args, err := call(p.consumer, some)
				if err != nil {
					return err
				}
				reply, err := o.run(ctx, p.tag, s, args...)
				switch {
				case err != nil:
					unknown = true
				case unknown:
					n += len(some) // those that are gone were moved by the try whose reply was lost
				default:
					n += int(number(reply))
				}
				return err
			})
			if err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// boundDead drops the oldest dead letters of a consumer beyond limit, and returns how many.
func (k *keeper) boundDead(ctx context.Context, sh *shape, consumer string, limit int) (dropped int, err error) {
	for {
		counts, err := k.deadCounts(ctx, sh, consumer)
		if err != nil {
			return dropped, err
		}
		over := -limit
		for _, n := range counts {
			over += int(n)
		}
		if over <= 0 {
			return dropped, nil
		}
		key := "dead:" + consumer
		numbers, err := askTags(ctx, k.shards, sh.tags, key, func(pipe redis.Pipeliner, prefix string) *redis.StringSliceCmd {
			return pipe.ZRange(ctx, prefix+key, 0, int64(min(over, deadPage))-1)
		})
		if err != nil {
			return dropped, err
		}
		var oldest []deadLetter // by number, which tells when
		for tag, some := range numbers {
			for _, n := range some {
				oldest = append(oldest, deadLetter{number: n, tag: tag})
			}
		}
		slices.SortStableFunc(oldest, func(a, b deadLetter) int {
			return cmp.Or(cmp.Compare(len(a.number), len(b.number)), cmp.Compare(a.number, b.number))
		})
		oldest = oldest[:min(len(oldest), over, deadPage)]
		byTag := make([][]deadLetter, sh.tags)
		for _, d := range oldest {
			byTag[d.tag] = append(byTag[d.tag], d)
		}
		before := dropped
		for tag, some := range byTag {
			if len(some) == 0 {
				continue
			}
			reply, err := k.run(ctx, tag, scripts.purge, purgeArgs(consumer, some)...)
			if err != nil {
				return dropped, err
			}
			dropped += int(number(reply))
		}
		if dropped == before && len(oldest) == 0 {
			return dropped, nil
		}
	}
}

// deadCounts counts the dead letters of a consumer under each tag.
func (cat *catalog) deadCounts(ctx context.Context, sh *shape, consumer string) ([]int64, error) {
	return askTags(ctx, cat.shards, sh.tags, "dead:"+consumer, func(pipe redis.Pipeliner, prefix string) *redis.IntCmd {
		return pipe.ZCard(ctx, prefix+"dead:"+consumer)
	})
}

// flag is how scripts are told yes and no.
func flag(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
