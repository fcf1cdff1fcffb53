package leasetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Each kind of call of a backend misbehaves in each way, in a cell of its own: a fault that
// lasts concerns one resource, one consumer or one process, and everything else goes on
// in between. Two consumers share each process: the victim, which the fault is about if it is
// about one, and its neighbour.
const (
	victim    = "c"
	neighbour = "d"
	poison    = "r0" // the victim's resource that a fault about one resource is about
	sick      = "p1" // the process that a fault about one process is about
)

// concern is what a fault is about.
type concern int

const (
	oneProcess  concern = iota // all calls of the sick process
	oneConsumer                // its calls that name the victim
	oneResource                // calls of any process that name the victim's poison
)

// form is the form of the victim's handlers and resources.
type form int

const (
	formPlain   form = iota
	formTx           // handlers of the transaction form
	formOnce         // handlers made with Once
	formStreams      // per stream
	formRows         // per stream, with leases that expire one by one
)

// suspect is a kind of call that may misbehave.
type suspect struct {
	op    string
	scope concern
	form  form
	// stops says that the victim's resources at the sick process need the call to go on.
	stops bool
	// retries says that only failed messages need it.
	retries bool
	// starting says that a process makes the call when it starts.
	starting bool
	// only are the ways in which it may misbehave; nil: all but flood.
	only []misbehaviour
}

var suspects = []suspect{
	{op: "Check", starting: true},
	{op: "OpenSession", starting: true},
	{op: "Heartbeat"},
	{op: "Close"},
	{op: "Register", scope: oneConsumer},
	{op: "Survey", scope: oneConsumer},
	{op: "Acquire", scope: oneConsumer, stops: true},
	{op: "Release", scope: oneConsumer, stops: true},
	{op: "Owned", scope: oneConsumer},
	{op: "OpenFeed", starting: true},
	{op: "Feed.Next", only: append([]misbehaviour{flood}, allMisbehaviours...)},
	{op: "Fetch", scope: oneResource},
	{op: "FetchParked", scope: oneConsumer, form: formTx, retries: true},
	{op: "FetchParked", scope: oneResource, form: formTx},
	{op: "Commit", scope: oneResource},
	{op: "Maintain"},
	{op: "Begin", form: formTx, stops: true},
	{op: "Tx.Commit", scope: oneResource, form: formTx},
	{op: "Tx.Rollback", form: formTx, stops: true},
	{op: "StartOnce", scope: oneResource, form: formOnce},
	{op: "Renew", scope: oneResource, form: formRows},
	{op: "Retire", scope: oneResource, form: formStreams},
}

var allMisbehaviours = []misbehaviour{hangsDeaf, hangs, fails, mute, answersLate, doubled, wrong}

// cell is one of them that misbehaves in one way.
type cell struct {
	suspect
	kind misbehaviour
}

func (c cell) name() string {
	of := ""
	if c.scope == oneResource {
		of = " for one resource"
	}
	return strings.NewReplacer(" ", "_", ",", "").Replace(c.op + of + "/" + string(c.kind))
}

func cells() (all []cell) {
	for _, s := range suspects {
		kinds := s.only
		if kinds == nil {
			kinds = allMisbehaviours
		}
		for _, k := range kinds {
			all = append(all, cell{s, k})
		}
	}
	return all
}

// misbehaveScenarios are the cells that show most of a backend whose answers get lost or come
// twice, in real time. All others concern the runtime alone: see TestMisbehaviour.
var misbehaveScenarios = inRealTime(
	"OpenSession/is_executed_twice",
	"OpenFeed/fails",
	"Survey/answers_wrongly",
	"Acquire/is_executed_twice",
	"Acquire/takes_effect_and_hangs",
	"Release/is_executed_twice",
	"Feed.Next/answers_wrongly",
	"Fetch_for_one_resource/fails",
	"Fetch_for_one_resource/answers_wrongly",
	"FetchParked/fails",
	"Commit_for_one_resource/fails",
	"Commit_for_one_resource/is_executed_twice",
	"Commit_for_one_resource/takes_effect_and_hangs",
	"Tx.Commit_for_one_resource/answers_late",
	"StartOnce_for_one_resource/is_executed_twice",
	"Retire_for_one_resource/is_executed_twice",
)

func inRealTime(names ...string) (checks []check) {
	for _, c := range cells() {
		if slices.Contains(names, c.name()) {
			checks = append(checks, check{"Misbehaving/" + c.name(), func(t testing.TB, f Factory) { runCell(t, f, c, realPace) }})
		}
	}
	return checks
}

func (c cell) hits(r request) bool {
	if r.op != c.op {
		return false
	}
	switch c.scope {
	case oneResource:
		return r.names(victim, poison)
	case oneConsumer:
		return r.process == sick && slices.Contains(r.consumers, victim)
	}
	return r.process == sick
}

// mayWait reports that the fault may hold up the message for the consumer, as long as the sick
// process is there, which has had some of the victim's resources.
func (c cell) mayWait(m posted, consumer string, had map[string]bool) bool {
	switch {
	case consumer != victim:
		return false
	case c.scope == oneResource:
		return m.resource == poison
	case c.retries:
		return m.fails()
	case c.op == "Acquire":
		return true // only the backend knows what the process has
	}
	return c.stops && had[m.resource]
}

// tempo is how fast a cell goes: in simulated time faults can last longer than any deadline.
type tempo struct {
	rounds  int           // messages of each resource while the fault lasts
	gap     time.Duration // between them
	poll    time.Duration
	hold    time.Duration // how long a message may be held up that the fault is not about
	stop    time.Duration // how long a process may take to stop while the fault lasts
	silence time.Duration // see fault
	rate    int           // calls of one kind in a second, of one process
}

var (
	simulatedPace = tempo{rounds: 25, gap: 4 * time.Second, poll: 500 * time.Millisecond, hold: 70 * time.Second, stop: 45 * time.Second, silence: time.Hour, rate: 200}
	realPace      = tempo{rounds: 12, gap: 50 * time.Millisecond, poll: 20 * time.Millisecond, hold: time.Minute, stop: time.Minute, silence: 300 * time.Millisecond, rate: 1000}
)

// posted is a message of a cell: each consumer handles it.
type posted struct {
	resource string
	n        int
	at       time.Time
}

func (m posted) key() string { return fmt.Sprint(m.resource, "#", m.n) }

// fails says that the first attempt fails, where messages can be set aside alone.
func (m posted) fails() bool { return m.n%5 == 0 }

// ward is the world of a cell.
type ward struct {
	*world
	cell
	tempo
	fault   *fault
	tallies []*tally
	all     []*process

	n      int // of the last round
	posted []posted
}

const wardResources = 6

// again is the kind of messages that name an item a second time, for the victim only.
const again = "again"

func runCell(t testing.TB, f Factory, c cell, pc tempo) {
	w := &ward{world: newWorld(t, f), cell: c, tempo: pc, fault: &fault{kind: c.kind, hits: c.hits, silence: pc.silence}}
	caps := w.be.Capabilities()
	needs(t, c.form != formTx || caps.Tx != nil && f.Effect != nil, "the backend has no transactions")
	needs(t, c.form != formOnce || caps.Ledger != nil, "the backend keeps no ledger")
	needs(t, !w.streamed() || caps.Streams != nil, "the backend has no streams")
	needs(t, c.form != formRows || caps.Rows != nil, "the backend has no leases that expire one by one")
	w.run()
}

func (w *ward) run() {
	t := w.t
	defer w.fault.end()
	w.round(wardResources)
	var patient *process
	if w.starting {
		w.admit("p2")
		w.done("before the fault")
		w.fault.begin()
		patient = w.admit(sick)
	} else {
		patient = w.admit(sick)
		w.done("before the fault")
		w.admit("p2")
		w.shared()
		w.round(wardResources)
		w.done("before the fault")
		w.fault.begin()
	}

	// While the fault lasts: processes come and go, and new resources.
	began := len(w.posted)
	var guest *process
	for i := range w.rounds {
		switch i {
		case w.rounds / 6:
			guest = w.admit("p3")
		case w.rounds / 2:
			guest.stop()
		}
		if w.op == "Owned" && i%4 == 0 {
			patient.link.loseReplies("Feed.Next", 1) // after that it compares what it holds
		}
		resources := wardResources
		if i >= w.rounds/3 {
			resources += 2
		}
		for range []int{1, 3}[i%2] { // now and then more than a batch
			w.round(resources)
		}
		time.Sleep(w.gap)
	}
	had := map[string]bool{}
	for _, a := range observations[operate.ObservedAcquire](patient) {
		had[a.Resource] = had[a.Resource] || a.Consumer == victim
	}
	w.doneUnless("while the fault lasts", time.Time{}, w.posted[began:], func(m posted, consumer string) bool {
		return w.mayWait(m, consumer, had)
	})

	// A process stops that the fault is about, and the others do all of its work but what is about the poison.
	if w.scope == oneResource {
		patient = w.at(poison)
	}
	patient.stopIt()
	asked := time.Now()
	if !w.await(w.stop, func() bool { return patient.ran.Err() != nil }) {
		t.Errorf("while the fault lasts: %s has to stop and has not after %v", patient.name, w.stop)
	}
	t.Logf("stopping took %v", time.Since(asked).Round(time.Millisecond))
	at := len(w.posted)
	w.round(wardResources)
	w.doneUnless("when the sick process is gone", time.Time{}, w.posted[at:], func(m posted, consumer string) bool {
		return w.scope == oneResource && consumer == victim && m.resource == poison
	})

	// After the fault everything is as promised.
	w.fault.end()
	patient.stop()
	w.admit("p4")
	w.round(wardResources)
	w.done("after the fault")
	w.judge()
}

// at returns the process that handled something of the victim's resource last.
func (w *ward) at(resource string) *process {
	cs := w.history(func(c call) bool { return c.consumer == victim && c.resource == resource })
	last := cs[len(cs)-1].proc
	return w.all[slices.IndexFunc(w.all, func(p *process) bool { return p.name == last })]
}

// round publishes one message for each resource.
func (w *ward) round(resources int) {
	w.n++
	for i := range resources {
		m := posted{fmt.Sprint("r", i), w.n, time.Now()}
		key := m.resource
		if m.fails() && !w.streamed() {
			key = fmt.Sprint(m.resource, "/", m.n) // no message waits behind it
		}
		es := []backend.Event{event(m.resource, key, m.n)}
		if w.form == formOnce { // names the item a second time
			es = append(es, es[0])
			es[1].Kind = again
		}
		w.publish(es...)
		w.posted = append(w.posted, m)
	}
}

// streamed says that keys are the victim's resources.
func (w *ward) streamed() bool { return w.form == formStreams || w.form == formRows }

// admit starts a process with both consumers. When it cannot start it is started again.
func (w *ward) admit(name string) *process {
	w.t.Helper()
	p := w.world.run(name, func(p *process, linked backend.Backend) func(context.Context) {
		be, calls := misbehave(linked, name, w.fault)
		w.tallies = append(w.tallies, calls)
		return func(ctx context.Context) {
			for ctx.Err() == nil {
				before := calls.besides("Check")
				err := w.team(p, be).Run(ctx)
				switch {
				case err == nil && ctx.Err() == nil:
					w.t.Errorf("%s: Run returned though its context lives", name)
					return
				case err != nil && calls.besides("Check") > before:
					w.t.Errorf("%s: Run: %v", name, err)
					return
				case err != nil: // it could not start: the fault, or a server without time for it
					w.t.Logf("%s: started again: %v", name, err)
					time.Sleep(w.gap) // as whatever supervises processes does
				}
			}
		}
	})
	w.all = append(w.all, p)
	return p
}

// team is the victim and its neighbour.
func (w *ward) team(p *process, be backend.Backend) *lease.Group {
	handle := func(_ context.Context, _ *process, m lease.Message[payload]) error {
		if (posted{n: m.Payload.N}).fails() && m.Attempt == 1 && !w.streamed() {
			return errHandler
		}
		return nil
	}
	one := []lease.Handler{lease.One("order", p.wrap(handle))}
	theirs, mine := spec(), spec()
	theirs.Name, theirs.Handlers = neighbour, one
	mine.Name, mine.Handlers = victim, one
	switch w.form {
	case formTx:
		mine.Handlers = w.inTx(handle)(p)
	case formOnce:
		item := func(m *payload) string { return fmt.Sprint(m.Key, "#", m.N) }
		mine.Handlers = []lease.Handler{
			lease.Once(lease.One("order", p.wrap(handle)), item, lease.OnUnknownRetry),
			lease.Once(lease.One(again, p.wrap(handle)), item, lease.OnUnknownRetry),
		}
		theirs.Unknown = lease.UnknownSkip
		if w.tempo == realPace { // an outcome is unknown, and its item executed again, after a lost lease or a drain cut short
			mine.TTL, mine.Drain = time.Minute, w.stop/2
		}
	case formStreams, formRows:
		mine.Per, mine.Idle = backend.PerStream, 200*time.Millisecond
		if w.form == formRows {
			mine.Lock, mine.Idle = backend.LockRow, time.Minute
		}
	}
	g := lease.NewGroup()
	for _, s := range []lease.Spec{mine, theirs} {
		c, err := lease.NewConsumer(be, s, append(p.options(), lease.WithBatch(2))...)
		if err == nil {
			err = g.Add(c)
		}
		if err != nil {
			w.t.Error(err)
		}
	}
	return g
}

// await waits for ok at the pace of the cell.
func (w *ward) await(limit time.Duration, ok func() bool) bool {
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(w.poll) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// shared waits until two processes share the leases.
func (w *ward) shared() {
	w.t.Helper()
	consumers := []string{neighbour}
	if !w.streamed() {
		consumers = append(consumers, victim)
	}
	if !w.await(w.hold, func() bool {
		for _, s := range kit.Must[[]backend.Survey](w.t)(w.be.Survey(w.t.Context(), consumers)) {
			if len(s.Members) != 2 || s.Members[0].Owned != wardResources/2 || s.Members[1].Owned != wardResources/2 {
				return false
			}
		}
		return true
	}) {
		w.t.Fatalf("two processes do not share the leases")
	}
}

// firsts returns the first success of each message, by consumer/resource#n.
func (w *ward) firsts() map[string]call {
	out := map[string]call{}
	for _, c := range w.successes() {
		k := fmt.Sprint(c.consumer, "/", c.topic, "#", c.n)
		if _, ok := out[k]; !ok {
			out[k] = c
		}
	}
	return out
}

// done checks that both consumers handle all messages that there are, from now on in time.
func (w *ward) done(when string) {
	w.t.Helper()
	w.doneUnless(when, time.Now(), w.posted, func(posted, string) bool { return false })
}

// doneUnless checks that both consumers handle the messages in time, unless they may wait. What
// was before since does not count.
func (w *ward) doneUnless(when string, since time.Time, ms []posted, mayWait func(m posted, consumer string) bool) {
	w.t.Helper()
	var held map[string]int // messages, by consumer/resource
	var longest time.Duration
	look := func() (missing int) {
		held, longest = map[string]int{}, 0
		got := w.firsts()
		for _, m := range ms {
			from := m.at
			if from.Before(since) {
				from = since
			}
			for _, consumer := range []string{victim, neighbour} {
				if mayWait(m, consumer) {
					continue
				}
				c, ok := got[consumer+"/"+m.key()]
				took := c.ended.Sub(from)
				if !ok {
					missing++
					took = time.Since(from)
				}
				if longest = max(longest, took); !ok || took > w.hold {
					held[consumer+"/"+m.resource]++
				}
			}
		}
		return missing
	}
	w.await(w.hold, func() bool { return look() == 0 })
	if look(); len(held) > 0 {
		w.t.Errorf("%s: messages held up for up to %v: %v", when, longest.Round(time.Second), held)
	}
	w.t.Logf("%s: held up for %v at most", when, longest.Round(time.Millisecond))
}

// judge checks what is true whatever misbehaves.
func (w *ward) judge() {
	t := w.t
	switch {
	case w.fault.strikes() > 0:
	case w.tempo == simulatedPace:
		t.Errorf("no call of %s was hit: the cell tests no fault", w.op)
	default: // in real time the machine decides whether the call is made while the fault lasts
		t.Logf("no call of %s was hit", w.op)
	}
	if !w.await(w.hold, func() bool {
		rest := 0
		for _, s := range kit.Must[[]operate.ConsumerStatus](t)(w.operator().Status(t.Context())) {
			if s.Consumer == victim || s.Consumer == neighbour {
				rest += int(s.LagTotal) + s.ParkedKeys
			}
		}
		return rest == 0
	}) {
		t.Errorf("after the fault: not drained: %+v", kit.Must[[]operate.ConsumerStatus](t)(w.operator().Status(t.Context())))
	}
	for _, d := range kit.Must[[]operate.DeadLetterInfo](t)(w.operator().DeadLetters(t.Context(), operate.DeadLetterFilter{})) {
		t.Errorf("a dead letter of %s on %s after %d attempts: %s", d.Consumer, d.Resource, d.Attempts, d.Reason)
	}
	for _, c := range w.history(func(c call) bool { return c.topic != c.resource }) {
		t.Errorf("%s: #%d of %s was handled under the lease of %s", c.consumer, c.n, c.topic, c.resource)
	}
	for _, consumer := range []string{victim, neighbour} {
		apart(t, w.history(func(c call) bool { return c.consumer == consumer }))
		inOrder(t, w.history(func(c call) bool { return c.consumer == consumer && c.err == nil && !(posted{n: c.n}).fails() }), byTopic)
	}
	if w.form == formOnce {
		seen := map[string]int{}
		for _, c := range w.history(func(c call) bool { return c.consumer == victim && c.err == nil }) {
			item := fmt.Sprint(c.topic, "#", c.n)
			if seen[item]++; seen[item] == 2 {
				t.Errorf("the item %s was executed twice; lost leases: %v", item, w.losses())
			}
		}
	}
	if w.form == formTx {
		allOnce(t, "effects", counts(w.f.Effects(t, w.be)), len(w.posted))
	}
	for _, p := range w.tallies {
		if rate, op := p.most(5); rate > w.rate {
			t.Errorf("a loop without a pause: %d calls of %s a second, for 5 s", rate, op)
		}
	}
	w.fault.end()
	for _, p := range w.all {
		p.stop()
	}
	if !w.await(w.hold, func() bool { return len(w.missed()) == 0 }) {
		t.Errorf("not given back: %v", w.missed())
	}
}

// losses are the leases that ended against their holders' will.
func (w *ward) losses() [][]operate.ObservedLoss {
	return each(w.all, observations[operate.ObservedLoss])
}

func (w *ward) missed() map[string]int {
	out := map[string]int{}
	for _, p := range w.tallies {
		for what, n := range p.missed() {
			out[what] += n
		}
	}
	return out
}
