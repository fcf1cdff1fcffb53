package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"
)

// Group runs several consumers in one process under one session, with one heartbeat,
// per backend.
type Group struct {
	processes []*process
}

// NewGroup returns an empty group.
func NewGroup() *Group { return &Group{} }

// Add adds a consumer. It returns an error when the group already has one of that
// name on that backend. Call it before Run.
func (g *Group) Add(c *Consumer) error {
	for _, p := range g.processes {
		if p.be != c.backend {
			continue
		}
		for _, other := range p.consumers {
			if other.Name() == c.Name() {
				return fmt.Errorf("lease: consumer %q was added to the group twice; one process works for a consumer once", c.Name())
			}
		}
		p.consumers = append(p.consumers, c)
		return nil
	}
	g.processes = append(g.processes, &process{
		be: c.backend, log: c.logger, consumers: []*Consumer{c},
	})
	return nil
}

// Run runs all consumers until ctx is cancelled, then drains, releases and returns nil.
// It returns an error at once when a backend cannot be used. Faults that come later
// are logged and outlived.
func (g *Group) Run(ctx context.Context) error {
	if len(g.processes) == 0 {
		return errors.New("lease: the group has no consumers")
	}
	for _, p := range g.processes {
		infos := make([]ConsumerInfo, len(p.consumers))
		for i, c := range p.consumers {
			infos[i] = c.Info()
		}
		if err := p.be.Check(ctx, infos); err != nil {
			if ctx.Err() != nil {
				return nil // stopped before it began
			}
			others := ""
			if n := len(p.consumers); n > 1 {
				others = fmt.Sprintf(" and the %d others of its group", n-1)
			}
			return fmt.Errorf("lease: consumer %q%s cannot start: %w", p.consumers[0].Name(), others, err)
		}
	}
	var wg sync.WaitGroup
	for _, p := range g.processes {
		wg.Go(func() { p.keep(ctx, &wg, p.consumers) })
	}
	wg.Wait()
	return nil
}

// process is what one operating-system process does on one backend.
type process struct {
	be        Backend
	log       *slog.Logger
	consumers []*Consumer
}

// youngSession is how long a session must have lived for the next one to be opened almost
// at once: a broken connection costs a moment.
const youngSession = time.Second

// keep lives one incarnation after the other until ctx is cancelled. A consumer whose
// handler does not return after its lease is lost gets no new leases until it does;
// the others go on without it.
func (p *process) keep(ctx context.Context, wg *sync.WaitGroup, consumers []*Consumer) {
	var failed backoff
	lost := "" // the session before, when nobody has to wait for what it held
	for ctx.Err() == nil {
		s, err := p.open(ctx, consumers, lost)
		if err != nil {
			failed.pause(ctx, p.log, "opening a session failed", err)
			continue
		}
		opened := now()
		p.live(ctx, s, consumers)
		if errors.Is(context.Cause(s.ctx), ErrHandover) {
			return // drained
		}
		p.log.Error("session lost", "session", s.id, "reason", context.Cause(s.ctx))
		if opened.since() > youngSession {
			failed.reset()
		}
		failed.wait(ctx) // whatever ends sessions young is not asked without a pause
		ended := now()
		var idle []*Consumer
		for _, c := range consumers {
			if c.returned(context.WithoutCancel(ctx), s.ttl/4-ended.since()) || ctx.Err() != nil {
				idle = append(idle, c)
				continue
			}
			c.logger.Error("a handler ignores its cancelled context; the consumer gets no leases here until it returns",
				"consumer", c.Name(), "resources", c.busyResources())
			wg.Go(func() {
				for !c.returned(ctx, time.Second) && ctx.Err() == nil {
				}
				p.keep(ctx, wg, []*Consumer{c})
			})
		}
		lost = s.id
		if len(idle) < len(consumers) || slices.ContainsFunc(consumers, func(c *Consumer) bool { return c.Info().Grace > 0 }) {
			lost = ""
		}
		if consumers = idle; len(consumers) == 0 {
			return
		}
	}
}

// returned waits up to d for all handlers of the consumer to return.
func (c *Consumer) returned(ctx context.Context, d time.Duration) bool {
	for deadline := now(); ; {
		if len(c.busyResources()) == 0 {
			return true
		}
		if deadline.since() > d || !pause(ctx, 5*time.Millisecond) {
			return false
		}
	}
}

// open opens a session for the consumers; the shortest TTL among them is its TTL.
func (p *process) open(ctx context.Context, consumers []*Consumer, lost string) (*session, error) {
	spec := SessionSpec{ID: newID(), Replaces: lost, Host: hostname(), PID: os.Getpid(), Advisory: true}
	var margin time.Duration
	for _, c := range consumers {
		if spec.TTL == 0 || c.spec.TTL < spec.TTL || c.spec.TTL == spec.TTL && c.spec.Margin > margin {
			spec.TTL, margin = c.spec.TTL, c.spec.Margin
		}
		spec.Consumers = append(spec.Consumers, c.Name())
		if len(c.spec.Topics) > 0 {
			if spec.Topics == nil {
				spec.Topics = map[string][]string{}
			}
			spec.Topics[c.Name()] = c.spec.Topics
		}
		spec.Advisory = spec.Advisory && c.spec.Lock == LockAdvisory
	}
	return openSession(ctx, p.be, spec, margin, p.log, func(o Observation) {
		for _, c := range consumers {
			c.observe(o)
		}
	})
}

// live is one incarnation: it returns when the session is lost, or when ctx is
// cancelled and everything is drained and released.
func (p *process) live(ctx context.Context, s *session, consumers []*Consumer) {
	works := make([]*work, len(consumers))
	for i, c := range consumers {
		works[i] = newWork(c, s, p)
	}
	var wg sync.WaitGroup
	wg.Go(s.watch)
	wg.Go(s.beat)
	wg.Go(func() { p.listen(s, works) })
	wg.Go(func() { p.own(s, works) })
	wg.Go(func() { p.maintain(s, works) })
	for _, w := range works {
		wg.Go(w.schedule)
		wg.Go(w.store)
		wg.Go(w.watchStuck)
		switch {
		case w.info.Announced:
			wg.Go(w.announce)
		case w.info.Per == PerStream:
			wg.Go(w.sweep)
		}
		if w.info.Lock == LockRow {
			wg.Go(w.renewRows)
			wg.Go(w.watchRows)
		}
	}
	select {
	case <-s.ctx.Done():
	case <-ctx.Done():
		p.drain(s, works)
	}
	reason := context.Cause(s.ctx)
	for _, w := range works {
		w.loseAll(reason)
	}
	s.observe(ObservedSession{Session: s.id, Reason: reason.Error()})
	wg.Wait()
	for _, w := range works {
		w.calls.Wait()
		w.loseAll(reason) // what an Acquire that was under way has brought
	}
}

// drain ends an incarnation well: handlers finish the call they are in, progress is
// committed, leases are released, the session is closed. What rests when all else does is
// given away by the end of the session, in one step: the next owner need not wait for two.
// What has not returned when its consumer's drain time is over is cancelled; if it still does
// not return its lease is left to expire, because a lease is never released while a handler
// runs.
func (p *process) drain(s *session, works []*work) {
	for _, w := range works {
		w.giveAll()
	}
	left, rest := works, false
	for began, late := now(), false; !late && s.alive(); s.awaitSettled() {
		took := began.since()
		left = slices.DeleteFunc(slices.Clone(left), (*work).gone)
		if rest = allRest(left); rest {
			break
		}
		late = true
		for _, w := range left {
			limit := w.c.spec.Drain
			if took > limit {
				w.cancelAll(fmt.Errorf("%w: the process stops and its drain time of %v is over", ErrHandover, limit))
			}
			late = late && took > limit+min(s.ttl/4, 2*time.Second)
		}
	}
	if !s.alive() {
		return
	}
	s.end(fmt.Errorf("%w: the process stopped", ErrHandover)) // first: what is under way must not find a closed session
	if !rest {
		for _, w := range left {
			w.log.Error("handlers or the backend did not return in time; their leases are left to expire", "leases", w.owned(), "session", s.id)
		}
		return
	}
	if err := s.close(); err != nil {
		p.log.Warn("closing the session failed; it will expire", "session", s.id, "error", err)
		return
	}
	for _, w := range left {
		w.ended()
	}
}

// allRest reports that all works rest. Those that do while others do not are told to release
// what they hold.
func allRest(works []*work) bool {
	var resting []*work
	for _, w := range works {
		w.mu.Lock()
		if w.rests() {
			resting = append(resting, w)
		}
		w.mu.Unlock()
	}
	if len(resting) == len(works) {
		return true
	}
	for _, w := range resting {
		w.mu.Lock()
		w.early = true
		w.mu.Unlock()
		w.kick()
	}
	return false
}

// listen passes news on to whom it concerns. It opens the feed before it looks for
// resources, so that none can slip between.
func (p *process) listen(s *session, works []*work) {
	infos := make([]ConsumerInfo, len(works))
	for i, w := range works {
		infos[i] = w.info
	}
	var failed backoff
	for s.ctx.Err() == nil {
		err := p.follow(s, infos, works, &failed)
		if err != nil {
			for _, w := range works {
				w.doubtHeld()
			}
			failed.pause(s.ctx, p.log, "feed failed", err)
		}
	}
}

func (p *process) follow(s *session, infos []ConsumerInfo, works []*work, failed *backoff) error {
	ctx := s.ctx
	feed, err := p.be.OpenFeed(ctx, infos)
	if err != nil {
		return err
	}
	defer feed.Close()
	for _, w := range works {
		if err := do(ctx, func(ctx context.Context) error { return p.be.Register(ctx, w.info, nil) }); err != nil {
			return err
		}
		w.dirtyAll()
		w.parkedDue(0) // a replay may have been missed too
	}
	s.hintOwnership()
	for {
		news, err := feed.Next(ctx)
		if err != nil {
			return err
		}
		failed.reset()
		if news.Ownership {
			s.hintOwnership()
		}
		for _, w := range works {
			if news.Parked {
				w.parkedDue(0)
				w.hintSweep() // perhaps of streams that were retired
			}
			fresh := w.hear(&news)
			if len(fresh) == 0 {
				continue
			}
			if err := do(ctx, func(ctx context.Context) error { return p.be.Register(ctx, w.info, fresh) }); err != nil {
				return err
			}
			w.know(fresh)
			if w.info.Per != PerStream || w.room() > 0 {
				s.hintOwnership()
			}
		}
	}
}

const maintainEvery = 30 * time.Second

// maintain asks the backend to do its housekeeping now and then.
func (p *process) maintain(s *session, works []*work) {
	infos := make([]ConsumerInfo, len(works))
	for i, w := range works {
		infos[i] = w.info
	}
	for pause(s.ctx, jitter(maintainEvery)) {
		report, err := p.be.Maintain(s.ctx, infos)
		if s.ctx.Err() != nil {
			return
		}
		if err != nil {
			p.log.Warn("maintenance failed, trying again later", "error", err)
		}
		if n := report.DeadLettersDropped; n > 0 {
			p.log.Warn("dead letters were dropped, the oldest first, because their bound was reached", "dropped", n)
		}
		s.observe(ObservedMaintain{MaintainReport: report, Err: err})
	}
}
