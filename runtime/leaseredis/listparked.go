package leaseredis

import (
	"context"
	"errors"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// parkedPage is how many lanes, and how many messages, one script call lists.
const parkedPage = 200

// Parked lists parked messages: tag by tag resources, and of these lanes, that are due soonest first.
func (o *operator) Parked(ctx context.Context, f operate.ParkedFilter) ([]operate.ParkedInfo, error) {
	return repeated(ctx, o.shards, "list parked messages of "+f.Consumer, func() ([]operate.ParkedInfo, error) {
		return o.parked(ctx, f)
	})
}

func (o *operator) parked(ctx context.Context, f operate.ParkedFilter) (out []operate.ParkedInfo, err error) {
	sh, err := o.shape(ctx)
	if err != nil {
		return nil, err
	}
	info, err := o.info(ctx, f.Consumer)
	if errors.Is(err, errUnknownConsumer) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if f.Resource != "" {
		return o.parkedOf(ctx, sh.leaseTag(f.Consumer, f.Resource), f.Resource, f, nil)
	}
	for _, s := range o.leaseSteps(sh, info, nil) {
		for resources, err := range o.ranked(ctx, o.prefix(s.tag)+"pr:"+f.Consumer) {
			if err != nil {
				return nil, err
			}
			for _, resource := range resources {
				out, err = o.parkedOf(ctx, s.tag, resource, f, out)
				if err != nil || f.Limit > 0 && len(out) >= f.Limit {
					return out, err
				}
			}
		}
	}
	return out, nil
}

// parkedOf adds to out what f selects in a resource.
func (o *operator) parkedOf(ctx context.Context, tag int, resource string, f operate.ParkedFilter, out []operate.ParkedInfo) ([]operate.ParkedInfo, error) {
	for lanes, err := range o.ranked(ctx, o.prefix(tag)+"due:"+f.Consumer+":"+resource) {
		if err == nil {
			out, err = o.parkedIn(ctx, tag, resource, lanes, f, out)
		}
		if err != nil || f.Limit > 0 && len(out) >= f.Limit {
			return out, err
		}
	}
	return out, nil
}

// parkedIn adds to out what f selects in lanes of a resource, until it has as many as f wants.
func (o *operator) parkedIn(ctx context.Context, tag int, resource string, lanes []string, f operate.ParkedFilter, out []operate.ParkedInfo) ([]operate.ParkedInfo, error) {
	for from := int64(0); len(lanes) > 0; {
		args := with([]any{f.Consumer, resource, from, parkedPage, parkedBytes}, lanes...)
		reply, err := o.run(ctx, tag, scripts.listparked, args...)
		if err != nil {
			return nil, err
		}
		r := list(reply)
		for _, v := range list(r[2]) {
			v := list(v)
			m := o.unpackKept(text(v[6]), text(v[0]))
			if f.Key != "" && f.Key != m.Key {
				continue
			}
			p := operate.ParkedInfo{
				Resource: resource, MessageID: text(v[0]), Topic: m.Topic, Key: m.Key, Kind: m.Kind, Size: int(number(v[7])),
				Behind: number(v[1]) == 1, Attempts: int(number(v[2])), Due: time.UnixMicro(number(v[3])), Error: text(v[5]),
			}
			if failed := number(v[4]); failed > 0 {
				p.FirstFailed = time.UnixMicro(failed)
			}
			if out = append(out, p); f.Limit > 0 && len(out) >= f.Limit {
				return out, nil
			}
		}
		lanes, from = lanes[number(r[0]):], number(r[1])
	}
	return out, nil
}
