package lease

import (
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/leasegen/leasegen/runtime/backend"
)

// work is what one consumer does under one session, in three parts. Each has its own state and lock, and a group of files:
//
//	owner  (own*.go)   acquires leases, keeps to its fair share, renews, gives back, loses
//	runner (run*.go)   reads messages, calls handlers, decides what becomes of each message
//	storer (store.go)  commits the progress of many leases at once, fenced
//
// A message passes through them like this:
//
//	runner.hear      (run.go)          the feed has news of its resource
//	runner.startRead (run_read.go)     one Fetch for many resources brings it
//	runner.step      (run.go)          its resource gets a turn
//	turn.process     (run_turn.go)     the pass that it came with is handled, in the order of its keys
//	turn.lanes       (run_crew.go)     with workers: keys are shared out among them
//	sequence.call    (run_sequence.go) its handler is called, with a batch or alone
//	sequence.fail    (run_sequence.go) a failed batch is handled one by one; a failed message goes on below
//	Retry.judge      (retry.go)        again later, or a dead letter
//	sequence.setAside (run_sequence.go) the verdict, and the messages of its key that wait behind it
//	turn.settle      (run_settle.go)   the verdicts become Progress
//	storer.start     (store.go)        the Progress of many resources is committed
//	runner.stored    (run_settle.go)   its resource is idle, and may have its next turn
//
// With a transaction, run_tx.go takes the place of the last three. Messages that failed come back through
// run_parked.go; run_careful.go finds the ones that kill their process.
//
// Locks are taken in the order owner.mu, streams.mu, runner.mu, storer.mu; the locks of the smaller parts come after owner.mu, and no
// other lock is taken under them. A part calls one before it without a lock of its own.
type work struct {
	*scope
	own   *owner
	run   *runner
	store *storer
}

// scope is what the parts of a work share: for whom they work, under which session, and on what.
type scope struct {
	c      *Consumer
	s      *session
	be     Backend
	caps   backend.Capabilities
	info   backend.ConsumerInfo
	log    *slog.Logger
	course *progress
	calls  sync.WaitGroup // of the backend, under way
}

func newWork(c *Consumer, s *session, p *process) *work {
	course := newProgress()
	x := &scope{c: c, s: s.as(caller{left: &c.left, progress: course}), be: p.be, caps: p.be.Capabilities(), info: c.Info(),
		log: c.logger.With("consumer", c.Name()), course: course}
	w := &work{scope: x, own: newOwner(x), run: newRunner(x)}
	w.store = newStorer(x, w.run)
	w.own.run, w.own.store = w.run, w.store
	w.run.own, w.run.store = w.own, w.store
	return w
}

// runs reports that the consumer has one Run handler and no messages.
func (x *scope) runs() bool { return x.info.Per == PerCluster || x.info.Announced }

// start begins the loops of the work; they end with its session.
func (w *work) start(wg *sync.WaitGroup) {
	wg.Go(w.own.names.register)
	wg.Go(w.own.keepShare)
	wg.Go(w.own.release)
	wg.Go(w.run.schedule)
	wg.Go(w.store.run)
	wg.Go(w.run.stuck.watch)
	wg.Go(w.watchProgress)
	switch {
	case w.info.Announced:
		wg.Go(w.own.announced.announce)
	case w.info.Per == PerStream:
		wg.Go(w.own.streams.sweep)
	}
	if w.info.Lock == LockRow {
		wg.Go(w.own.rows.renewRows)
		wg.Go(w.own.rows.watchRows)
	}
}

// hear passes on news, and makes known what the backend may have to learn.
func (w *work) hear(n *backend.News) {
	resources := w.resourcesIn(n)
	if len(resources) == 0 {
		return
	}
	absent := w.run.hear(resources)
	switch w.info.Per {
	case PerTopic:
		w.own.names.registerThese(w.own.names.unknown(resources))
	case PerStream:
		w.own.names.registerThese(absent)
	}
}

// resourcesIn returns the resources of the consumer that have news.
func (x *scope) resourcesIn(n *backend.News) []string {
	if x.runs() {
		return nil
	}
	matches := func(topic string) bool { return backend.MatchTopic(x.info.Topics, topic) }
	named := n.Resources[x.info.Name]
	switch {
	case x.info.Per == PerTopic && x.info.Source == nil:
		return slices.DeleteFunc(slices.Clone(n.Topics), func(topic string) bool { return !matches(topic) })
	case x.info.Per != PerGroup:
		return named
	case len(named) > 0 || x.info.Source == nil && slices.ContainsFunc(n.Topics, matches):
		return []string{backend.Whole}
	}
	return nil
}

func isLost(err error) bool { return errors.Is(err, backend.ErrSessionLost) }
