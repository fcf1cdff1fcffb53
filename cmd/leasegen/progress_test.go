package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// A change goes in steps that grow as long as they are quick, and says on a terminal how far it has got.
func TestInSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var shown strings.Builder
		p := progress{&output{Writer: &shown, width: 30}}
		var asked []int
		n, err := p.inSteps(t.Context(), "purged", 10_000, func(_ context.Context, most int) (int, error) {
			asked = append(asked, most)
			time.Sleep(time.Duration(most) * 100 * time.Microsecond)
			return most, nil
		})
		if want := []int{500, 1000, 2000, 4000, 2500}; n != 10_000 || err != nil || !slices.Equal(asked, want) {
			t.Errorf("%d, %v in steps of %v, want %v", n, err, asked, want)
		}
		if got := shown.String(); !strings.HasPrefix(got, "\rpurged 500 of 10,000, 10,000…\x1b[K\rpurged 1,500 of 10,000, ") || !strings.HasSuffix(got, "\r\x1b[K") {
			t.Errorf("shown: %q", got)
		}
		asked = nil
		n, err = progress{}.inSteps(t.Context(), "purged", 10_000, func(_ context.Context, most int) (int, error) {
			asked = append(asked, most)
			return 700 / len(asked), nil
		})
		if n != 350+700 || err != nil || len(asked) != 2 {
			t.Errorf("%d, %v in steps of %v: fewer than asked for are the last", n, err, asked)
		}
	})
}

// tireless is an operator with more dead letters than one step takes.
type tireless struct {
	operate.Operator
	left  int
	steps []int
	then  func(ctx context.Context) error // after each step
}

func (o *tireless) Status(context.Context) ([]operate.ConsumerStatus, error) {
	return []operate.ConsumerStatus{{Consumer: "billing", DeadLetters: o.left}}, nil
}

func (o *tireless) Purge(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	n := min(f.Limit, o.left)
	o.left -= n
	o.steps = append(o.steps, n)
	return n, o.then(ctx)
}

// Replay puts back what dies again at once.
func (o *tireless) Replay(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	n := min(f.Limit, o.left)
	o.steps = append(o.steps, n)
	return n, o.then(ctx)
}

func TestChangeInSteps(t *testing.T) {
	for name, c := range map[string]struct {
		verb  string
		limit int
		then  func(stop func(), step int, ctx context.Context) error
		want  string // output or error
		left  int
	}{
		"whole":       {verb: "purge", want: "purged 3,000 of 3,000 dead letters of billing, in memory\n"},
		"bound":       {verb: "purge", limit: 700, want: "purged 700 of 3,000 dead letters of billing, in memory\n", left: 2300},
		"dying again": {verb: "replay", want: "replayed 3,000 of 3,000 dead letters of billing, in memory\n", left: 3000},
		"interrupted": {verb: "purge", then: func(stop func(), step int, ctx context.Context) error {
			if stop(); ctx.Err() != nil {
				return errors.New("the step was cut off")
			}
			return nil
		}, want: "interrupted: purged 500 of 3,000 dead letters of billing, in memory; the same command goes on", left: 2500},
		"failed": {verb: "purge", then: func(_ func(), step int, _ context.Context) error {
			if step == 2 {
				return errors.New("the server has gone")
			}
			return nil
		}, want: "purged 1,500 of 3,000 dead letters of billing, in memory; then: the server has gone", left: 1500},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			o := &tireless{left: 3000}
			o.then = func(ctx context.Context) error {
				if c.then == nil {
					return nil
				}
				return c.then(stop, len(o.steps), ctx)
			}
			var out strings.Builder
			q := dlq{format: "text", yes: true, filter: operate.DeadLetterFilter{Limit: c.limit}}
			if err := q.arguments([]string{c.verb, "billing"}); err != nil {
				t.Fatal(err)
			}
			got := ""
			if err := q.do(ctx, &output{Writer: &out}, target{o, "memory"}); err != nil {
				got = err.Error()
			}
			if got += out.String(); got != c.want || o.left != c.left {
				t.Errorf("%q, %d left; want %q, %d", got, o.left, c.want, c.left)
			}
			stop()
		})
	}
}
