package redisproof

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/lease"
)

// sink is where handlers take effect: a server that no process disturbs, with one history for each namespace.
type sink struct {
	client    *redis.Client
	namespace string
}

func newSink(addr, namespace string) *sink {
	return &sink{redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: 30 * time.Second}), namespace}
}

func (s *sink) history() string { return "history:" + s.namespace }

// effectScript is what the documentation asks of a resource: it remembers the highest epoch
// and refuses what comes with an older one. Refusals are written down, too.
var effectScript = redis.NewScript(`
local seen = redis.call('HGET', KEYS[2], ARGV[1])
if seen and tonumber(ARGV[2]) < tonumber(seen) then
  redis.call('RPUSH', KEYS[1], 'refused ' .. ARGV[3])
  return 0
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('RPUSH', KEYS[1], 'effect ' .. ARGV[3])
return 1`)

var errRefused = errors.New("the sink has heard from a later owner")

// effect is the handler's effect.
func (s *sink) effect(ctx context.Context, replica string, m lease.Message[numbered]) error {
	ok, err := effectScript.Run(ctx, s.client, []string{s.history(), "fence:" + s.namespace},
		m.Topic, m.Epoch, line(m.Topic, m.Payload.Seq, m.Epoch, m.ID, replica)).Bool()
	if err == nil && !ok {
		err = errRefused
	}
	return err
}

func (s *sink) append(lines ...any) error {
	return s.client.RPush(context.Background(), s.history(), lines...).Err()
}

// ping is a bare request.
func (s *sink) ping(ctx context.Context) error { return s.client.Ping(ctx).Err() }

// read returns the lines from an index on.
func (s *sink) read(ctx context.Context, from int) ([]string, error) {
	return s.client.LRange(ctx, s.history(), int64(from), int64(from)+49_999).Result()
}
