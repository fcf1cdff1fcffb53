package main

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// noTransaction is the reason that no contender on Redis writes rows exactly once.
const noTransaction = "Redis and the database share no transaction: rows at least once"

// onRedis adds what holds for all of Redis.
func onRedis(cannot map[string]string) map[string]string {
	all := map[string]string{"publish-tx": "no transaction of PostgreSQL to join", "rows": noTransaction}
	for w, why := range cannot {
		all[w] = why
	}
	return all
}

func leasegenRedis() contender {
	return contender{
		Contender: report.Contender{ID: report.OursRedis, Name: "leasegen on Redis", Backend: "Redis", Ours: true,
			Settings: "per=topic, batches of 500, else defaults",
			Keeps:    "order by topic, fenced owners, effects at least once"},
		cannot: onRedis(nil),
		open: func(_ context.Context, s *site) (system, error) {
			c := redisClient(s.redisAt)
			return &leasegenOnRedis{c, leaseredis.New(c)}, nil
		},
	}
}

type leasegenOnRedis struct {
	client *redis.Client
	be     *leaseredis.Backend
}

func (l *leasegenOnRedis) Close() { l.client.Close() }

func (l *leasegenOnRedis) Fill(ctx context.Context, n, topics int) error {
	// Messages that a known consumer has not read stay.
	if err := l.be.Register(ctx, backend.ConsumerInfo{Name: "bench", Per: backend.PerTopic, Topics: []string{"bench.*"}}, nil); err != nil {
		return err
	}
	return chunks(n, 5000, func(from, to int) error {
		return l.be.Publish(ctx, events(func(i int) int { return i % topics }, from, to))
	})
}

func (l *leasegenOnRedis) Publish(ctx context.Context, topic int, payloads [][]byte) error {
	return l.be.Publish(ctx, asEvents(topic, payloads))
}

func (l *leasegenOnRedis) Consume(ctx context.Context, j job) (func() error, error) {
	return consume(ctx, l.be, plainHandler(j), j)
}

func bareRedis() contender {
	return contender{
		Contender: report.Contender{ID: report.BareRedis, Name: "bare XRANGE loop", Backend: "Redis", Limit: true,
			Settings: "go-redis, COUNT 500, up to 64 streams in a pipeline, positions stored by MSET; polls each millisecond; entries with a kind, a key and a payload, as leasegen's have",
			Keeps:    "order by topic, at least once; no owner: a second process would repeat all"},
		cannot: onRedis(map[string]string{"crash": noFailover, "handover": noFailover, "leases": "no leases"}),
		open: func(_ context.Context, s *site) (_ system, err error) {
			defer must.Catch(&err)
			return &bareOnRedis{redisClient(s.redisAt)}, nil
		},
	}
}

type bareOnRedis struct{ client *redis.Client }

func (b *bareOnRedis) Close() { b.client.Close() }

func (b *bareOnRedis) add(ctx context.Context, topic func(i int) int, payloads [][]byte) error {
	_, err := b.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range payloads {
			p.XAdd(ctx, &redis.XAddArgs{Stream: topicName(topic(i)), Values: []any{"kind", kind, "key", keyName(i), "payload", payloads[i]}})
		}
		return nil
	})
	return err
}

func (b *bareOnRedis) Fill(ctx context.Context, n, topics int) error {
	return chunks(n, 5000, func(from, to int) error {
		return b.add(ctx, func(i int) int { return (from + i) % topics }, payloads(from, to))
	})
}

func (b *bareOnRedis) Publish(ctx context.Context, topic int, payloads [][]byte) error {
	return b.add(ctx, func(int) int { return topic }, payloads)
}

func (b *bareOnRedis) Consume(ctx context.Context, j job) (func() error, error) {
	return background(ctx, func(ctx context.Context) error { return b.loop(ctx, j) }), nil
}

// loop reads streams, 64 in a pipeline, and stores how far it has got in them.
func (b *bareOnRedis) loop(ctx context.Context, j job) error {
	at := make([]string, j.topics)
	for i := range at {
		at[i] = "-"
	}
	for ctx.Err() == nil {
		read := 0
		err := chunks(j.topics, 64, func(from, to int) error {
			n, err := b.some(ctx, at, from, to, j)
			read += n
			return err
		})
		if err != nil {
			return err
		}
		if read == 0 {
			pause(ctx)
		}
	}
	return nil
}

// some reads a few streams once.
func (b *bareOnRedis) some(ctx context.Context, at []string, from, to int, j job) (read int, err error) {
	answers := make([]*redis.XMessageSliceCmd, to-from)
	if _, err := b.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range answers {
			answers[i] = p.XRangeN(ctx, topicName(from+i), at[from+i], "+", batch)
		}
		return nil
	}); err != nil {
		return 0, err
	}
	var positions []any
	for i, a := range answers {
		ms := a.Val()
		if len(ms) == 0 {
			continue
		}
		j.begin()
		at[from+i] = "(" + ms[len(ms)-1].ID
		positions = append(positions, "position."+topicName(from+i), ms[len(ms)-1].ID)
		read += len(ms)
		if j.call != nil {
			for _, m := range ms {
				j.call([]byte(m.Values["payload"].(string)))
			}
		}
	}
	if read == 0 {
		return 0, nil
	}
	if err := b.client.MSet(ctx, positions...).Err(); err != nil {
		return 0, err
	}
	if j.done != nil {
		j.done(read)
	}
	return read, nil
}
