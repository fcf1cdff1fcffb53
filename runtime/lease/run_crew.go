package lease

import (
	"context"
	"hash/maphash"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/leasegen/leasegen/runtime/backend"
)

// runLanes handles p.ms[from:to] by as many workers as the consumer has, the messages of one key in
// order. Beside a slow message the others go on with batches that were read since, which
// become part of the pass.
func (t *turn) runLanes(ctx context.Context, from, to int) {
	if t.r.c.spec.Workers == 1 || to-from == 1 && !t.mayGrow(to) {
		t.sequence(from, to).run(ctx)
		return
	}
	c := &crew{turn: t, seed: maphash.MakeSeed(), lines: map[string]*line{}, freed: make(chan struct{}, 1),
		batches: slices.ContainsFunc(t.r.c.spec.Handlers, func(hd Handler) bool { return hd.batch })}
	c.halt.Store(math.MaxInt64)
	c.queue(from, to)
	c.run(ctx)
	to += c.grown
	// Where one worker had to stop and others got further, a message stays parked, or is parked,
	// due at once: the cursor can pass it, and no message is handled twice.
	out := t.p.out[from:to]
	for last := len(out) - 1; last >= 0; last-- {
		if out[last].verdict == undecided {
			continue
		}
		for i := range out[:last] {
			switch {
			case out[i].verdict != undecided:
			case t.p.parked != nil:
				out[i] = outcome{verdict: stays}
			default:
				out[i] = outcome{verdict: parked, lane: t.p.lane(t.r.c.spec.Retry.Order, from+i)}
			}
		}
		break
	}
}

// crewReach is how many batches a pass may grow to beside a slow message. All that is handled
// after it is handled again when the process crashes.
const crewReach = 16

// grows reports that passes of the consumer grow beside slow messages.
func (c *Consumer) grows() bool { return c.spec.Workers > 1 && c.spec.Retry.Order != OrderBlock }

// mayGrow reports that more batches may be added to a pass that is handled up to to.
func (t *turn) mayGrow(to int) bool {
	return t.r.c.grows() && t.p.parked == nil && to == len(t.p.ms) && !t.h.careful()
}

// crew is the workers of one pass.
type crew struct {
	turn    *turn
	seed    maphash.Seed
	batches bool // a handler takes many messages: lines are of several keys, which it is called with
	halt    atomic.Int64
	freed   chan struct{} // a hint that a worker has ended

	mu     sync.Mutex // guards what follows and p.ms, p.out, p.read, p.starts
	lines  map[string]*line
	ready  []*line
	active int
	grown  int // messages added to the pass
}

// mixesKeys reports that a lane of a parked pass holds messages of several keys, and others of these
// keys may be in other lanes: what is replayed waits in the lane of its key, whatever the order.
func (p *pass) mixesKeys(o Order) bool {
	return p.parked != nil && (o == OrderBlock || slices.ContainsFunc(p.parked, func(m backend.ParkedMessage) bool {
		return m.Lane != m.Key && m.Lane != OrderNone.lane(&m.Raw)
	}))
}

// line is messages that are handled in order: the ones of a key, or all of a parked pass whose lanes
// mix keys.
type line struct {
	index  []int // in the pass
	behind map[string]struct{}
	busy   bool // being worked on, or ready to be
}

// queue puts p.ms[from:to] in line.
func (c *crew) queue(from, to int) {
	mixed := c.turn.p.mixesKeys(c.turn.r.c.spec.Retry.Order)
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := from; i < to; i++ {
		name := c.turn.p.ms[i].Key // one that waits alone is still not called beside others of its key
		if mixed {
			name = ""
		}
		if c.batches {
			name = strconv.Itoa(int(maphash.String(c.seed, name) % uint64(c.turn.r.c.spec.Workers)))
		}
		l := c.lines[name]
		if l == nil {
			l = &line{}
			c.lines[name] = l
		}
		if l.index = append(l.index, i); !l.busy {
			l.busy = true
			c.ready = append(c.ready, l)
		}
	}
}

// run returns when all that the crew has begun is done.
func (c *crew) run(ctx context.Context) {
	var wg sync.WaitGroup
	for {
		c.mu.Lock()
		for len(c.ready) > 0 && c.active < c.turn.r.c.spec.Workers {
			l := c.ready[0]
			c.ready = c.ready[1:]
			c.active++
			wg.Go(func() { c.work(ctx, l) })
		}
		active := c.active
		c.mu.Unlock()
		if active == 0 {
			break
		}
		if active < c.turn.r.c.spec.Workers && c.grow(ctx) {
			continue
		}
		select {
		case <-c.freed:
		case <-c.turn.h.more:
		}
	}
	wg.Wait()
}

// work handles what is in a line, and goes on with others.
func (c *crew) work(ctx context.Context, l *line) {
	for l != nil {
		c.mu.Lock()
		q := &sequence{turn: c.turn, index: l.index, out: make([]outcome, len(l.index)), behind: l.behind, halt: &c.halt}
		for _, i := range l.index {
			q.ms = append(q.ms, c.turn.p.ms[i])
		}
		l.index = nil
		c.mu.Unlock()
		q.run(ctx)
		c.mu.Lock()
		for k, i := range q.index {
			c.turn.p.out[i] = q.out[k]
		}
		l.behind = q.behind
		if l.busy = len(l.index) > 0; l.busy {
			c.ready = append(c.ready, l)
		}
		l = nil
		if len(c.ready) > 0 {
			l = c.ready[0]
			c.ready = c.ready[1:]
		} else {
			c.active--
		}
		c.mu.Unlock()
	}
	hint(c.freed)
}

// grow adds the next batch to the pass, if there is one and it may.
func (c *crew) grow(ctx context.Context) bool {
	c.mu.Lock()
	at := len(c.turn.p.ms)
	may := c.turn.mayGrow(at) && len(c.turn.p.read) < crewReach && !c.turn.h.stopped(ctx)
	c.mu.Unlock()
	if !may {
		return false
	}
	c.turn.r.mu.Lock()
	if len(c.turn.h.next) == 0 || c.turn.h.yield || c.turn.h.leaving() {
		c.turn.r.mu.Unlock()
		return false
	}
	f := c.turn.r.nextBatch(c.turn.h)
	c.turn.r.queueRead(c.turn.h)
	c.turn.r.mu.Unlock()
	c.turn.r.kick()
	c.mu.Lock()
	c.turn.p.add(f)
	c.grown += len(f.Messages)
	c.mu.Unlock()
	c.queue(at, at+len(f.Messages))
	return true
}
