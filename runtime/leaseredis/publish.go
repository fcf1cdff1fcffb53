package leaseredis

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
)

// The bounds of what one script call publishes: a script stops the server while it runs.
const (
	publishEvents = 1000
	publishBytes  = 1 << 20
)

// publishPatience is for how long a publication is tried again when the cluster changes.
const publishPatience = 10 * time.Second

// Publish appends events to the log. Events of topics that share a hash tag are appended all
// or none and in their order, as long as they are at most 1,000 and 1 MB; what is more follows
// in further steps, in order. What was appended when Publish returns an error is unknown: it
// has then tried for up to ten seconds, and appends nothing twice meanwhile.
//
// Between topics of different tags, messages are in the order of publication as far as one
// process has published them, or has read the one before it published the other; otherwise in
// the order of the clocks of their servers.
func (b *Backend) Publish(ctx context.Context, events []lease.Event) error {
	if err := lease.CheckEvents(events); err != nil {
		return err
	}
	if len(events) == 0 {
		return nil
	}
	attempt := newAttempt()
	var failed retrying
	for {
		err := b.publish(ctx, attempt, events)
		if err == nil {
			return nil
		}
		if !failed.again(ctx, err) {
			return fmt.Errorf("leaseredis: publish: %w", explained(err))
		}
	}
}

// publication is the events of one tag.
type publication struct {
	tag    int
	events []*lease.Event
	chunk  int // number of the next one
}

func (b *Backend) publish(ctx context.Context, attempt string, events []lease.Event) error {
	sh, err := b.shape(ctx)
	if err != nil {
		return err
	}
	byTag := make([]*publication, sh.tags)
	var left []*publication
	for i := range events {
		tag := sh.tagOf(events[i].Topic)
		if byTag[tag] == nil {
			byTag[tag] = &publication{tag: tag}
			left = append(left, byTag[tag])
		}
		byTag[tag].events = append(byTag[tag].events, &events[i])
	}
	for len(left) > 0 {
		steps := make([]step, len(left))
		sent := make([]int, len(left))
		for i, p := range left {
			steps[i], sent[i] = b.publishStep(sh, attempt, p)
		}
		var failed error
		rest := left[:0]
		for i, a := range b.runAll(ctx, steps) {
			if a.err != nil {
				failed = cmp.Or(failed, a.err)
				continue
			}
			b.saw(number(a.value))
			p := left[i]
			if p.events, p.chunk = p.events[sent[i]:], p.chunk+1; len(p.events) > 0 {
				rest = append(rest, p)
			}
		}
		if failed != nil {
			return failed
		}
		left = rest
	}
	return nil
}

// publishStep makes a step of the first events of p, and says of how many.
func (b *Backend) publishStep(sh *shape, attempt string, p *publication) (step, int) {
	args := make([]any, 0, 2+9*min(len(p.events), publishEvents))
	args = append(args, attempt+"."+strconv.Itoa(p.chunk), b.known.seen.Load())
	n, size := 0, 0
	for n < len(p.events) && n < publishEvents && (n == 0 || size+len(p.events[n].Payload) <= publishBytes) {
		e := p.events[n]
		slot := ""
		if e.Key != "" {
			slot = strconv.Itoa(sh.slotOf(e.Key))
		}
		due := int64(0)
		if !e.At.IsZero() {
			due = max(e.At.UnixMicro(), 0)
		}
		args = append(args, e.Topic, e.Kind, e.Key, slot, headersJSON(e.Headers), e.Payload, e.ID, due, microseconds(e.After))
		size += len(e.Payload)
		n++
	}
	return step{p.tag, scripts.publish, args}, n
}

// microseconds is a duration as scripts take it; what has begun counts as one.
func microseconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}

// saw notes the id of a message, so that messages published from here on have greater ones.
func (b *Backend) saw(id int64) {
	for {
		old := b.known.seen.Load()
		if id <= old || b.known.seen.CompareAndSwap(old, id) {
			return
		}
	}
}

// newAttempt is an id that a call has to itself.
func newAttempt() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// retrying repeats a step that may be repeated, for some time, while the namespace is created
// again or the cluster changes.
type retrying struct {
	began time.Time
	tries int
}

// again waits and reports whether to try once more.
func (r *retrying) again(ctx context.Context, err error) bool {
	if r.began.IsZero() {
		r.began = time.Now()
	}
	if ctx.Err() != nil || time.Since(r.began) > publishPatience || !errors.Is(err, errShape) && !moved(err) {
		return false
	}
	r.tries++
	d := min(10*time.Millisecond<<min(r.tries, 6), 500*time.Millisecond)
	t := time.NewTimer(d/2 + mrand.N(d/2))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// foreignKey is the word of a script that found something else in a key.
const foreignKey = "LEASEFOREIGN"

// explained says more of an error that the user can do something about.
func explained(err error) error {
	if _, what, ok := strings.Cut(err.Error(), foreignKey+" "); ok {
		return fmt.Errorf("key %s that another program put there; rename or delete it", what)
	}
	return err
}
