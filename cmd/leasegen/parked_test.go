package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

func (w *world) parked(t *testing.T, p parked) string {
	t.Helper()
	p.now = w.now
	if p.format == "" {
		p.format = "text"
	}
	if err := p.arguments([]string{"shipping"}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := p.do(t.Context(), &output{Writer: &out}, target{Operator: w, where: "memory"}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestParkedList(t *testing.T) {
	time.Local = time.UTC // the table shows local time
	w := newWorld(t)
	expect(t, w.parked(t, parked{}), "shipping has no parked messages\n")

	if err := w.Publish(t.Context(), []lease.Event{
		{Topic: "orders.eu", Key: "ann", Kind: "k", Payload: []byte("{}")}, {Topic: "orders.us", Key: "ann", Kind: "k"}, {Topic: "orders.us", Key: "bob\x1b[2J", Kind: "k"},
	}); err != nil {
		t.Fatal(err)
	}
	leases, err := w.Cursors(t.Context(), "shipping", "", 1)
	if err != nil || leases[0].Lag != 3 {
		t.Fatalf("%+v, %v", leases, err)
	}
	fetched, err := w.Fetch(t.Context(), backend.FetchRequest{Consumer: backend.ConsumerInfo{Name: "shipping", Per: lease.PerGroup, Topics: []string{"orders.*"}}, MaxPayload: 1 << 20,
		Items: []backend.FetchItem{{Resource: backend.Whole, From: w.grant.Cursor, Limit: 100}}})
	if err != nil {
		t.Fatal(err)
	}
	ms := fetched[0].Messages
	ms = ms[len(ms)-3:]
	p := backend.Progress{Ref: w.grant.Ref, Cursor: fetched[0].Next, Seq: 2, Park: []backend.Park{
		{ID: ms[0].ID, Lane: "ann", Attempt: 3, After: time.Minute, Error: "carrier: 503\x1b]0;x\a"}, {ID: ms[1].ID, Lane: "ann"},
		{ID: ms[2].ID, Lane: "bob", Attempt: 1, Error: "again"},
	}}
	if fenced, err := w.Commit(t.Context(), "b92e00000000000000000000000000bb", "shipping", []backend.Progress{p}); err != nil || len(fenced) > 0 {
		t.Fatal(fenced, err)
	}
	got := w.parked(t, parked{})
	if strings.ContainsAny(got, "\x1b\a") {
		t.Errorf("the terminal is steered: %q", got)
	}
	var rows []string
	for _, l := range strings.Split(strings.TrimSpace(got), "\n") {
		rows = append(rows, strings.Join(strings.Fields(l), " "))
	}
	at := w.now.UTC().Format(time.TimeOnly)
	for i, want := range []string{
		"message resource topic key attempts first failed next attempt error",
		ms[0].ID + " * orders.eu ann 3 " + at + " " + w.now.Add(time.Minute).UTC().Format(time.TimeOnly) + " carrier: 503",
		ms[1].ID + " * orders.us ann 0 behind another",
		ms[2].ID + " * orders.us bob",
	} {
		if i >= len(rows) || !strings.HasPrefix(rows[i], want) {
			t.Errorf("row %d: want %q in\n%s", i, want, got)
		}
	}
	if len(rows) != 6 || !strings.HasSuffix(rows[3], " 1 "+at+" due again") {
		t.Errorf("last row: %s", rows[3])
	}
	if rows[4] != "see one whole: leasegen parked shipping -id "+ms[0].ID || rows[5] != "try it now, when the cause is gone: leasegen parked shipping -id "+ms[0].ID+" -retry -yes" {
		t.Errorf("hints: %q", rows[4:])
	}
	cut := w.parked(t, parked{filter: operate.ParkedFilter{Limit: 2}})
	_, place, more := strings.Cut(cut, "there are more; -limit n shows n, -after ")
	place, _, _ = strings.Cut(place, " the next\n")
	if !more || strings.Count(cut, "\n") != 6 {
		t.Errorf("two of three:\n%s", cut)
	}
	if rest := w.parked(t, parked{filter: operate.ParkedFilter{After: place}}); strings.Count(rest, "\n") != 4 || !strings.Contains(rest, "bob") {
		t.Errorf("the third:\n%s", rest)
	}
	expect(t, w.parked(t, parked{filter: operate.ParkedFilter{Key: "carl"}}), "shipping, key \"carl\", has no parked messages\n")
	var doc struct {
		Parked []parkedJSON
		More   bool
	}
	if err := json.Unmarshal([]byte(w.parked(t, parked{format: "json", filter: operate.ParkedFilter{Key: "ann"}})), &doc); err != nil || len(doc.Parked) != 2 || doc.More {
		t.Fatalf("%+v, %v", doc, err)
	}
	first, second := doc.Parked[0], doc.Parked[1]
	if first.MessageID != ms[0].ID || first.Attempts != 3 || first.Size != 2 || first.FirstFailed.IsZero() || !first.Due.Equal(w.now.Add(time.Minute)) ||
		!second.Behind || !second.FirstFailed.IsZero() {
		t.Errorf("%+v %+v", first, second)
	}
	if first.Place == "" || first.Place == second.Place {
		t.Errorf("places %q and %q", first.Place, second.Place)
	}

	one := operate.ParkedFilter{IDs: []string{ms[0].ID}}
	expect(t, w.parked(t, parked{filter: one, retry: true}), "would make 1 parked message of shipping, id "+ms[0].ID+", due now, in memory; run again with -yes\n")
	due := func() bool {
		return strings.Contains(w.parked(t, parked{filter: one}), "next attempt  due\n")
	}
	if due() {
		t.Error("a dry run has changed it")
	}
	expect(t, w.parked(t, parked{filter: one, retry: true, yes: true}), "made 1 parked message of shipping, id "+ms[0].ID+", due now, in memory\nsee what becomes of them: leasegen status shipping\n")
	if !due() {
		t.Errorf("it is not due:\n%s", w.parked(t, parked{}))
	}
	expect(t, w.parked(t, parked{retry: true}), "would make 3 parked messages of shipping due now, in memory; run again with -yes\n")
	expect(t, w.parked(t, parked{filter: operate.ParkedFilter{Limit: 2}, retry: true}), "would make 2 parked messages of shipping due now, in memory; run again with -yes\n")
	expect(t, w.parked(t, parked{filter: operate.ParkedFilter{Key: "carl"}, retry: true}), "no message to retry: shipping, key \"carl\", has no parked messages\n")
}

func TestParkedArguments(t *testing.T) {
	for _, c := range []struct {
		p    parked
		args string
		want string
	}{
		{parked{}, "", "name a consumer; leasegen status lists them"},
		{parked{}, "a b", `one consumer at a time, not ["a" "b"]`},
		{parked{filter: operate.ParkedFilter{Limit: -1}}, "a", "-limit -1 is below 0"},
		{parked{filter: operate.ParkedFilter{IDs: []string{""}}}, "a", "-id has an empty id"},
		{parked{yes: true}, "a", "-yes goes with -retry only"},
		{parked{retry: true, format: "json"}, "a", "-format goes with a list, not with -retry"},
		{parked{filter: operate.ParkedFilter{Limit: 1}, format: "yaml"}, "a", `-format "yaml" is unknown; known: text, json`},
	} {
		if err := c.p.arguments(strings.Fields(c.args)); err == nil || err.Error() != c.want {
			t.Errorf("parked %s: error %v, want %s", c.args, err, c.want)
		}
	}
}
