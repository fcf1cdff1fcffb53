package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/internal/redistest"
)

// drainWatermill is a consumer group whose members read message by message and acknowledge each: it
// has no other way. Each round has a group of its own, which reads the same streams.
func drainWatermill(server *redistest.Server, what string, topics, subscribers, n int) *contender {
	topic := func(i int) string { return fmt.Sprintf("watermill-%d-%d-%d", topics, subscribers, i%topics) }
	c := &contender{family: "watermill", what: what, messages: n}
	c.fill = func(ctx context.Context, round int) {
		if round > 0 {
			return
		}
		conn := client(server)
		defer conn.Close()
		// What its Publisher does one by one, many at a time: only draining counts.
		const chunk = 5000
		for at := 0; at < n; at += chunk {
			pipe := conn.Pipeline()
			for i := at; i < min(at+chunk, n); i++ {
				values := must.Get(redisstream.DefaultMarshallerUnmarshaller{}.Marshal(topic(i), message.NewMessage(watermill.NewUUID(), payload(i))))
				pipe.XAdd(ctx, &redis.XAddArgs{Stream: topic(i), Values: values})
			}
			must.Get(pipe.Exec(ctx))
		}
	}
	c.drain = func(ctx context.Context, round int) time.Duration {
		conn := client(server) // closed by the subscribers
		group := fmt.Sprintf("group-%d", round)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var handled, took atomic.Int64
		done := make(chan struct{})
		begin := time.Now()
		var members []*redisstream.Subscriber
		for i := range topics {
			for range subscribers {
				s := must.Get(redisstream.NewSubscriber(redisstream.SubscriberConfig{
					Client: conn, ConsumerGroup: group, DisableIndefiniteInitialBlock: true,
				}, watermill.NopLogger{}))
				members = append(members, s)
				messages := must.Get(s.Subscribe(ctx, topic(i)))
				go func() {
					for m := range messages {
						m.Ack()
						if handled.Add(1) == int64(n) {
							took.Store(int64(time.Since(begin)))
							close(done)
						}
					}
				}()
			}
		}
		must.Await(ctx, done, nil, handled.Load)
		cancel()
		for _, s := range members {
			if err := s.Close(); err != redis.ErrClosed {
				must.Do(err)
			}
		}
		return time.Duration(took.Load())
	}
	return c
}
