package leaseredis

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
)

// The bounds of what one script call publishes: a script stops the server while it runs.
const (
	publishEvents = 1000
	publishBytes  = 1 << 20
)

// publisher publishes messages.
type publisher struct {
	*streams
	numbering  numbering
	middleware []backend.PublishMiddleware
	around     backend.Publishing
}

// Publish appends events to the log, in their order. Events of one topic, or of topics that
// share a hash tag, are appended all or none as long as they are at most 1,000 and 1 MB, and 2,500
// entries with the copies for consumers that do not read by topic, where an entry counts once more for
// each 3 kB. The rest, or what goes to other tags, follows in further steps. How far it got is unknown
// when Publish returns an error: it has then tried each step for up to ten seconds, and appends no event twice.
//
// Between topics of different tags, what is published later has a greater id if the same process
// has published both, or has read the one before it published the other; otherwise the clocks
// of their servers decide.
func (p *publisher) Publish(ctx context.Context, events []backend.Event) error {
	return p.around.Publish(ctx, events, false, p.publish)
}

func (p *publisher) publish(ctx context.Context, events []backend.Event) error {
	if err := backend.CheckEvents(events); err != nil {
		return err
	}
	for len(events) > 0 {
		n, err := p.publishSome(ctx, events)
		if err != nil {
			return fail("publish", explained(err))
		}
		events = events[n:]
	}
	return nil
}

// publishSome appends the first events, in one step, and returns how many.
func (p *publisher) publishSome(ctx context.Context, events []backend.Event) (n int, err error) {
	var a *attempt
	defer func() { a.over() }()
	err = p.repeat(ctx, func() error {
		sh, err := p.shape(ctx)
		if err != nil {
			return err
		}
		if tag := sh.tagOf(events[0].Topic); a == nil || a.of.tag != tag { // the namespace was made again with others
			a.over()
			a = p.numbering.begin(tag)
		}
		reply, err := p.run(ctx, a.of.tag, scripts.publish, p.publishArgs(sh, a, events)...)
		r := list(reply)
		if err != nil || len(r) != 2 || number(r[1]) < 1 {
			return unexpected(answer{reply, err})
		}
		p.saw(number(r[0]))
		n = int(number(r[1]))
		return nil
	})
	return n, err
}

// numbering numbers the attempts to publish of this process, by tag. The server keeps those that are not over, so that
// a repeated one is carried out once, and the number below which all are.
type numbering struct {
	mu   sync.Mutex
	id   string
	tags map[int]*attempts
}

type attempts struct {
	tag  int
	last int64
	open map[int64]struct{}
}

// attempt is one step, which may have to be repeated.
type attempt struct {
	n      *numbering
	of     *attempts
	number int64
}

func (n *numbering) begin(tag int) *attempt {
	n.mu.Lock()
	defer n.mu.Unlock()
	of := n.tags[tag]
	if of == nil {
		of = &attempts{tag: tag, open: map[int64]struct{}{}}
		n.tags[tag] = of
	}
	of.last++
	of.open[of.last] = struct{}{}
	return &attempt{n, of, of.last}
}

// low is the least number of those that are not over.
func (a *attempt) low() int64 {
	a.n.mu.Lock()
	defer a.n.mu.Unlock()
	low := a.number
	for n := range a.of.open {
		low = min(low, n)
	}
	return low
}

func (a *attempt) over() {
	if a == nil {
		return
	}
	a.n.mu.Lock()
	defer a.n.mu.Unlock()
	delete(a.of.open, a.number)
}

// publishArgs are the arguments of the step for the first events that share a tag.
func (p *publisher) publishArgs(sh *shape, a *attempt, events []backend.Event) []any {
	args := []any{a.n.id, a.number, a.low(), p.seen.Load()}
	n, size := 0, 0
	for ; n < len(events) && n < publishEvents; n++ {
		e := &events[n]
		if n > 0 && (size+len(e.Payload) > publishBytes || sh.tagOf(e.Topic) != a.of.tag) {
			break
		}
		size += len(e.Payload)
		slot := ""
		if e.Key != "" {
			slot = strconv.Itoa(sh.slotOf(e.Key))
		}
		due := int64(0)
		if !e.At.IsZero() {
			due = max(e.At.UnixMicro(), 0)
		}
		args = append(args, e.Topic, e.Kind, e.Key, slot, headersJSON(e.Headers), e.Payload, e.ID, due, microseconds(e.After))
	}
	return args
}

// microseconds is a duration as scripts take it; what has begun counts as one.
func microseconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}

// saw notes the id of a message, so that messages published from here on have greater ones.
func (st *streams) saw(id int64) {
	for {
		old := st.seen.Load()
		if id <= old || st.seen.CompareAndSwap(old, id) {
			return
		}
	}
}

// newAttempt is an id that a call, or a process, has to itself.
func newAttempt() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// onHold is the word of a script that waits until a view is filled.
const onHold = "LEASEHOLD"

// foreignKey is the word of a script that found something else in a key.
const foreignKey = "LEASEFOREIGN"

// explained says more of an error that the user can do something about.
func explained(err error) error {
	if _, what, ok := strings.Cut(err.Error(), foreignKey+" "); ok {
		return fmt.Errorf("key %s that another program put there; rename or delete it", what)
	}
	if redis.HasErrorPrefix(err, "OOM") {
		return fmt.Errorf("the server's memory is full: raise maxmemory, or see by leasegen status who is behind: %w", err)
	}
	return err
}
