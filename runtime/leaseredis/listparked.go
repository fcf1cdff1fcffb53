package leaseredis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// parkedPage is how many lanes, and how many messages, one script call lists.
const parkedPage = 200

// parkedPlace is where a parked message is listed: tag by tag resources, of these lanes, and of these messages. Resources and lanes
// come in the order of a scan of their sorted set, which does not change when they are due at another time: each part of it that a cursor
// stands for is listed in the order of names.
type parkedPlace struct {
	tag        int
	resources  uint64 // the cursor,
	resource   string
	lanes      uint64
	lane       string
	id, before string // of the message, and of the one before it in its lane
}

func (p parkedPlace) encode() string {
	return backend.EncodePlace(strconv.Itoa(p.tag), strconv.FormatUint(p.resources, 10), p.resource, strconv.FormatUint(p.lanes, 10),
		p.lane, p.id, p.before)
}

func decodePlace(text string) (p parkedPlace, err error) {
	if text == "" {
		return p, nil
	}
	parts, err := backend.DecodePlace(text, 7)
	if err != nil {
		return p, err
	}
	p = parkedPlace{resource: parts[2], lane: parts[4], id: parts[5], before: parts[6]}
	var errs [3]error
	p.tag, errs[0] = strconv.Atoi(parts[0])
	p.resources, errs[1] = strconv.ParseUint(parts[1], 10, 64)
	p.lanes, errs[2] = strconv.ParseUint(parts[3], 10, 64)
	if errors.Join(errs[:]...) != nil {
		return p, backend.NoPlace(text)
	}
	return p, nil
}

// parkedSearch lists what a filter selects.
type parkedSearch struct {
	o    *operator
	f    operate.ParkedFilter
	at   parkedPlace // of what was listed last
	left int         // to be found
	// do gets some of one resource at a time.
	do func(tag int, resource string, some []operate.ParkedInfo) error
}

// Parked lists parked messages: tag by tag resources, and of these lanes.
func (o *operator) Parked(ctx context.Context, f operate.ParkedFilter) (out []operate.ParkedInfo, err error) {
	err = o.eachParked(ctx, f, func(_ int, _ string, some []operate.ParkedInfo) error {
		out = append(out, some...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("leaseredis: list parked messages of %s: %w", f.Consumer, err)
	}
	return out, nil
}

// RetryParked makes parked messages due now.
func (o *operator) RetryParked(ctx context.Context, f operate.ParkedFilter) (n int, err error) {
	err = o.eachParked(ctx, f, func(tag int, resource string, some []operate.ParkedInfo) error {
		for len(some) > 0 {
			args := []any{f.Consumer, resource, parkedBytes}
			for _, p := range backend.First(some, parkedPage) {
				args = append(args, p.MessageID)
			}
			var reply any
			if err := o.repeat(ctx, func() (err error) {
				reply, err = o.run(ctx, tag, scripts.retryparked, args...)
				return err
			}); err != nil {
				return err
			}
			some, n = some[number(list(reply)[0]):], n+int(number(list(reply)[1]))
		}
		return nil
	})
	if err != nil {
		return n, fmt.Errorf("leaseredis: retry parked messages of %s: %w", f.Consumer, err)
	}
	return n, nil
}

// eachParked calls do with what f selects.
func (o *operator) eachParked(ctx context.Context, f operate.ParkedFilter, do func(tag int, resource string, some []operate.ParkedInfo) error) error {
	at, err := decodePlace(f.After)
	if err != nil {
		return err
	}
	sh, err := o.shape(ctx)
	if err != nil {
		return err
	}
	info, err := o.info(ctx, f.Consumer)
	if errors.Is(err, errUnknownConsumer) {
		return nil
	}
	if err != nil {
		return err
	}
	s := &parkedSearch{o: o, f: f, at: at, left: f.Limit, do: do}
	if f.Limit == 0 {
		s.left = int(^uint(0) >> 1)
	}
	if n := len(f.IDs); n > 0 && s.left > n { // there are no more
		s.left = n
	}
	if f.Resource != "" {
		tag := sh.leaseTag(f.Consumer, f.Resource)
		if len(f.IDs) > 0 && f.After == "" && (f.Limit == 0 || f.Limit >= len(f.IDs)) {
			return s.named(ctx, tag)
		}
		return s.resource(ctx, tag, 0, f.Resource)
	}
	for _, step := range o.leaseSteps(sh, info, nil) {
		if step.tag < s.at.tag {
			continue
		}
		if err := s.tag(ctx, step.tag); err != nil || s.left <= 0 {
			return err
		}
	}
	return nil
}

// tag lists the resources of a tag.
func (s *parkedSearch) tag(ctx context.Context, tag int) error {
	from, after := uint64(0), ""
	if s.f.After != "" && tag == s.at.tag {
		from, after = s.at.resources, s.at.resource
	}
	return s.o.scanned(ctx, s.o.prefix(tag)+"pr:"+s.f.Consumer, from, func(cursor uint64, names []string) (bool, error) {
		for _, name := range names {
			if cursor == from && name < after {
				continue
			}
			if err := s.resource(ctx, tag, cursor, name); err != nil || s.left <= 0 {
				return false, err
			}
		}
		return true, nil
	})
}

// resource lists the lanes of a resource.
func (s *parkedSearch) resource(ctx context.Context, tag int, cursor uint64, resource string) error {
	from, after := uint64(0), ""
	on := s.f.After != "" && s.at.tag == tag && s.at.resource == resource // it goes on within the resource
	at := parkedPlace{tag: tag, resources: cursor, resource: resource}
	if on {
		from, after, at.resources = s.at.lanes, s.at.lane, s.at.resources
	}
	return s.o.scanned(ctx, s.o.prefix(tag)+"due:"+s.f.Consumer+":"+resource, from, func(cursor uint64, lanes []string) (bool, error) {
		skip, id := int64(0), ""
		if on && cursor == from {
			lanes = slices.DeleteFunc(lanes, func(lane string) bool { return lane < after })
			if len(lanes) > 0 && lanes[0] == after {
				var err error
				if skip, err = s.skip(ctx); err != nil {
					return false, err
				}
				id = s.at.id
			}
		}
		at.lanes = cursor
		err := s.read(ctx, at, lanes, skip, id)
		return s.left > 0, err
	})
}

// skip is how many messages of its lane the place to go on from has behind it. The message there may be gone, and the one before it:
// then those before these are, too.
func (s *parkedSearch) skip(ctx context.Context) (int64, error) {
	at := s.at
	key := s.o.prefix(at.tag) + "lane:" + s.f.Consumer + ":" + strconv.Itoa(len(at.resource)) + ":" + at.resource + ":" + at.lane
	for _, id := range []string{at.id, at.before} {
		found, err := ask(ctx, s.o.shards, key, func(ctx context.Context) ([]int64, error) {
			return s.o.client.LPosCount(ctx, key, id, 1, redis.LPosArgs{}).Result()
		})
		if err != nil || len(found) > 0 {
			return append(found, 0)[0] + 1, err
		}
	}
	return 0, nil
}

// read lists the messages of lanes, but for the first ones of the first lane, of which id is the last.
func (s *parkedSearch) read(ctx context.Context, at parkedPlace, lanes []string, skip int64, id string) error {
	at.id = id
	if len(lanes) > 0 {
		at.lane = lanes[0]
	}
	for len(lanes) > 0 && s.left > 0 {
		limit := parkedPage
		if s.f.Key == "" && len(s.f.IDs) == 0 {
			limit = min(limit, s.left)
		}
		args := with([]any{s.f.Consumer, at.resource, skip, limit, parkedBytes}, backend.First(lanes, parkedPage)...)
		var reply any
		if err := s.o.repeat(ctx, func() (err error) {
			reply, err = s.o.run(ctx, at.tag, scripts.listparked, args...)
			return err
		}); err != nil {
			return err
		}
		r := list(reply)
		if err := s.take(&at, list(r[2])); err != nil {
			return err
		}
		lanes, skip = lanes[number(r[0]):], number(r[1])
	}
	return nil
}

// take passes on what a script has read of a resource, as far as it is selected. The place moves on with it.
func (s *parkedSearch) take(at *parkedPlace, read []any) error {
	var some []operate.ParkedInfo
	for _, v := range read {
		v := list(v)
		id, lane := text(v[0]), text(v[8])
		if at.before = at.id; lane != at.lane {
			at.before = ""
		}
		at.lane, at.id = lane, id
		m := s.o.unpackKept(text(v[6]), id)
		if s.left <= 0 || s.f.Key != "" && s.f.Key != m.Key || len(s.f.IDs) > 0 && !slices.Contains(s.f.IDs, id) {
			continue
		}
		p := operate.ParkedInfo{
			Place: at.encode(), Resource: at.resource, MessageID: id, Topic: m.Topic, Key: m.Key, Kind: m.Kind, Size: int(number(v[7])),
			Behind: number(v[1]) == 1, Attempts: int(number(v[2])), Due: time.UnixMicro(number(v[3])), Error: text(v[5]),
		}
		if failed := number(v[4]); failed > 0 {
			p.FirstFailed = time.UnixMicro(failed)
		}
		some = append(some, p)
		s.left--
	}
	if len(some) == 0 {
		return nil
	}
	return s.do(at.tag, at.resource, some)
}

// named looks up messages of one resource.
func (s *parkedSearch) named(ctx context.Context, tag int) error {
	ids := slices.Compact(slices.Sorted(slices.Values(s.f.IDs)))
	var found []any
	for len(ids) > 0 {
		var reply any
		args := with([]any{s.f.Consumer, s.f.Resource, parkedBytes}, backend.First(ids, parkedPage)...)
		if err := s.o.repeat(ctx, func() (err error) {
			reply, err = s.o.run(ctx, tag, scripts.findparked, args...)
			return err
		}); err != nil {
			return err
		}
		ids, found = ids[number(list(reply)[0]):], append(found, list(list(reply)[2])...)
	}
	slices.SortStableFunc(found, func(a, b any) int { // the first of a lane first
		return cmp.Or(cmp.Compare(text(list(a)[8]), text(list(b)[8])), cmp.Compare(number(list(a)[1]), number(list(b)[1])))
	})
	return s.take(&parkedPlace{tag: tag, resource: s.f.Resource}, found)
}
