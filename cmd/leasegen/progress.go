package main

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"
)

// progress says on a terminal, on standard error, how far a command has got. Its zero value is silent.
type progress struct{ term *output }

func (e *env) progress() progress {
	if o := e.output(e.Stderr); o.redraws {
		return progress{o}
	}
	return progress{}
}

// show replaces the line that was shown before. Without text it clears that line.
func (p progress) show(text string) {
	if p.term == nil {
		return
	}
	p.term.resize()
	if p.term.width > 0 {
		text = cut(text, p.term.width-1)
	}
	fmt.Fprintf(p.term, "\r%s\x1b[K", text)
}

// count shows how many are done since a moment, of all if that is known.
func (p progress) count(done string, n, all int, since time.Time) {
	rate, of := float64(n)/max(time.Since(since).Seconds(), 0.001), ""
	if all < math.MaxInt {
		of = " of " + number(all)
	}
	p.show(fmt.Sprintf("%s %s%s, %s a second", done, number(n), of, number(int(rate))))
}

// clock shows for how long something has been going on, from its first second, until stop.
func (p progress) clock(what string) (stop func()) {
	if p.term == nil {
		return func() {}
	}
	began, done := time.Now(), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer p.show("")
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.show(fmt.Sprintf("%s, %d s", what, int(time.Since(began).Seconds())))
			case <-done:
				return
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

// A step of a change takes so many messages: the first one firstStep, the next one twice as many while they take less than
// stepTime. No statement grows with all there is, and a user who interrupts waits for one step.
const (
	firstStep = 500
	mostStep  = 32_000
	stepTime  = 250 * time.Millisecond
)

// inSteps calls do for at most so many, math.MaxInt if it is not known how many there are, until it says that there are no more. It
// returns how many it has done. When ctx ends, it does so between two steps.
func (p progress) inSteps(ctx context.Context, verb string, most int, do func(ctx context.Context, most int) (n int, more bool, err error)) (done int, err error) {
	defer p.show("")
	began, size := time.Now(), firstStep
	for more := true; more && done < most; {
		if ctx.Err() != nil {
			return done, ctx.Err()
		}
		step := time.Now()
		var n int
		err := lasting(ctx, func(ctx context.Context) (err error) {
			n, more, err = do(ctx, min(size, most-done))
			return err
		})
		if done += n; err != nil {
			return done, err
		}
		p.count(verb, done, most, began)
		if time.Since(step) < stepTime {
			size = min(2*size, mostStep)
		}
	}
	return done, nil
}

// lasting calls do with a context that ends some time after ctx: what is under way comes to its end, so that it can be
// said how far that is.
func lasting(ctx context.Context, do func(context.Context) error) error {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(patience):
			cancel()
		case <-longer.Done():
		}
	})()
	return do(longer)
}
