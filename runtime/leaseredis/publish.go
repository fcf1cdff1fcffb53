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

// Publish appends events to the log, in their order. Those of topics that share a hash tag are
// appended all or none, as long as they are at most 1,000 and 1 MB; what is more follows in
// further steps. What was appended when Publish returns an error is unknown: it
// has then tried for up to ten seconds, and appends nothing twice meanwhile.
//
// Between topics of different tags, what is published later has a greater id if the same process
// has published both, or has read the one before it published the other; otherwise the clocks
// of their servers decide.
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

// publish appends the events, in as many steps as it takes. Repeated with the same attempt, it
// appends what is missing.
func (b *Backend) publish(ctx context.Context, attempt string, events []lease.Event) error {
	sh, err := b.shape(ctx)
	if err != nil {
		return err
	}
	for chunk := 0; len(events) > 0; chunk++ {
		n, size := 0, 0
		for n < len(events) && n < publishEvents && (n == 0 || size+len(events[n].Payload) <= publishBytes) {
			size += len(events[n].Payload)
			n++
		}
		if err := b.publishChunk(ctx, sh, attempt+"."+strconv.Itoa(chunk), events[:n]); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

func (b *Backend) publishChunk(ctx context.Context, sh *shape, attempt string, events []lease.Event) error {
	byTag := map[int][]int{}
	for i := range events {
		tag := sh.tagOf(events[i].Topic)
		byTag[tag] = append(byTag[tag], i)
	}
	base, err := b.common(ctx, byTag)
	if err != nil {
		return err
	}
	var steps []step
	for tag, indexes := range byTag {
		args := make([]any, 0, 2+10*len(indexes))
		args = append(args, attempt, b.known.seen.Load())
		for _, i := range indexes {
			e := &events[i]
			slot := ""
			if e.Key != "" {
				slot = strconv.Itoa(sh.slotOf(e.Key))
			}
			due, id := int64(0), int64(0)
			if !e.At.IsZero() {
				due = max(e.At.UnixMicro(), 0)
			}
			if base > 0 {
				id = base + int64(i)
			}
			args = append(args, id, e.Topic, e.Kind, e.Key, slot, headersJSON(e.Headers), e.Payload, e.ID, due, microseconds(e.After))
		}
		steps = append(steps, step{tag, scripts.publish, args})
	}
	var failed error
	for _, a := range b.runAll(ctx, steps) {
		if failed = cmp.Or(failed, a.err); a.err == nil {
			b.saw(number(a.value))
		}
	}
	return failed
}

// common is the id from which the events of several tags are numbered in their order: a
// little ahead of all their clocks, since no tag takes an id below its own. 0 for one tag.
func (b *Backend) common(ctx context.Context, byTag map[int][]int) (int64, error) {
	if len(byTag) == 1 {
		return 0, nil
	}
	var steps []step
	for tag := range byTag {
		steps = append(steps, step{tag, scripts.clock, []any{b.known.seen.Load()}})
	}
	began := time.Now()
	base := int64(0)
	for _, a := range b.runAll(ctx, steps) {
		if a.err != nil {
			return 0, a.err
		}
		base = max(base, number(a.value))
	}
	return base + microseconds(min(2*time.Since(began)+2*time.Millisecond, 50*time.Millisecond)), nil
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
