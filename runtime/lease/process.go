package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// process is what one operating-system process does on one backend for the consumers that
// share a session.
type process struct {
	be          Backend
	log         *slog.Logger
	consumers   []*Consumer
	ttl, margin time.Duration
	left        *leftBehind
	gate        *gate
}

// check asks the backend whether it can be used, and names the consumer at fault.
func (p *process) check(ctx context.Context) error {
	check := func(cs []*Consumer) error {
		infos := make([]backend.ConsumerInfo, len(cs))
		for i, c := range cs {
			infos[i] = c.Info()
		}
		return do(of(p.calling(ctx), "check"), func(ctx context.Context) error { return p.be.Check(ctx, infos) })
	}
	err := check(p.consumers)
	if err == nil {
		return nil
	}
	if len(p.consumers) == 1 {
		return fmt.Errorf("lease: consumer %q cannot start: %w", p.consumers[0].Name(), err)
	}
	for _, c := range p.consumers {
		if alone := check([]*Consumer{c}); alone != nil {
			return fmt.Errorf("lease: consumer %q cannot start, nor do the %d others of its group: %w", c.Name(), len(p.consumers)-1, alone)
		}
	}
	return fmt.Errorf("lease: consumer %q and the %d others of its group cannot start: %w", p.consumers[0].Name(), len(p.consumers)-1, err)
}

// calling makes calls under ctx the process's own.
func (p *process) calling(ctx context.Context) context.Context {
	return context.WithValue(ctx, callerKey{}, &caller{left: p.left})
}

// youngSession is how long a session must have lived for the next one to be opened almost
// at once: a broken connection costs a moment.
const youngSession = time.Second

// returnTime is how long handlers may take to notice that their session is lost before the
// next one is opened beside them.
const returnTime = 200 * time.Millisecond

// attempt is a session about to be opened. One whose outcome is unknown is repeated, and not
// followed by another: the first may have been opened, and would count as a member for a TTL.
type attempt struct {
	id       string
	replaces string  // an attempt before, given up
	asked    instant // before it was sent for the first time; belief counts from here
}

func (a attempt) another() attempt { return attempt{id: newID(), replaces: a.id, asked: now()} }

// keep lives one incarnation after the other until ctx is cancelled. A resource on which a
// handler still runs when its lease is lost gets no new lease here until the handler returns;
// all others go on.
func (p *process) keep(ctx context.Context) {
	var failed backoff
	var short shortLived
	lost := "" // the session before, when no process has to wait for its leases
	var next attempt
	var ended instant
	answered := false // before the attempts that fail
	for ctx.Err() == nil {
		if next.id != "" && next.asked.since() > p.ttl/3 { // it may live, but not for long enough
			answered = p.spare(ctx, answered)
			next = next.another()
		} else if next.id == "" {
			next = next.another()
		}
		s, err := p.open(ctx, next, lost)
		if err != nil {
			if isLost(err) {
				next = next.another()
			}
			for _, c := range p.consumers {
				c.without(fmt.Errorf("opening a session failed: %w", err))
			}
			failed.pause(ctx, p.log, "opening a session failed", err)
			continue
		}
		opened := now()
		answered = false
		p.live(ctx, s)
		if errors.Is(context.Cause(s.ctx), ErrHandover) {
			return // drained
		}
		p.log.Error("session lost", "session", s.id, "reason", context.Cause(s.ctx))
		lived := opened.since()
		if lived > youngSession {
			failed.reset()
		}
		lost, ended = s.id, now()
		next = attempt{}
		failed.wait(ctx) // whatever ends sessions young is not asked without a pause
		short.rest(ctx, p, context.Cause(s.ctx), lived)
		for _, c := range p.consumers {
			if c.Info().Grace > 0 {
				lost = ""
			}
			if c.returned(ctx, returnTime-ended.since()) {
				continue
			}
			lost = ""
			c.logger.Error("handlers still run on leases that were lost; their resources get no leases here until they return",
				"consumer", c.Name(), "resources", few(c.busyResources()))
		}
	}
	for _, c := range p.consumers { // Run outlives its handlers, if they return soon
		c.returned(context.WithoutCancel(ctx), p.ttl/4-ended.since())
	}
}

// few is the first of many names, for the log.
func few(names []string) []string {
	slices.Sort(names)
	return names[:min(len(names), 10)]
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

// spare waits a while if the backend answers, and yet a session could not be opened for long since it answered before: each
// attempt may have added a member, whose share no process works on. It reports whether the backend answers; the first
// answer may be the end of an outage.
func (p *process) spare(ctx context.Context, answered bool) bool {
	names := make([]string, len(p.consumers))
	for i, c := range p.consumers {
		names[i] = c.Name()
	}
	_, err := call(of(p.calling(ctx), "survey"), func(ctx context.Context) ([]backend.Survey, error) { return p.be.Survey(ctx, names) })
	if err == nil && answered {
		p.log.Warn("the backend answers, but opens no session; trying again later", "after", min(2*p.ttl, time.Minute))
		pause(ctx, min(2*p.ttl, time.Minute))
	}
	return err == nil
}

// open opens a session for all consumers.
func (p *process) open(ctx context.Context, a attempt, lost string) (*session, error) {
	spec := backend.SessionSpec{ID: a.id, Replaces: cmp.Or(a.replaces, lost), TTL: p.ttl, Host: hostname(), PID: os.Getpid(), Advisory: true}
	for _, c := range p.consumers {
		spec.Consumers = append(spec.Consumers, c.Name())
		if len(c.spec.Topics) > 0 {
			if spec.Topics == nil {
				spec.Topics = map[string][]string{}
			}
			spec.Topics[c.Name()] = c.spec.Topics
		}
		spec.Advisory = spec.Advisory && c.spec.Lock == LockAdvisory
	}
	s, err := openSession(p.calling(ctx), p.be, spec, a.asked, p.margin, p.log, func(o operate.Observation) {
		for _, c := range p.consumers {
			c.observe(o)
		}
	})
	if err != nil {
		return nil, err
	}
	s.gate = p.gate
	return s.as(caller{left: p.left}), nil
}

// live is one incarnation: it returns when the session is lost, or when ctx is
// cancelled and everything is drained and released. It waits for no handler.
func (p *process) live(ctx context.Context, s *session) {
	works := make([]*work, len(p.consumers))
	for i, c := range p.consumers {
		works[i] = newWork(c, s, p)
		c.with(works[i])
	}
	var wg sync.WaitGroup
	wg.Go(s.watch)
	wg.Go(s.beat)
	for _, l := range p.listeners(s, works) {
		wg.Go(l.listen)
	}
	wg.Go(func() { p.survey(s, works) })
	wg.Go(func() { p.maintain(s, works) })
	for _, w := range works {
		w.start(&wg)
	}
	select {
	case <-s.ctx.Done():
	case <-ctx.Done():
		p.drain(s, works)
	}
	reason := context.Cause(s.ctx)
	for _, w := range works {
		w.own.loseAll(reason)
		w.c.without(reason)
	}
	s.observe(operate.ObservedSession{Session: s.id, Reason: reason.Error()})
	wg.Wait()
	for _, w := range works {
		w.calls.Wait()
		w.own.loseAll(reason) // what an Acquire that was under way has brought
	}
}
