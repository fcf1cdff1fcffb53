package lease

import (
	"context"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// feedTimeout is how long a feed may be silent: backends answer after seconds, news or not.
const feedTimeout = time.Minute

// listener passes what one feed tells on to the consumers it concerns.
type listener struct {
	be    Backend
	s     *session
	works []*work
	log   logger
}

// listeners returns one listener for all consumers of the log, and one for each that has a
// source of its own: a table that is locked or gone stops only who reads it.
func (p *process) listeners(s *session, works []*work) []*listener {
	var all []*listener
	shared := &listener{be: p.be, s: s, log: p.log}
	for _, w := range works {
		if w.info.Source == nil {
			shared.works = append(shared.works, w)
		} else {
			all = append(all, &listener{be: p.be, s: w.s, log: w.log, works: []*work{w}})
		}
	}
	if len(shared.works) > 0 {
		if len(shared.works) == 1 { // so that a failure is reported as the consumer's
			shared.s, shared.log = shared.works[0].s, shared.works[0].log
		}
		all = append(all, shared)
	}
	return all
}

// listen opens the feed, again when it fails, until the session ends. Held leases are looked at
// after each try: who has no feed polls.
func (l *listener) listen() {
	var failed backoff
	for l.s.ctx.Err() == nil {
		err := l.follow(&failed)
		for _, w := range l.works {
			w.course.feedClosed(err)
			w.own.audit.doubtHeld()
			w.run.hearAll()
			w.run.parked.lookWithin(0)
		}
		failed.pause(l.s.ctx, l.log, "feed failed", err)
	}
}

// follow opens the feed, and only then lets resources be looked for, so that none can slip between.
func (l *listener) follow(failed *backoff) error {
	feed, err := call(of(l.s.ctx, "feed"), func(ctx context.Context) (backend.Feed, error) { return l.be.OpenFeed(ctx, infosOf(l.works)) })
	if err != nil {
		return err
	}
	using := make(chan struct{}, 1) // holds a token while Next is under way, which may be left behind
	defer func() {
		select {
		case using <- struct{}{}:
			_ = do(of(context.WithoutCancel(l.s.ctx), "close feed"), func(context.Context) error { feed.Close(); return nil })
		default:
			go func() { using <- struct{}{}; feed.Close() }() // no process waits for what was left behind
		}
	}()
	for _, w := range l.works {
		w.own.names.registerAll()
		w.run.hearAll()
		w.run.parked.lookWithin(0) // a replay may have been missed too
		w.course.feedOpened()
	}
	l.s.hintOwnership()
	var pace pacer
	for {
		asked := time.Now()
		news, err := callFor(of(l.s.ctx, "feed"), feedTimeout, func(ctx context.Context) (backend.News, error) {
			using <- struct{}{}
			defer func() { <-using }()
			return feed.Next(ctx)
		})
		if err != nil {
			return err
		}
		failed.reset()
		l.tell(&news)
		pace.pause(l.s.ctx, time.Since(asked), empty(&news))
	}
}

// empty reports that there is no change.
func empty(n *backend.News) bool {
	return !n.Ownership && !n.Parked && len(n.Wanted) == 0 && len(n.Topics) == 0 && len(n.Resources) == 0
}

// tell passes news on.
func (l *listener) tell(news *backend.News) {
	if news.Ownership {
		l.s.hintOwnership()
	}
	for _, w := range l.works {
		w.course.step(listening)
		if slices.Contains(news.Wanted, w.info.Name) {
			hint(w.own.streams.wanted)
		}
		if news.Parked {
			w.run.parked.lookWithin(0)
			hint(w.own.streams.searches) // perhaps of streams that were retired
		}
		w.hear(news)
	}
}

// pacer keeps a loop from running without a pause when what it waits for returns at once.
type pacer struct{ quick int }

const (
	paceQuick = time.Millisecond      // a shorter wait counts as none
	paceEmpty = 10 * time.Millisecond // between empty answers, at least
	paceSome  = 100                   // answers with news that may come at once before they are paced too
	paceMost  = time.Second
)

// pause pauses after an answer that took so long: ever longer while empty ones come at once,
// a little while full ones do.
func (p *pacer) pause(ctx context.Context, took time.Duration, empty bool) {
	switch {
	case took >= paceQuick:
		if p.quick = 0; empty && took < paceEmpty {
			pause(ctx, paceEmpty-took)
		}
	case empty:
		p.quick++
		pause(ctx, min(time.Millisecond<<min(p.quick, 20), paceMost))
	default:
		if p.quick++; p.quick > paceSome {
			pause(ctx, 5*time.Millisecond)
		}
	}
}
