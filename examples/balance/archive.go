package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// archive is the service's own data in Redis: the feeds, and what was read of them. It knows
// no part of leases but the epoch, by which it refuses former owners.
type archive struct{ client *redis.Client }

var errFormerOwner = errors.New("a newer owner has been here")

type reading struct {
	id    string
	value int
}

func feedKey(feed string) string { return "feed:" + feed }
func sumKey(feed string) string  { return "sum:" + feed }

// fill writes a feed with n readings, 1 to n.
func (a *archive) fill(ctx context.Context, feed string, n int) error {
	pipe := a.client.Pipeline()
	for i := range n {
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: feedKey(feed), Values: []any{"value", i + 1}})
	}
	_, err := pipe.Exec(ctx)
	return err
}

// open tells the archive of a feed's owner, and the owner how far the feed has been read.
// From then on former owners are refused: were it only told of readings, a former one could
// add the same reading first.
func (a *archive) open(ctx context.Context, feed string, epoch int64, owner string) (at string, err error) {
	at, err = openScript.Run(ctx, a.client, []string{sumKey(feed)}, epoch, owner).Text()
	return at, refused(err)
}

var openScript = redis.NewScript(`
local last = redis.call('HGET', KEYS[1], 'epoch') or '0'
if tonumber(ARGV[1]) < tonumber(last) then redis.call('HINCRBY', KEYS[1], 'refused', 1) return redis.error_reply('FORMER owner') end
if ARGV[1] ~= last then
  redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'owner', ARGV[2])
  redis.call('HINCRBY', KEYS[1], 'owners', 1)
end
return redis.call('HGET', KEYS[1], 'at') or '-'
`)

// next is the reading behind at, or nil at the end of the feed.
func (a *archive) next(ctx context.Context, feed, at string) (*reading, error) {
	from := "(" + at
	if at == "-" {
		from = at
	}
	entries, err := a.client.XRangeN(ctx, feedKey(feed), from, "+", 1).Result()
	if err != nil || len(entries) == 0 {
		return nil, err
	}
	value, err := strconv.Atoi(fmt.Sprint(entries[0].Values["value"]))
	return &reading{entries[0].ID, value}, err
}

// add counts a reading.
func (a *archive) add(ctx context.Context, feed string, epoch int64, r reading) error {
	return refused(addScript.Run(ctx, a.client, []string{sumKey(feed)}, epoch, r.id, r.value).Err())
}

// Values rise by one from reading to reading, so the archive can tell what is out of order.
var addScript = redis.NewScript(`
local have = redis.call('HMGET', KEYS[1], 'epoch', 'value')
if have[1] ~= ARGV[1] then redis.call('HINCRBY', KEYS[1], 'refused', 1) return redis.error_reply('FORMER owner') end
if tonumber(ARGV[3]) ~= tonumber(have[2] or 0) + 1 then redis.call('HINCRBY', KEYS[1], 'disorder', 1) end
redis.call('HSET', KEYS[1], 'at', ARGV[2], 'value', ARGV[3])
redis.call('HINCRBY', KEYS[1], 'readings', 1)
return 1
`)

func refused(err error) error {
	if err != nil && strings.HasPrefix(err.Error(), "FORMER") {
		return errFormerOwner
	}
	return err
}

func (a *archive) readings(ctx context.Context, feed string) (int, error) {
	return a.client.HGet(ctx, sumKey(feed), "readings").Int()
}

// sum is what the archive has of one feed.
type sum struct {
	feed                                string
	owner                               string // the latest
	owners, readings, disorder, refused int
}

func (a *archive) sums(ctx context.Context, feeds []string) ([]sum, error) {
	pipe := a.client.Pipeline()
	for _, f := range feeds {
		pipe.HGetAll(ctx, sumKey(f))
	}
	cmds, err := pipe.Exec(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]sum, len(feeds))
	for i, f := range feeds {
		h := cmds[i].(*redis.MapStringStringCmd).Val()
		n := func(field string) int { v, _ := strconv.Atoi(h[field]); return v }
		out[i] = sum{f, h["owner"], n("owners"), n("readings"), n("disorder"), n("refused")}
	}
	return out, nil
}
