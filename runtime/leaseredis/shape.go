package leaseredis

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
)

// shape is what a namespace was created with, and never changes.
type shape struct {
	tags  int
	slots int
}

const (
	defaultSlots      = 256
	defaultTagsServer = 1
	defaultTagsNodes  = 8
)

// shape returns the namespace's shape, and creates the namespace if need be.
func (b *Backend) shape(ctx context.Context) (*shape, error) {
	if s := b.shaped.Load(); s != nil {
		return s, nil
	}
	b.shaping.Lock()
	defer b.shaping.Unlock()
	if s := b.shaped.Load(); s != nil {
		return s, nil
	}
	if b.misuse != nil {
		return nil, b.misuse
	}
	want := b.wanted
	if want.tags == 0 {
		if want.tags = defaultTagsServer; b.clustered() {
			want.tags = defaultTagsNodes
		}
	}
	if want.slots == 0 {
		want.slots = defaultSlots
	}
	have, err := b.decided(ctx, want)
	if err != nil {
		return nil, err
	}
	switch {
	case b.wanted.tags != 0 && b.wanted.tags != have.tags:
		return nil, fmt.Errorf("leaseredis: namespace %q was created with %d tags and cannot be opened with WithTags(%d): resources would be in two places; leave the option out, or choose another namespace",
			b.namespace, have.tags, b.wanted.tags)
	case b.wanted.slots != 0 && b.wanted.slots != have.slots:
		return nil, fmt.Errorf("leaseredis: namespace %q was created with %d slots and cannot be opened with WithSlots(%d): keys would be in two places; leave the option out, or choose another namespace",
			b.namespace, have.slots, b.wanted.slots)
	}
	var steps []step
	for tag := range have.tags {
		steps = append(steps, step{tag: tag, script: scripts.shape, args: []any{have.tags, have.slots, b.namespace}})
	}
	reached := false
	for tag, a := range b.runAll(ctx, steps) {
		if a.err == nil {
			_, a.err = b.shapeIn(tag, list(a.value))
		}
		switch {
		case a.err == nil:
			reached = true
		case moved(a.err):
			err = a.err // it follows when it can: whoever needs it then finds it missing
		default:
			return nil, b.fail(fmt.Sprintf("prepare namespace %q", b.namespace), a.err)
		}
	}
	if !reached {
		return nil, fmt.Errorf("leaseredis: prepare namespace %q: %w", b.namespace, err)
	}
	b.shaped.Store(&have)
	return &have, nil
}

// decided returns the shape that the first tag has, or is given now. If it cannot be reached, that of
// another which has one decides: the namespace was created before.
func (b *Backend) decided(ctx context.Context, want shape) (shape, error) {
	reply, err := b.run(ctx, 0, scripts.shape, want.tags, want.slots, b.namespace)
	if err == nil {
		return b.shapeIn(0, list(reply))
	}
	if b.clustered() && moved(err) {
		cmds := make([]*redis.SliceCmd, want.tags)
		ended := b.pipelined(ctx, func(pipe redis.Pipeliner) {
			for tag := range cmds {
				cmds[tag] = pipe.HMGet(ctx, b.prefix(tag)+"meta", "tags", "slots", "namespace")
			}
		})
		for tag := 0; tag < len(cmds) && ended == nil; tag++ {
			if got, err := cmds[tag].Result(); err == nil && len(got) == 3 && got[0] != nil {
				return b.shapeIn(tag, got)
			}
		}
	}
	return shape{}, fmt.Errorf("leaseredis: prepare namespace %q: %w", b.namespace, err)
}

// shapeIn reads what is stored of the shape under a tag.
func (b *Backend) shapeIn(tag int, got []any) (shape, error) {
	if len(got) == 3 && text(got[2]) != b.namespace {
		return shape{}, fmt.Errorf("leaseredis: namespace %q: its tag {%s%d} belongs to namespace %q; choose a namespace that does not end with a digit", b.namespace, b.namespace, tag, text(got[2]))
	}
	if len(got) != 3 || number(got[0]) < 1 || number(got[1]) < 1 {
		return shape{}, fmt.Errorf("leaseredis: namespace %q: key %s holds something else; choose another namespace", b.namespace, b.prefix(tag)+"meta")
	}
	return shape{tags: int(number(got[0])), slots: int(number(got[1]))}, nil
}

// tagOf says to which tag a topic, a stream or a consumer belongs.
func (s *shape) tagOf(name string) int { return int(hash(name) % uint64(s.tags)) }

// leaseTag says under which tag a lease is kept.
func (s *shape) leaseTag(consumer, resource string) int {
	if resource == backend.Whole {
		return s.tagOf(consumer)
	}
	return s.tagOf(resource)
}

// slotOf is the slot of a key.
func (s *shape) slotOf(key string) int { return int(hash(key) % uint64(s.slots)) }

func hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

// prefix is what all keys of a tag begin with.
func (b *Backend) prefix(tag int) string { return "{" + b.namespace + strconv.Itoa(tag) + "}:" }
