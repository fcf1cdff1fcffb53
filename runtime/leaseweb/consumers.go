package leaseweb

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// listed bounds the rows of a list.
const listed = 100

// known returns the status of the consumer that a request names.
func (r *request) known() (operate.ConsumerStatus, error) {
	all, err := see(r, r.pages.shared.statuses)
	if err != nil {
		return operate.ConsumerStatus{}, err
	}
	name := r.field("c")
	i := slices.IndexFunc(all, func(c operate.ConsumerStatus) bool { return c.Consumer == name })
	if i < 0 {
		return operate.ConsumerStatus{}, problem{http.StatusNotFound, fmt.Sprintf("There is no consumer %q here.", name)}
	}
	return all[i], nil
}

// summary is a consumer with what has been seen of it.
type summary struct {
	operate.ConsumerStatus
	Concerns []concern
	State    string
	Bad      bool
	Lag      curve
	Minutes  int // that its charts show
}

func (r *request) summarize(c operate.ConsumerStatus) summary {
	s := summary{ConsumerStatus: c}
	r.pages.shared.past(c.Consumer, func(h *history) {
		unowned := time.Duration(0)
		if !h.unowned.IsZero() {
			unowned = time.Since(h.unowned)
		}
		s.Concerns = concerns(c, unowned)
		now := time.Now()
		span := h.frame(now)
		s.Lag, s.Minutes = lagChart(h.samples, now, span), int(span.Minutes())
	})
	s.State = state(c, s.Concerns)
	s.Bad = slices.ContainsFunc(s.Concerns, func(about concern) bool { return about.Bad })
	return s
}

// overview lists the consumers, with what needs attention above.
func overview(r *request) (view, error) {
	all, err := see(r, r.pages.shared.statuses)
	if err != nil {
		return view{}, err
	}
	body := struct {
		Consumers []summary
		Attention []summary
		Fine      int
		More      int
		Minutes   int
	}{}
	for _, c := range all {
		s := r.summarize(c)
		if len(s.Concerns) == 0 {
			body.Fine++
		} else {
			body.Attention = append(body.Attention, s)
		}
		body.Consumers, body.Minutes = append(body.Consumers, s), max(body.Minutes, s.Minutes)
	}
	slices.SortStableFunc(body.Attention, func(a, b summary) int { return rank(a) - rank(b) })
	if body.More = len(body.Consumers) - listed; body.More > 0 {
		body.Consumers = body.Consumers[:listed]
	}
	return view{name: "overview", Title: "Consumers", Body: body, watched: true, refresh: true}, nil
}

func rank(s summary) int {
	switch {
	case s.Bad:
		return 0
	case s.Paused:
		return 1
	}
	return 2
}

// member is a replica of a consumer.
type member struct {
	operate.MemberStatus
	Name   string
	Colour int
	Late   bool
	Bar    bar
}

// laggard is a lease that is behind, or in trouble.
type laggard struct {
	operate.LeaseStatus
	Owner  string
	Colour int
	Owned  bool
}

// consumerPage is one consumer: who owns what, as a picture and in words.
func consumerPage(r *request) (view, error) {
	c, err := r.known()
	if err != nil {
		return view{}, err
	}
	d, err := see(r, r.pages.shared.detail(c.Consumer))
	if err != nil {
		return view{}, err
	}
	body := struct {
		summary
		Single    bool
		Leader    *laggard
		Members   []member
		Hidden    int
		Shares    sharing
		Map       []square
		MapAll    bool
		Handovers []handover
		Laggards  []laggard
		Forgets   bool
	}{summary: r.summarize(c), Single: c.Per == "group" || c.Per == "cluster", MapAll: len(d.leases) < mapped}
	_, body.Forgets = r.pages.op.(forgetter)
	most := 1
	for _, m := range d.members {
		most = max(most, m.Owned, m.FairShare)
	}
	now := time.Now()
	r.pages.shared.past(c.Consumer, func(h *history) {
		for i, m := range d.members {
			if i == listed {
				body.Hidden = len(d.members) - listed
				break
			}
			body.Members = append(body.Members, member{m, process(m), h.colours[m.Session], m.SinceBeat > m.TTLRemaining, barOf(m, most)})
		}
		body.Shares = sharesChart(h, now, h.frame(now))
		body.Map = mapOf(h, d.leases)
		body.Handovers = slices.Clone(h.handovers)
		slices.Reverse(body.Handovers)
		body.Handovers = body.Handovers[:min(len(body.Handovers), 10)]
		for _, l := range d.leases {
			row := laggard{l, h.owner(l.Session), h.colours[l.Session], l.Session != ""}
			if body.Single && body.Leader == nil {
				body.Leader = &row
			}
			if (l.Lag > 0 || l.Parked > 0 || l.Suspicion > 0) && len(body.Laggards) < 50 {
				body.Laggards = append(body.Laggards, row)
			}
		}
	})
	return view{name: "consumer", Title: c.Consumer, Consumer: c.Consumer, Body: body, watched: true, refresh: true,
		follow: url.Values{"c": {c.Consumer}, "detail": {"1"}}.Encode()}, nil
}

// cursorsPage shows how far a consumer has got.
func cursorsPage(r *request) (view, error) {
	c, err := r.known()
	if err != nil {
		return view{}, err
	}
	body := struct {
		summary
		Resource string
		Cursors  []cursor
		More     bool
		None     string
	}{summary: r.summarize(c), Resource: r.field("r")}
	list, err := r.cursors(c.Consumer, body.Resource)
	switch {
	case isNoCursor(err):
		body.None = "It reads no messages and has no cursor: " + noCursorHelp
	case err != nil:
		return view{}, err
	case len(list) == 0 && body.Resource != "":
		body.None = "It has no such resource."
	case len(list) == 0:
		body.None = "It has no resources yet."
	}
	list, body.More = atMost(list, listed)
	owner, err := r.owners(c.Consumer, len(list) > 0)
	if err != nil {
		return view{}, err
	}
	for _, l := range list {
		body.Cursors = append(body.Cursors, cursor{l, owner(l.Session)})
	}
	return view{name: "cursors", Title: "Cursors", Consumer: c.Consumer, Body: body}, nil
}

type cursor struct {
	operate.CursorStatus
	Owner string
}

// cursors are that of a resource, or those furthest behind, one more than a page lists.
func (r *request) cursors(consumer, resource string) ([]operate.CursorStatus, error) {
	op := r.pages.op
	return ask(r, "cursors", [2]string{consumer, resource}, func(ctx context.Context) ([]operate.CursorStatus, error) {
		return op.Cursors(ctx, consumer, resource, listed+1)
	})
}

// owners returns what names the process of a session.
func (r *request) owners(consumer string, needed bool) (func(session string) string, error) {
	if !needed {
		return nil, nil
	}
	op := r.pages.op
	members, err := ask(r, "members", consumer, func(ctx context.Context) ([]operate.MemberStatus, error) {
		return op.Members(ctx, consumer)
	})
	if err != nil {
		return nil, err
	}
	h := history{names: map[string]string{}}
	for _, m := range members {
		h.names[m.Session] = process(m)
	}
	return h.owner, nil
}

func atMost[T any](list []T, limit int) ([]T, bool) {
	return list[:min(limit, len(list))], len(list) > limit
}
