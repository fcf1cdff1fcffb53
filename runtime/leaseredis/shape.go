package leaseredis

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"

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
func (d *shards) shape(ctx context.Context) (*shape, error) {
	if s := d.shaped.Load(); s != nil {
		return s, nil
	}
	d.shaping.Lock()
	defer d.shaping.Unlock()
	if s := d.shaped.Load(); s != nil {
		return s, nil
	}
	if d.misuse != nil {
		return nil, d.misuse
	}
	have, err := d.decided(ctx, d.first())
	if err != nil {
		return nil, err
	}
	switch {
	case d.wanted.tags != 0 && d.wanted.tags != have.tags:
		return nil, fmt.Errorf("leaseredis: namespace %q was created with %d tags and cannot be opened with WithTags(%d): resources would be in two places; leave the option out, or choose another namespace",
			d.namespace, have.tags, d.wanted.tags)
	case d.wanted.slots != 0 && d.wanted.slots != have.slots:
		return nil, fmt.Errorf("leaseredis: namespace %q was created with %d slots and cannot be opened with WithSlots(%d): keys would be in two places; leave the option out, or choose another namespace",
			d.namespace, have.slots, d.wanted.slots)
	}
	steps := same(have.all(), scripts.shape, have.tags, have.slots, d.namespace)
	reached := false
	for tag, a := range d.runAll(ctx, steps) {
		if a.err == nil {
			_, a.err = d.shapeIn(tag, list(a.value))
		}
		switch {
		case a.err == nil:
			reached = true
		case moved(a.err):
			err = a.err // it follows when it can: a call that needs it then finds it missing
		default:
			return nil, fail(fmt.Sprintf("prepare namespace %q", d.namespace), a.err)
		}
	}
	if !reached {
		return nil, fmt.Errorf("leaseredis: prepare namespace %q: %w", d.namespace, err)
	}
	d.shaped.Store(&have)
	return &have, nil
}

// first is the shape of a namespace that is not created yet.
func (d *shards) first() shape {
	tags := defaultTagsServer
	if d.clustered() {
		tags = defaultTagsNodes
	}
	return shape{tags: cmp.Or(d.wanted.tags, tags), slots: cmp.Or(d.wanted.slots, defaultSlots)}
}

// forgetShape makes the next call create the namespace again: what was stored is gone.
func (d *shards) forgetShape() {
	d.shaped.Store(nil)
	d.above.namespaceGone()
}

// decided returns the shape that the first tag has, or is given now. If it cannot be reached, that of
// another which has one decides: the namespace was created before.
func (d *shards) decided(ctx context.Context, want shape) (shape, error) {
	reply, err := d.run(ctx, 0, scripts.shape, want.tags, want.slots, d.namespace)
	if err == nil {
		return d.shapeIn(0, list(reply))
	}
	if d.clustered() && moved(err) {
		cmds := make([]*redis.SliceCmd, want.tags)
		ended := d.pipelined(ctx, func(pipe redis.Pipeliner) {
			for tag := range cmds {
				cmds[tag] = pipe.HMGet(ctx, d.prefix(tag)+"meta", "tags", "slots", "namespace")
			}
		})
		for tag := 0; tag < len(cmds) && ended == nil; tag++ {
			if got, err := cmds[tag].Result(); err == nil && len(got) == 3 && got[0] != nil {
				return d.shapeIn(tag, got)
			}
		}
	}
	return shape{}, fmt.Errorf("leaseredis: prepare namespace %q: %w", d.namespace, err)
}

// shapeIn reads what is stored of the shape under a tag.
func (d *shards) shapeIn(tag int, got []any) (shape, error) {
	if len(got) == 3 && text(got[2]) != d.namespace {
		return shape{}, fmt.Errorf("leaseredis: namespace %q: its tag {%s%d} belongs to namespace %q; choose a namespace that does not end with a digit", d.namespace, d.namespace, tag, text(got[2]))
	}
	if len(got) != 3 || number(got[0]) < 1 || number(got[1]) < 1 {
		return shape{}, fmt.Errorf("leaseredis: namespace %q: key %s holds something else; choose another namespace", d.namespace, d.prefix(tag)+"meta")
	}
	return shape{tags: int(number(got[0])), slots: int(number(got[1]))}, nil
}

// all are the tags of the namespace.
func (s *shape) all() []int {
	tags := make([]int, s.tags)
	for tag := range tags {
		tags[tag] = tag
	}
	return tags
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
