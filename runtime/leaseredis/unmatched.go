package leaseredis

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
)

// UnmatchedTopic is a topic whose messages no consumer takes.
type UnmatchedTopic struct {
	Topic    string
	Messages int64
	Key      string // of the stream that holds them
}

// UnmatchedTopics lists topics that have messages and that no consumer matches, those with the most
// first: misspelt ones, say. Their messages wait for a consumer; deleting Key is all it takes to be rid of
// them. It reads the names of all topics.
func (o *operator) UnmatchedTopics(ctx context.Context) ([]UnmatchedTopic, error) {
	var out []UnmatchedTopic
	err := o.repeat(ctx, func() error {
		sh, err := o.shape(ctx)
		if err != nil {
			return err
		}
		out = nil
		for tag := range sh.tags {
			some, err := o.unmatched(ctx, tag)
			if err != nil {
				return err
			}
			out = append(out, some...)
		}
		return nil
	})
	if err != nil {
		return nil, fail("look for topics without a consumer", err)
	}
	slices.SortFunc(out, func(a, b UnmatchedTopic) int {
		return cmp.Or(cmp.Compare(b.Messages, a.Messages), strings.Compare(a.Topic, b.Topic))
	})
	return out, nil
}

// unmatched lists those of one tag.
func (o *operator) unmatched(ctx context.Context, tag int) (out []UnmatchedTopic, err error) {
	readers, err := o.readersOf(ctx, tag)
	if err != nil {
		return nil, err
	}
	var patterns []string
	for _, info := range readers {
		if info.Source == nil {
			patterns = append(patterns, info.Topics...)
		}
	}
	err = o.pages(ctx, o.prefix(tag)+"topics", "-inf", func(page []redis.Z) error {
		var topics []string
		for _, z := range page {
			if topic := z.Member.(string); !backend.MatchTopic(patterns, topic) {
				topics = append(topics, topic)
			}
		}
		if len(topics) == 0 {
			return nil
		}
		lens := make([]*redis.IntCmd, len(topics))
		err := o.pipelined(ctx, func(pipe redis.Pipeliner) {
			for i, t := range topics {
				lens[i] = pipe.XLen(ctx, o.prefix(tag)+"t:"+t)
			}
		})
		if err != nil {
			return err
		}
		for i, t := range topics {
			key := o.prefix(tag) + "t:" + t
			n, err := lens[i].Result()
			if err != nil {
				return fmt.Errorf("leaseredis: count the messages of %s: %w", strconv.Quote(key), err)
			}
			if n > 0 {
				out = append(out, UnmatchedTopic{Topic: t, Messages: n, Key: key})
			}
		}
		return nil
	})
	return out, err
}
