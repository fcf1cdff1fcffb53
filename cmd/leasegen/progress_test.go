package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
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
		n, err := p.inSteps(t.Context(), "purged", 10_000, func(_ context.Context, most int) (int, bool, error) {
			asked = append(asked, most)
			time.Sleep(time.Duration(most) * 100 * time.Microsecond)
			return most, true, nil
		})
		if want := []int{500, 1000, 2000, 4000, 2500}; n != 10_000 || err != nil || !slices.Equal(asked, want) {
			t.Errorf("%d, %v in steps of %v, want %v", n, err, asked, want)
		}
		if got := shown.String(); !strings.HasPrefix(got, "\rpurged 500 of 10,000, 10,000…\x1b[K\rpurged 1,500 of 10,000, ") || !strings.HasSuffix(got, "\r\x1b[K") {
			t.Errorf("shown: %q", got)
		}
		asked = nil
		n, err = progress{}.inSteps(t.Context(), "purged", 10_000, func(_ context.Context, most int) (int, bool, error) {
			asked = append(asked, most)
			return 700 / len(asked), len(asked) == 1, nil
		})
		if n != 350+700 || err != nil || len(asked) != 2 {
			t.Errorf("%d, %v in steps of %v: the last one has said so", n, err, asked)
		}
	})
}

// tireless is an operator with more dead letters than one step takes.
type tireless struct {
	operate.Operator
	left  int
	steps []int
	then  func() error // after each step
}

func (o *tireless) Status(context.Context) ([]operate.ConsumerStatus, error) {
	return []operate.ConsumerStatus{{Consumer: "billing", DeadLetters: o.left}}, nil
}

func (o *tireless) Purge(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	n := min(f.Limit, o.left)
	o.steps = append(o.steps, n)
	err := o.then()
	if ctx.Err() != nil { // undone
		return 0, ctx.Err()
	}
	o.left -= n
	return n, err
}

// Replay puts back what dies again at once, at the age of zero.
func (o *tireless) Replay(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	time.Sleep(time.Millisecond)
	if len(o.steps) > 0 && f.MinAge < time.Duration(len(o.steps))*time.Millisecond {
		return 0, errors.New("what has died since is selected")
	}
	n := min(f.Limit, o.left)
	o.steps = append(o.steps, n)
	return n, o.then()
}

func TestChangeInSteps(t *testing.T) {
	for name, c := range map[string]struct {
		verb  string
		limit int
		then  func(stop func(), step int) error
		want  string // output or error
		left  int
	}{
		"whole": {verb: "purge", want: "purged 3,000 of 3,000 dead letters of billing, in memory\n"},
		"bound": {verb: "purge", limit: 700, want: "purged 700 of 3,000 dead letters of billing, in memory\n", left: 2300},
		"dying again": {verb: "replay", want: "replayed 3,000 of 3,000 dead letters of billing, in memory\n" +
			"they wait until a process runs it; see what becomes of them: leasegen status billing\n", left: 3000},
		"interrupted": {verb: "purge", then: func(stop func(), _ int) error {
			stop()
			return nil
		}, want: "interrupted: purged 500 of 3,000 dead letters of billing, in memory; the same command goes on", left: 2500},
		"failed": {verb: "purge", then: func(_ func(), step int) error {
			if step == 2 {
				return errors.New("the server has gone")
			}
			return nil
		}, want: "purged 1,500 of 3,000 dead letters of billing, in memory; then: the server has gone", left: 1500},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			o := &tireless{left: 3000}
			o.then = func() error {
				if c.then == nil {
					return nil
				}
				return c.then(stop, len(o.steps))
			}
			var out strings.Builder
			q := dlq{format: "text", yes: true, filter: operate.DeadLetterFilter{Limit: c.limit}}
			if err := q.arguments([]string{c.verb, "billing"}); err != nil {
				t.Fatal(err)
			}
			got := ""
			if err := q.do(ctx, &output{Writer: &out}, target{Operator: o, where: "memory"}); err != nil {
				got = err.Error()
			}
			if got += out.String(); got != c.want || o.left != c.left {
				t.Errorf("%q, %d left; want %q, %d", got, o.left, c.want, c.left)
			}
			stop()
		})
	}
}

// sprawling is an operator with many parked messages and dead letters, that are interrupted after some steps.
type sprawling struct {
	tireless
	places []string // where those that were made due were listed
	moved  bool
}

func (o *sprawling) Parked(_ context.Context, f operate.ParkedFilter) (list []operate.ParkedInfo, err error) {
	from, _ := strconv.Atoi(f.After)
	for i := from; i < o.left && len(list) < f.Limit; i++ {
		list = append(list, operate.ParkedInfo{Place: strconv.Itoa(i + 1), MessageID: strconv.Itoa(i)})
	}
	return list, nil
}

func (o *sprawling) RetryParked(_ context.Context, f operate.ParkedFilter) (int, error) {
	o.places = append(o.places, f.After)
	o.steps = append(o.steps, f.Limit)
	return f.Limit - 1, o.then() // one was handled between
}

func (o *sprawling) Cursors(context.Context, string, string, int) ([]operate.CursorStatus, error) {
	return nil, nil
}

func (o *sprawling) SetCursor(context.Context, string, string, operate.CursorTarget) (int, error) {
	o.moved = o.left == 0
	return 7, nil
}

// Retries of all parked messages, and dead letters that a reset drops, go in steps. Interrupted, a command says how far it is.
func TestManyInSteps(t *testing.T) {
	for name, c := range map[string]struct {
		retry, interrupted bool
		want               string // output or error
		steps              []int
		left               int
		moved              bool
	}{
		"retry": {retry: true, want: "made 4,196 parked messages of billing due now, in memory\nthey wait until a process runs it; see what becomes of them: leasegen status billing\n",
			steps: []int{500, 1000, 2000, 700}, left: 4200},
		"retry, interrupted": {retry: true, interrupted: true,
			want: "interrupted: made 1,498 parked messages of billing due now, in memory; the same command makes the others due, too", steps: []int{500, 1000}, left: 4200},
		"reset": {want: "moved 7 cursors of billing to the beginning of the log, in memory\n", steps: []int{500, 1000, 2000, 700}, moved: true},
		"reset, interrupted": {interrupted: true, want: "interrupted: dropped 1,500 of 4,200 dead letters of billing, in memory, and moved no cursor; the same command goes on",
			steps: []int{500, 1000}, left: 2700},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			o := &sprawling{tireless: tireless{left: 4200}}
			o.then = func() error {
				if c.interrupted && len(o.steps) == 2 {
					stop()
				}
				return nil
			}
			var out, shown strings.Builder
			w := &output{Writer: &out, progress: progress{&output{Writer: &shown}}}
			var err error
			if c.retry {
				p := parked{retry: true, yes: true}
				p.filter.Consumer = "billing"
				err = p.do(ctx, w, target{Operator: o, where: "memory"})
			} else {
				err = (&cursor{verb: "reset", consumer: "billing", yes: true}).do(ctx, w, target{Operator: o, where: "memory"})
			}
			got := out.String()
			if err != nil {
				got += err.Error()
			}
			if got != c.want || !slices.Equal(o.steps, c.steps) || o.left != c.left || o.moved != c.moved {
				t.Errorf("%q in steps of %v, %d left, moved %v; want %q, %v, %d, %v", got, o.steps, o.left, o.moved, c.want, c.steps, c.left, c.moved)
			}
			if places := []string{"", "500", "1500", "3500"}; c.retry && !slices.Equal(o.places, places[:len(c.steps)]) {
				t.Errorf("listed from %q, want %q", o.places, places[:len(c.steps)])
			}
			if !strings.Contains(shown.String(), "1,49") && !strings.Contains(shown.String(), "dropped 1,500 of 4,200, ") || !strings.HasSuffix(shown.String(), "\r\x1b[K") {
				t.Errorf("shown: %q", shown.String())
			}
		})
	}
}

func TestFilterAsOfAWhileAgo(t *testing.T) {
	for f, want := range map[[2]time.Duration][2]time.Duration{{}: {time.Second, 0}, {time.Minute, time.Hour}: {time.Minute + time.Second, time.Hour + time.Second}} {
		got := asOf(operate.DeadLetterFilter{MinAge: f[0], MaxAge: f[1]}, time.Second)
		if got.MinAge != want[0] || got.MaxAge != want[1] {
			t.Errorf("%v: %v to %v, want %v", f, got.MinAge, got.MaxAge, want)
		}
	}
}
