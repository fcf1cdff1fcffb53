package leaseredis

import (
	"cmp"
	"context"
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
// first: misspelt ones, for example. Their messages wait for a consumer; deleting Key is all it takes to be rid of
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
			if out, err = o.unmatched(ctx, tag, out); err != nil {
				return err
			}
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

// unmatched adds those of one tag to out.
func (o *operator) unmatched(ctx context.Context, tag int, out []UnmatchedTopic) ([]UnmatchedTopic, error) {
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
	for topics, err := range o.pages(ctx, o.prefix(tag)+"topics", "-inf") {
		if err != nil {
			return nil, err
		}
		topics = slices.DeleteFunc(topics, func(t string) bool { return backend.MatchTopic(patterns, t) })
		lens, err := askEach(ctx, o.shards, len(topics),
			func(pipe redis.Pipeliner, i int) *redis.IntCmd { return pipe.XLen(ctx, o.topicKey(tag, topics[i])) },
			func(i int) string {
				return "leaseredis: count the messages of " + strconv.Quote(o.topicKey(tag, topics[i]))
			})
		if err != nil {
			return nil, err
		}
		for i, n := range lens {
			if n > 0 {
				out = append(out, UnmatchedTopic{Topic: topics[i], Messages: n, Key: o.topicKey(tag, topics[i])})
			}
		}
	}
	return out, nil
}
