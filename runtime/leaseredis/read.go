package leaseredis

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// read is one XRANGE.
type read struct {
	key   string
	after position
	count int
	exact bool // only the entry at after
	begun bool // it was read
	cut   bool // there may be more than entries

	entries []entry
	err     error
	cmd     *redis.RawCmd
}

// errReply: a reply is not what the command returns.
var errReply = errors.New("leaseredis: the server's reply to XRANGE cannot be read")

// atEnd reports that no entry can follow.
func (r *read) atEnd() bool { return !r.exact && r.after == end }

func (r *read) args() []any {
	if r.exact {
		return []any{"xrange", r.key, r.after.id(), r.after.id()}
	}
	return []any{"xrange", r.key, r.after.after(), "+", "count", r.count}
}

// queue adds the command to a pipeline. Its reply is taken as it comes, since go-redis's own
// form costs a map and two strings a field.
func (r *read) queue(ctx context.Context, to interface {
	Process(context.Context, redis.Cmder) error
}) {
	r.cmd = redis.NewRawCmd(ctx, r.args()...)
	r.cmd.SetFirstKeyPos(1)
	to.Process(ctx, r.cmd) // the error stays with the command
}

// readAll carries out all reads in one round trip. Each succeeds or fails by itself; what is
// returned is that ctx has ended.
func (d *shards) readAll(ctx context.Context, reads []*read) error {
	return d.readAfter(ctx, nil, reads)
}

// readAfter is readAll with commands that go before the reads of the same tag.
func (d *shards) readAfter(ctx context.Context, before func(redis.Pipeliner), reads []*read) error {
	if slices.ContainsFunc(reads, (*read).atEnd) {
		reads = slices.DeleteFunc(slices.Clone(reads), (*read).atEnd)
	}
	if len(reads) == 1 && before == nil {
		ctx, cancel := d.patient(ctx, 1)
		defer cancel()
		_, err := within(ctx, func(ctx context.Context) (struct{}, error) {
			reads[0].queue(ctx, d.client)
			return struct{}{}, nil
		})
		if err != nil {
			d.reloadAfter(err)
			return err
		}
	} else if len(reads) > 0 {
		err := d.pipelined(ctx, func(pipe redis.Pipeliner) {
			if before != nil {
				before(pipe)
			}
			for _, r := range reads {
				r.queue(ctx, pipe)
			}
		})
		if err != nil {
			return err
		}
	}
	var refused []*read
	for _, r := range reads {
		raw, err := r.cmd.Result()
		switch {
		case err != nil:
			r.err = err
		case len(raw) > 0 && (raw[0] == '-' || raw[0] == '!'):
			refused = append(refused, r)
		default:
			r.entries, r.err = parseEntries(raw)
		}
		r.cmd = nil
	}
	if len(refused) > 0 {
		if err := d.readAgain(ctx, refused); err != nil {
			return err
		}
	}
	for _, r := range reads {
		d.reloadAfter(r.err)
	}
	return nil
}

// readAgain repeats reads that were refused, in go-redis's own form, which follows the slots
// of a cluster to where they are.
func (d *shards) readAgain(ctx context.Context, reads []*read) error {
	cmds := make([]*redis.Cmd, len(reads))
	err := d.pipelined(ctx, func(pipe redis.Pipeliner) {
		for i, r := range reads {
			cmds[i] = pipe.Do(ctx, r.args()...)
		}
	})
	if err != nil {
		return err
	}
	for i, r := range reads {
		reply, err := cmds[i].Result()
		if err != nil {
			r.err = err
			continue
		}
		r.entries, r.err = entriesOf(reply)
	}
	return nil
}

// entriesOf reads a reply in go-redis's form.
func entriesOf(reply any) ([]entry, error) {
	items := list(reply)
	out := make([]entry, 0, len(items))
	for _, item := range items {
		pair := list(item)
		if len(pair) != 2 {
			return nil, errReply
		}
		e := entry{at: parsePosition(text(pair[0]))}
		for _, v := range texts(pair[1]) {
			e.body = fmt.Appendf(e.body, "$%d\r\n%s\r\n", len(v), v)
		}
		out = append(out, e)
	}
	return out, nil
}

// parseEntries reads a reply as the server has sent it. The entries point into it.
func parseEntries(raw []byte) ([]entry, error) {
	p := reply{rest: raw}
	n := p.array()
	if n == 0 {
		return nil, p.err
	}
	out := make([]entry, 0, n)
	for range n {
		if p.array() != 2 {
			return nil, errReply
		}
		at, fields := parsePosition(string(p.bulk())), p.array()
		body := p.rest
		for range fields {
			if p.bulk(); p.err != nil {
				return nil, p.err
			}
		}
		out = append(out, entry{at: at, body: body[:len(body)-len(p.rest)]})
	}
	if p.err != nil {
		return nil, p.err
	}
	return out, nil
}

// reply is what is left of one. After an error it reads no more.
type reply struct {
	rest []byte
	err  error
}

// number reads a line "<sign>n"; -1 is none.
func (p *reply) number(sign byte) int {
	if len(p.rest) > 3 && p.rest[0] == sign { // mostly a few digits
		n, end := 0, 1
		for end < min(len(p.rest)-1, 10) && p.rest[end]-'0' < 10 {
			n = 10*n + int(p.rest[end]-'0')
			end++
		}
		if end > 1 && end+1 < len(p.rest) && p.rest[end] == '\r' {
			p.rest = p.rest[end+2:]
			return n
		}
	}
	end := bytes.IndexByte(p.rest, '\r')
	if end < 2 || p.rest[0] != sign || len(p.rest) < end+2 {
		return p.fail(errReply)
	}
	n, err := strconv.Atoi(string(p.rest[1:end]))
	if err != nil {
		return p.fail(fmt.Errorf("%w: %q", errReply, p.rest[:min(end, 20)]))
	}
	p.rest = p.rest[end+2:]
	return n
}

// fail keeps the first error.
func (p *reply) fail(err error) int {
	p.rest, p.err = nil, cmp.Or(p.err, err)
	return -1
}

func (p *reply) array() int { return max(p.number('*'), 0) }

func (p *reply) bulk() []byte {
	n := p.number('$')
	if n < 0 || len(p.rest) < n+2 {
		p.fail(errReply)
		return nil
	}
	b := p.rest[:n:n]
	p.rest = p.rest[n+2:]
	return b
}
