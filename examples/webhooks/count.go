package main

import (
	"context"
	"fmt"
	"io"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/operate"
)

// tables is what the handlers write. It has no unique constraint on purpose: a delivery
// handled twice would show.
const tables = `
	DROP TABLE IF EXISTS effect;
	CREATE TABLE effect (
		n        bigint GENERATED ALWAYS AS IDENTITY,
		consumer text NOT NULL,
		message  text NOT NULL,
		delivery text NOT NULL,
		form     text NOT NULL,
		what     text NOT NULL,
		epoch    bigint NOT NULL,
		replica  text NOT NULL
	)`

// count is what became of the deliveries for one consumer.
type count struct {
	consumer          string
	typed, raw        int
	dead              []operate.DeadLetterInfo
	messages, repeats int
}

func (c *count) total() int { return c.typed + c.raw + len(c.dead) }

// await waits until every delivery is accounted for by both consumers.
func (r *run) await(ctx context.Context, want int) (counts []count, err error) {
	err = stage.Until(ctx, fmt.Sprintf("all of %d deliveries are accounted for", want), func() (bool, error) {
		counts = nil
		complete := true
		for _, name := range []string{"activity", "archive"} {
			c := count{consumer: name}
			err := r.Pool.QueryRow(ctx, `
				SELECT count(*) FILTER (WHERE form = 'typed'), count(*) FILTER (WHERE form = 'raw'),
				       count(DISTINCT message), count(*) - count(DISTINCT message)
				FROM effect WHERE consumer = $1`, name).Scan(&c.typed, &c.raw, &c.messages, &c.repeats)
			if err != nil {
				return false, err
			}
			if c.dead, err = r.Backend.DeadLetters(ctx, operate.DeadLetterFilter{Consumer: name}); err != nil {
				return false, err
			}
			complete = complete && c.messages+len(c.dead) >= want
			counts = append(counts, c)
		}
		return complete, nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %+v", err, counts)
	}
	return counts, nil
}

// report prints the table and fails when it does not add up.
func report(out io.Writer, counts []count, want int) error {
	fmt.Fprintf(out, "%-9s %6s %5s %13s %6s %12s\n", "consumer", "typed", "raw", "dead-lettered", "total", "rows written")
	var wrong error
	for _, c := range counts {
		fmt.Fprintf(out, "%-9s %6d %5d %13d %6d %12d\n", c.consumer, c.typed, c.raw, len(c.dead), c.total(), c.typed+c.raw)
		if c.total() != want || c.repeats != 0 {
			wrong = fmt.Errorf("%s: %d accounted for, want %d; %d handled more than once", c.consumer, c.total(), want, c.repeats)
		}
	}
	for _, c := range counts {
		for _, d := range c.dead {
			fmt.Fprintf(out, "dead letter of %s: %s #%s, %s: %s\n", c.consumer, d.Kind, d.MessageID, d.Headers["delivery"], d.Reason)
		}
	}
	return wrong
}
