package leaseredis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Cursors shows how far a consumer has got. A limit of 0 means all.
func (o *operator) Cursors(ctx context.Context, consumer, resource string, limit int) ([]operate.CursorStatus, error) {
	fail := func(err error) error { return fmt.Errorf("leaseredis: cursors of %s: %w", consumer, err) }
	views, err := o.views(ctx, consumer, resource)
	if err != nil {
		return nil, fail(err)
	}
	if len(views) == 0 {
		return nil, nil
	}
	info, err := o.info(ctx, consumer)
	if err == nil && info.ReadsNothing() {
		err = operate.ErrNoCursor
	}
	if err != nil {
		return nil, fail(err)
	}
	return backend.CursorStatuses(views, limit), nil
}

// setCursorStep is how many parked messages and dead letters one script call drops.
const setCursorStep = 500

// SetCursor moves cursors and fences their owners, one resource after the other. Messages that
// retention has dropped do not come back: the beginning is what the log still has.
func (o *operator) SetCursor(ctx context.Context, consumer, resource string, to operate.CursorTarget) (int, error) {
	fail := func(err error) error { return fmt.Errorf("leaseredis: set the cursor of %s: %w", consumer, err) }
	if err := to.Check(); err != nil {
		return 0, fail(err)
	}
	sh, err := o.shape(ctx)
	if err != nil {
		return 0, fail(err)
	}
	info, err := o.info(ctx, consumer)
	if errors.Is(err, errUnknownConsumer) {
		err = errUnknownConsumer
	}
	if err == nil && info.ReadsNothing() {
		err = operate.ErrNoCursor
	}
	if err != nil {
		return 0, fail(err)
	}
	target, err := o.target(ctx, sh, info, to)
	if err != nil {
		return 0, fail(err)
	}
	moved := 0
	for _, s := range o.leaseSteps(sh, info, nil) {
		err := o.resources(ctx, s.tag, consumer, resource, func(names []string) error {
			at := map[string]cursor{}
			for _, name := range names {
				at[name] = target(o.inputsOf(sh, info, name))
			}
			var unread map[string]bool
			if info.Per == backend.PerStream && !info.Announced {
				var err error
				if unread, err = o.unread(ctx, sh, info, at); err != nil {
					return err
				}
			}
			n, err := o.setCursors(ctx, s.tag, info, names, at, to.Beginning, unread)
			if moved += n; err != nil {
				return fmt.Errorf("after %d were moved: %w", moved, err)
			}
			return nil
		})
		if err != nil {
			return moved, fail(err)
		}
	}
	return moved, nil
}

// setCursors moves the cursors of resources of one tag, in as many steps as there is to drop, and
// returns how many there were.
func (o *operator) setCursors(ctx context.Context, tag int, info backend.ConsumerInfo, names []string, at map[string]cursor, drop bool, unread map[string]bool) (moved int, err error) {
	for len(names) > 0 {
		err := o.repeat(ctx, func() (err error) {
			var left []string
			steps := make([]step, len(names))
			for i, name := range names {
				steps[i] = step{tag: tag, script: scripts.setcursor, args: []any{info.Name, name, string(at[name]),
					flag(drop), flag(info.Per == backend.PerStream), flag(unread[name]), setCursorStep, flag(i == len(names)-1)}}
			}
			for i, a := range o.runAll(ctx, steps) {
				switch {
				case a.err != nil:
					err = cmp.Or(err, a.err)
					left = append(left, names[i])
				case number(a.value) > 0:
					moved++
				case number(a.value) == 0:
					left = append(left, names[i])
				}
			}
			names = left
			return err
		})
		if err != nil {
			return moved, err
		}
	}
	return moved, nil
}

// target turns what the operator says into a cursor for inputs.
func (o *operator) target(ctx context.Context, sh *shape, info backend.ConsumerInfo, to operate.CursorTarget) (func([]input) cursor, error) {
	if to.Beginning {
		return func([]input) cursor { return "" }, nil
	}
	last, err := o.lastIDs(ctx, sh)
	if err != nil {
		return nil, err
	}
	s := sourceOf(info)
	switch {
	case to.Now:
		present := ofTags(last)
		if s != nil {
			present, err = o.present(ctx, s)
		}
		return func(ins []input) cursor { return cursorAt(ins, present.positions(ins)) }, err
	case s != nil:
		id, _, _ := strings.Cut(to.After, "/")
		after := parsePosition(id)
		if after == (position{}) {
			return nil, operate.Invalid("%q is not the id of a message", to.After)
		}
		return func(ins []input) cursor { return cursorAt(ins, slices.Repeat([]position{after}, len(ins))) }, nil
	}
	number, of, found := strings.Cut(to.After, "-")
	n, err := strconv.ParseInt(number, 10, 64)
	tag, err2 := strconv.Atoi(of)
	switch {
	case !found || err != nil || err2 != nil || n < 1 || tag < 0 || tag >= sh.tags:
		return nil, operate.Invalid("%q is not the id of a message", to.After)
	case uint64(n) > last[tag].ms:
		return nil, operate.Invalid("there is no message %s yet, the last one has id %d-%d", to.After, last[tag].ms, tag)
	}
	return func(ins []input) cursor {
		at := make([]position, len(ins))
		for i, in := range ins {
			at[i] = position{ms: uint64(n)} // messages come by number, and by tag when that is the same
			if in.tag > tag {
				at[i].ms--
			}
		}
		return cursorAt(ins, at)
	}, nil
}

// lastIDs returns the id of the last message under each tag.
func (st *streams) lastIDs(ctx context.Context, sh *shape) ([]position, error) {
	stored, err := askTags(ctx, st.shards, sh.tags, "meta", func(pipe redis.Pipeliner, prefix string) *redis.StringCmd {
		return pipe.HGet(ctx, prefix+"meta", "last")
	})
	last := make([]position, len(stored))
	for tag, v := range stored {
		last[tag] = parsePosition(v)
	}
	return last, err
}
