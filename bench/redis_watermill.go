package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/bench/report"
)

// watermillRedis has 16 subscribers for a topic: one reads message by message and acknowledges each, and has no batches.
func watermillRedis() contender {
	return contender{
		Contender: report.Contender{ID: "watermill-redisstream", Name: "watermill-redisstream, 16 subscribers", Backend: "Redis",
			Settings: "16 subscribers for a topic, one each of 100 topics; MaxIdleTime 2 s and ClaimInterval 500 ms, " +
				"so that messages of a killed process come back in seconds",
			Keeps: "no order with more than one subscriber, no fencing, at least once; " +
				"a message that takes longer than MaxIdleTime is handled twice"},
		cannot: watermillRedisCannot(),
		notes:  map[string]string{"crash": afterDelivery},
		open:   openWatermillRedis(16, redisstream.SubscriberConfig{MaxIdleTime: 2 * time.Second, ClaimInterval: 500 * time.Millisecond}),
	}
}

// afterDelivery is said of systems whose clock does not run from the crash.
const afterDelivery = "it comes back 2 s after it was delivered, of which one has passed"

func watermillRedisDefaults() contender {
	cannot := watermillRedisCannot()
	cannot["crash"] = "60 to 65 s: MaxIdleTime and ClaimInterval"
	return contender{
		variant: true,
		Contender: report.Contender{ID: "watermill-redisstream-defaults", Name: "watermill-redisstream, defaults", Backend: "Redis",
			Settings: "1 subscriber for a topic; MaxIdleTime 60 s, ClaimInterval 5 s",
			Keeps:    "order by topic while no message is claimed, no fencing, at least once"},
		cannot: cannot,
		open:   openWatermillRedis(1, redisstream.SubscriberConfig{}),
	}
}

func watermillRedisCannot() map[string]string {
	return onRedis(map[string]string{
		"drain-10000": "not run: a subscriber and a connection that waits for each of 10,000 topics",
		"leases":      "no leases: a message belongs to the subscriber that read it, until it is idle for too long",
	})
}

func openWatermillRedis(subscribers int, cfg redisstream.SubscriberConfig) func(context.Context, *site) (system, error) {
	return func(_ context.Context, s *site) (system, error) {
		return &watermillOnRedis{redisClient(s.redisAt), subscribers, cfg, s.redisAt}, nil
	}
}

type watermillOnRedis struct {
	client      *redis.Client
	subscribers int
	cfg         redisstream.SubscriberConfig
	addr        string
}

func (w *watermillOnRedis) Close() { w.client.Close() }

// Fill does what its Publisher does one by one, many at a time: only draining counts.
func (w *watermillOnRedis) Fill(ctx context.Context, n, topics int) error {
	return chunks(n, 5000, func(from, to int) error {
		_, err := w.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := from; i < to; i++ {
				topic := topicName(i % topics)
				values, err := redisstream.DefaultMarshallerUnmarshaller{}.Marshal(topic, message.NewMessage(watermill.NewUUID(), payload(i)))
				if err != nil {
					return err
				}
				p.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: values})
			}
			return nil
		})
		return err
	})
}

func (w *watermillOnRedis) Publish(_ context.Context, topic int, payloads [][]byte) error {
	p, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: w.client}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	return p.Publish(topicName(topic), watermillMessages(payloads)...)
}

func (w *watermillOnRedis) Consume(ctx context.Context, j job) (func() error, error) {
	client := redisClient(w.addr) // closed by the subscribers
	ctx, cancel := context.WithCancel(ctx)
	var members []*redisstream.Subscriber
	var loops []func(context.Context) error
	for t := range j.topics {
		each := w.subscribers
		if j.topics > 1 {
			each = 1
		}
		for range each {
			cfg := w.cfg
			cfg.Client, cfg.ConsumerGroup, cfg.DisableIndefiniteInitialBlock = client, "bench", true
			s, err := redisstream.NewSubscriber(cfg, watermill.NopLogger{})
			if err != nil {
				cancel()
				return nil, err
			}
			ms, err := s.Subscribe(ctx, topicName(t))
			if err != nil {
				cancel()
				return nil, fmt.Errorf("subscribe: %w", err)
			}
			members = append(members, s)
			loops = append(loops, func(context.Context) error {
				for m := range ms {
					j.begin()
					if j.call != nil {
						j.call(m.Payload)
					}
					m.Ack()
					if j.done != nil {
						j.done(1)
					}
				}
				return nil
			})
		}
	}
	stop := background(context.WithoutCancel(ctx), loops...)
	return func() error {
		cancel()
		var errs []error
		for _, s := range members {
			if err := s.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
				errs = append(errs, err)
			}
		}
		return errors.Join(append(errs, stop())...)
	}, nil
}
