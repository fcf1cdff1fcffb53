package leaseweb

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/leasegen/leasegen/runtime/operate"
)

// mostRetried and retriedBytes bound the messages that one retry takes: the form names each.
const (
	mostRetried  = 1000
	retriedBytes = maxForm / 6 // of their ids, each byte of which may take five
)

// retried are the first messages of a list, as many as a form has room for.
func retried(list []operate.ParkedInfo) (first []operate.ParkedInfo, more bool) {
	room := retriedBytes
	for i, m := range list {
		if room -= len(m.MessageID) + len("&id="); i == mostRetried || room < 0 {
			return list[:i], true
		}
	}
	return list, false
}

// waiting is the filter of a request.
func (r *request) waiting() (operate.ParkedFilter, error) {
	if r.field("picked") != "" && len(r.form["id"]) == 0 {
		return operate.ParkedFilter{}, problem{http.StatusBadRequest, "None is selected: go back, and tick what it is to be done to."}
	}
	f := operate.ParkedFilter{Consumer: r.field("c"), Resource: r.field("r"), Key: r.field("key"), IDs: r.form["id"], After: r.field("after")}
	if len(f.IDs) > mostRetried {
		return f, problem{http.StatusBadRequest, fmt.Sprintf("Select at most %d messages at once.", mostRetried)}
	}
	return f, nil
}

func (r *request) parked(f operate.ParkedFilter) ([]operate.ParkedInfo, error) {
	op := r.pages.op
	return ask(r, "parked", f, func(ctx context.Context) ([]operate.ParkedInfo, error) { return op.Parked(ctx, f) })
}

// parkedPage lists the messages that wait for a retry, lane by lane.
func parkedPage(r *request) (view, error) {
	c, err := r.known()
	if err != nil {
		return view{}, err
	}
	f, err := r.waiting()
	if err != nil {
		return view{}, err
	}
	q := url.Values{"c": {c.Consumer}}
	for name, v := range map[string]string{"r": f.Resource, "key": f.Key} {
		if v != "" {
			q.Set(name, v)
		}
	}
	body := struct {
		summary
		Filter      operate.ParkedFilter
		Filtered    bool
		Parked      []operate.ParkedInfo
		Next, Start string
		Retry       string
		First       bool
	}{summary: r.summarize(c), Filter: f, Filtered: len(q) > 1, Start: address("parked", q), Retry: address("retry", q), First: f.After == ""}
	f.IDs, f.Limit = nil, listed+1
	list, err := r.parked(f)
	if err != nil {
		return view{}, err
	}
	list, more := atMost(list, listed)
	body.Parked = list
	if more {
		body.Next = address("parked", with(q, "after", list[len(list)-1].Place))
	}
	return view{name: "parked", Title: "Parked messages", Consumer: c.Consumer, Body: body, watched: true,
		follow: url.Values{"c": {c.Consumer}}.Encode()}, nil
}
