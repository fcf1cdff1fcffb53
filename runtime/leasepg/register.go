package leasepg

import (
	"context"
	"strings"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// likes translates topic patterns for LIKE.
func likes(patterns []string) []string {
	out := make([]string, len(patterns))
	for i, p := range patterns {
		out[i] = like(p)
	}
	return out
}

var likeEscapes = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`, `*`, `%`)

func like(pattern string) string { return likeEscapes.Replace(pattern) }

// Register makes resources known. When they are known already it only reads.
func (b *Backend) Register(ctx context.Context, c lease.ConsumerInfo, topics []string) error {
	steps := []step{durable(ctx), func(q *leasedb.Queries) error {
		return q.DescribeConsumer(ctx, leasedb.DescribeConsumerParams{
			Name: c.Name, Per: c.Per.String(), Topics: append([]string{}, c.Topics...), Likes: likes(c.Topics), Grace: c.Grace,
		})
	}}
	switch {
	case c.Per != lease.PerTopic:
		topics = []string{lease.Whole}
		fallthrough
	case topics != nil:
		steps = append(steps, func(q *leasedb.Queries) error {
			_, err := q.RegisterResources(ctx, leasedb.RegisterResourcesParams{Consumer: c.Name, Resources: topics})
			return err
		})
	default:
		steps = append(steps, func(q *leasedb.Queries) error {
			_, err := q.RegisterLog(ctx, leasedb.RegisterLogParams{Consumer: c.Name, Likes: likes(c.Topics)})
			return err
		})
	}
	return b.fail("register resources of "+c.Name, b.pipeline(ctx, b.pool, steps...))
}
