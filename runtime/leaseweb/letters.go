package leaseweb

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/leasegen/leasegen/runtime/operate"
)

// letterFields are the fields of a request that select dead letters, in the order of the form.
var letterFields = [...]string{"topic", "key", "text", "reason", "min", "max"}

// letters is the filter of a request.
func (r *request) letters() (f operate.DeadLetterFilter, err error) {
	if r.field("picked") != "" && len(r.form["id"]) == 0 {
		return f, problem{http.StatusBadRequest, "None is selected: go back, and tick what it is to be done to."}
	}
	f = operate.DeadLetterFilter{Consumer: r.field("c"), IDs: r.form["id"], Topic: r.field("topic"), Key: r.field("key"), Text: r.field("text"),
		Reason: r.field("reason"), After: r.field("after"), Through: r.field("through")}
	if len(f.IDs) > listed {
		return f, problem{http.StatusBadRequest, fmt.Sprintf("Select at most %d dead letters at once, or all that match.", listed)}
	}
	if f.MinAge, err = duration(r.field("min")); err == nil {
		f.MaxAge, err = duration(r.field("max"))
	}
	return f, err
}

// oldest is the greatest age that makes a difference.
const oldest = 100 * 365 * 24 * time.Hour

var durations = regexp.MustCompile(`^([0-9]{1,6})(s|m|h|d)$`)

// duration reads what the form offers, and what is like it: 90s, 10m, 6h, 7d.
func duration(s string) (time.Duration, error) {
	m := durations.FindStringSubmatch(s)
	if m == nil {
		if s == "" {
			return 0, nil
		}
		return 0, problem{http.StatusBadRequest, fmt.Sprintf("%.20q is no age: use a number with s, m, h or d.", s)}
	}
	n, _ := strconv.Atoi(m[1])
	unit := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}[m[2]]
	return time.Duration(min(n, int(oldest/unit))) * unit, nil
}

// selecting are the fields that select, without those that make pages.
func selecting(form url.Values) url.Values {
	q := url.Values{"c": {form.Get("c")}}
	for _, name := range letterFields {
		if v := form.Get(name); v != "" {
			q.Set(name, v)
		}
	}
	return q
}

// with is a copy of fields with others set.
func with(q url.Values, pairs ...string) url.Values {
	q = maps.Clone(q)
	for i := 0; i < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	return q
}

type letterGroup struct {
	operate.DeadLetterGroup
	Only string // the address of these alone
}

// choice is an age that the form offers.
type choice struct {
	Value, Name string
	Chosen      bool
}

func choices(chosen string) []choice {
	all := []choice{{Value: "", Name: "any time"}, {Value: "10m", Name: "10 minutes"}, {Value: "1h", Name: "1 hour"}, {Value: "6h", Name: "6 hours"},
		{Value: "1d", Name: "1 day"}, {Value: "7d", Name: "7 days"}, {Value: "30d", Name: "30 days"}}
	if !slices.ContainsFunc(all, func(c choice) bool { return c.Value == chosen }) {
		all = append(all, choice{Value: chosen, Name: chosen})
	}
	for i := range all {
		all[i].Chosen = all[i].Value == chosen
	}
	return all
}

// deadPage finds dead letters: by reason, and those that a filter selects, page by page.
func deadPage(r *request) (view, error) {
	c, err := r.known()
	if err != nil {
		return view{}, err
	}
	f, err := r.letters()
	if err != nil {
		return view{}, err
	}
	f.IDs, f.Through = nil, ""
	q := selecting(r.form)
	body := struct {
		summary
		Filter      operate.DeadLetterFilter
		Min, Max    []choice
		Filtered    bool
		Groups      []letterGroup
		Total       int
		More, First bool
		Letters     []operate.DeadLetterInfo
		Next, Start string
		Replay      string
		Purge       string
	}{summary: r.summarize(c), Filter: f, Min: choices(r.field("min")), Max: choices(r.field("max")), Filtered: len(q) > 1,
		First: f.After == "", Start: address("dead", q), Replay: address("replay", q), Purge: address("purge", q)}
	if body.First {
		groups, err := r.groups(f)
		if err != nil {
			return view{}, err
		}
		for _, g := range groups.Groups {
			body.Groups = append(body.Groups, letterGroup{g, address("dead", with(q, "reason", g.Reason))})
		}
		body.Total, body.More = groups.Total, groups.More
	}
	f.Limit = listed + 1
	op := r.pages.op
	list, err := ask(r, "dead", f, func(ctx context.Context) ([]operate.DeadLetterInfo, error) { return op.DeadLetters(ctx, f) })
	if err != nil {
		return view{}, err
	}
	list, more := atMost(list, listed)
	body.Letters = list
	if more {
		body.Next = address("dead", with(q, "after", list[len(list)-1].ID))
	}
	return view{name: "dead", Title: "Dead letters", Consumer: c.Consumer, Body: body, watched: true,
		follow: url.Values{"c": {c.Consumer}}.Encode()}, nil
}

func (r *request) groups(f operate.DeadLetterFilter) (operate.DeadLetterGroups, error) {
	op := r.pages.op
	return ask(r, "groups", f, func(ctx context.Context) (operate.DeadLetterGroups, error) { return op.DeadLetterGroups(ctx, f) })
}

// mostShown bounds the part of a payload that a page shows.
const mostShown = 64 << 10

// letterPage is one dead letter. Its payload is shown on request.
func letterPage(r *request) (view, error) {
	c, err := r.known()
	if err != nil {
		return view{}, err
	}
	reveal := r.field("payload") != ""
	if reveal && !r.access.has(Payloads) {
		return view{}, problem{http.StatusForbidden, "You may not look at payloads."}
	}
	letter, err := r.letter(c.Consumer, r.field("id"), reveal)
	if err != nil {
		return view{}, err
	}
	body := struct {
		Letter                operate.DeadLetterInfo
		Headers               []header
		Payload               string
		Shown, Cut            bool
		Form                  string
		Replay, Purge, Reveal string
		Alike                 string
	}{Letter: letter, Headers: headers(letter.Headers), Reveal: link("letter", "c", c.Consumer, "id", letter.ID, "payload", "1"),
		Replay: link("replay", "c", c.Consumer, "id", letter.ID), Purge: link("purge", "c", c.Consumer, "id", letter.ID),
		Alike: link("dead", "c", c.Consumer, "key", letter.Key)}
	if reveal {
		about := append(r.pages.who(r.Request, "payload"), attr("consumer", c.Consumer), attr("id", letter.ID))
		r.pages.opts.log.LogAttrs(r.Context(), levelInfo, "leaseweb: payload shown", about...)
		body.Shown = true
		body.Payload, body.Form, body.Cut = readable(r.pages.opts.redact(letter.Kind, bytes.Clone(letter.Payload)))
	}
	return view{name: "letter", Title: "Dead letter " + letter.ID, Consumer: c.Consumer, Body: body}, nil
}

// letter is a dead letter. Of what viewers share the payload is no part.
func (r *request) letter(consumer, id string, payload bool) (operate.DeadLetterInfo, error) {
	if id != "" {
		op, f := r.pages.op, operate.DeadLetterFilter{Consumer: consumer, IDs: []string{id}}
		question := func(ctx context.Context) ([]operate.DeadLetterInfo, error) { return op.DeadLetters(ctx, f) }
		of := newCell(question)
		if !payload {
			of = listOf(r.pages.shared, "letter", f, func(ctx context.Context) ([]operate.DeadLetterInfo, error) {
				list, err := question(ctx)
				for i := range list {
					list[i].Payload = nil
				}
				return list, err
			})
		}
		list, err := see(r, of)
		if err != nil {
			return operate.DeadLetterInfo{}, err
		}
		if len(list) == 1 {
			return list[0], nil
		}
	}
	return operate.DeadLetterInfo{}, problem{http.StatusNotFound, "This dead letter is not there any more: it was replayed, purged, or has expired."}
}

type header struct{ Name, Value string }

func headers(m map[string]string) (all []header) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, header{name, m[name]})
	}
	return all
}

// readable writes a payload as text. JSON is indented, its numbers and the order of its keys are as written; what is
// no text is dumped.
func readable(payload []byte) (text, form string, cut bool) {
	shown := payload[:min(len(payload), mostShown)]
	cut = len(shown) < len(payload)
	var indented bytes.Buffer
	if !cut && json.Valid(payload) && json.Indent(&indented, payload, "", "  ") == nil && indented.Len() <= 4*mostShown {
		return visible(indented.String()), "JSON", false
	}
	for cut && len(shown) > 0 && !utf8.RuneStart(payload[len(shown)]) {
		shown = shown[:len(shown)-1] // not within a rune
	}
	if utf8.Valid(shown) {
		return visible(string(shown)), "text", cut
	}
	shown = shown[:min(len(shown), mostShown/8)]
	return hex.Dump(shown), "bytes", len(shown) < len(payload)
}
