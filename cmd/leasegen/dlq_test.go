package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

func (w *world) dlq(t *testing.T, q dlq, verb string) string {
	t.Helper()
	q.now = w.now
	if q.format == "" {
		q.format = "text"
	}
	if err := q.arguments([]string{verb, "shipping"}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := q.do(t.Context(), &output{Writer: &out}, target{Operator: w, where: "memory"}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func (w *world) letters(t *testing.T) int {
	t.Helper()
	all, err := w.DeadLetters(t.Context(), operate.DeadLetterFilter{Consumer: "shipping"})
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func TestDeadLettersList(t *testing.T) {
	time.Local = time.UTC // the table shows local time
	w := newWorld(t)
	got := w.dlq(t, dlq{filter: operate.DeadLetterFilter{Limit: 2}}, "list")
	lines := strings.Split(got, "\n")
	if len(lines) != 7 {
		t.Fatalf("got:\n%s", got)
	}
	if f := strings.Fields(lines[0]); strings.Join(f, " ") != "id topic key attempts first failed reason" {
		t.Errorf("titles: %s", lines[0])
	}
	if f := strings.Join(strings.Fields(lines[2])[1:], " "); f != "orders.us cust-1 8 12:02:00 carrier: 503 after 8 attempts in 3m20s" {
		t.Errorf("second row: %s", f)
	}
	id := strings.Fields(lines[2])[0]
	if lines[3] != "there are more; -limit n shows n, -after "+id+" the next" {
		t.Errorf("note: %s", lines[3])
	}
	first := strings.Fields(lines[1])[0]
	if lines[4] != "see one whole: leasegen dlq show shipping -id "+first || lines[5] != "handle them again, when the cause is gone: leasegen dlq replay shipping" {
		t.Errorf("hints:\n%s\n%s", lines[4], lines[5])
	}
	rest := w.dlq(t, dlq{filter: operate.DeadLetterFilter{After: id}}, "list")
	if strings.Count(rest, "\n") != 13 || strings.Contains(rest, id) {
		t.Errorf("after %s:\n%s", id, rest)
	}
	if got := w.dlq(t, dlq{filter: operate.DeadLetterFilter{Text: "CARRIER: 503 AFTER"}}, "list"); strings.Count(got, "carrier: 503") != 9 || strings.Count(got, "\n") != 12 ||
		!strings.HasSuffix(got, "or these with the same filter: leasegen dlq replay shipping\n") {
		t.Errorf("with a text:\n%s", got)
	}
	expect(t, w.dlq(t, dlq{filter: operate.DeadLetterFilter{MinAge: 24 * 365 * time.Hour}}, "list"), "none of the 12 dead letters of shipping match\n")
	expect(t, w.dlq(t, dlq{filter: operate.DeadLetterFilter{Topic: "none.*"}}, "list"), "none of the 12 dead letters of shipping match\n")
}

func TestDeadLettersInGroups(t *testing.T) {
	time.Local = time.UTC // the table shows local time
	w := newWorld(t)
	got := strings.Split(w.dlq(t, dlq{}, "groups"), "\n")
	if f := strings.Join(strings.Fields(got[0]), " "); f != "count kind first died last died example reason" {
		t.Errorf("titles: %s", f)
	}
	if f := strings.Fields(got[1]); f[0] != "9" || !strings.HasSuffix(got[1], "  carrier: * after * attempts in *m*s") {
		t.Errorf("the largest: %s", got[1])
	}
	var doc struct {
		Groups []groupJSON
		Total  int
		More   bool
	}
	if err := json.Unmarshal([]byte(w.dlq(t, dlq{format: "json"}, "groups")), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Total != 12 || doc.More || len(doc.Groups) < 2 || doc.Groups[0].Count != 9 || doc.Groups[0].Newest.Before(doc.Groups[0].Oldest) {
		t.Errorf("%+v", doc)
	}
	// The pattern, and what was shown, are what the other verbs take.
	g := doc.Groups[0]
	expect(t, w.dlq(t, dlq{filter: operate.DeadLetterFilter{Kind: g.Kind, Reason: g.Reason, Through: g.Example}}, "purge"), "would purge 9 of 12 dead letters of shipping, in memory; run again with -yes\n")
	expect(t, w.dlq(t, dlq{filter: operate.DeadLetterFilter{Key: "none"}}, "groups"), "none of the 12 dead letters of shipping match\n")
}

// A replay or purge of an id that is not there is an error, whether it is to be done or only to be tried.
func TestDeadLettersUnknown(t *testing.T) {
	w := newWorld(t)
	for _, verb := range []string{"replay", "purge"} {
		for _, yes := range []bool{false, true} {
			q := dlq{verb: verb, filter: operate.DeadLetterFilter{Consumer: "shipping", IDs: []string{"987654"}}, format: "text", yes: yes}
			err := q.do(t.Context(), &output{Writer: io.Discard}, target{Operator: w, where: "memory"})
			if err == nil || !strings.Contains(err.Error(), "an id of its own") {
				t.Errorf("%s of an unknown id, -yes=%v: %v", verb, yes, err)
			}
		}
	}
}

func TestDeadLettersShow(t *testing.T) {
	w := newWorld(t)
	all, err := w.DeadLetters(t.Context(), operate.DeadLetterFilter{Consumer: "shipping"})
	if err != nil {
		t.Fatal(err)
	}
	got := w.dlq(t, dlq{filter: operate.DeadLetterFilter{IDs: []string{all[5].ID}}}, "show")
	for _, want := range []string{"topic         orders.apac\n", "key           cust-1\n", "attempts      8\n", "header        trace: t1\n", "payload       7 bytes\n\nhandle it again, when the cause is gone: leasegen dlq replay shipping -id " + all[5].ID + " -yes\n\n{\"n\":5}\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
	var j letterJSON
	if err := json.Unmarshal([]byte(w.dlq(t, dlq{format: "json", filter: operate.DeadLetterFilter{IDs: []string{all[5].ID}}}, "show")), &j); err != nil {
		t.Fatal(err)
	}
	if string(j.Payload) != `{"n":5}` || j.Reason != all[5].Reason {
		t.Errorf("json: %+v", j)
	}
	q := dlq{format: "text", filter: operate.DeadLetterFilter{IDs: []string{"987654"}}}
	if err := q.arguments([]string{"show", "shipping"}); err != nil {
		t.Fatal(err)
	}
	if err := q.do(t.Context(), &output{Writer: io.Discard}, target{Operator: w, where: "memory"}); err == nil || err.Error() != "shipping has no dead letter 987654; a dead letter has an id of its own, which is not that of its message; see those there are: leasegen dlq list shipping" {
		t.Errorf("error: %v", err)
	}
}

// Replay and purge have no effect without -yes.
func TestDeadLettersReplayAndPurge(t *testing.T) {
	w := newWorld(t)
	carrier := operate.DeadLetterFilter{Reason: "carrier*"}
	expect(t, w.dlq(t, dlq{filter: carrier}, "replay"), "would replay 9 of 12 dead letters of shipping, in memory; run again with -yes\n")
	if n := w.letters(t); n != 12 {
		t.Fatalf("after a dry run there are %d dead letters, want 12", n)
	}
	expect(t, w.dlq(t, dlq{filter: carrier, yes: true}, "replay"), "replayed 9 of 12 dead letters of shipping, in memory\nsee what becomes of them: leasegen status shipping\n")
	if n := w.letters(t); n != 3 {
		t.Fatalf("after the replay there are %d dead letters, want 3", n)
	}
	expect(t, w.dlq(t, dlq{filter: carrier}, "replay"), "no dead letter to replay: none of the 3 dead letters of shipping match\n")
	expect(t, w.dlq(t, dlq{filter: operate.DeadLetterFilter{Limit: 1}}, "purge"), "would purge 1 of 3 dead letters of shipping, in memory; run again with -yes\n")
	expect(t, w.dlq(t, dlq{}, "purge"), "would purge 3 of 3 dead letters of shipping, in memory; run again with -yes\n")
	expect(t, w.dlq(t, dlq{yes: true}, "purge"), "purged 3 of 3 dead letters of shipping, in memory\n")
	expect(t, w.dlq(t, dlq{}, "list"), "shipping has no dead letters\n")
}

func TestDeadLetterArguments(t *testing.T) {
	for _, c := range []struct {
		q    dlq
		args string
		want string
	}{
		{dlq{}, "", "say what to do: list, show, groups, replay, purge"},
		{dlq{}, "lst shipping", `"lst" is unknown; known: list, show, groups, replay, purge`},
		{dlq{}, "purge", "purge needs the name of a consumer"},
		{dlq{}, "purge a b", `one consumer at a time, not ["a" "b"]`},
		{dlq{}, "show a", "show needs one id: leasegen dlq show a -id ID"},
		{dlq{yes: true}, "list a", "-yes goes with replay and purge only"},
		{dlq{filter: operate.DeadLetterFilter{IDs: []string{"1", ""}}}, "purge a", "-id has an empty id"},
		{dlq{filter: operate.DeadLetterFilter{Limit: -1}}, "purge a", "-limit -1 is below 0"},
		{dlq{filter: operate.DeadLetterFilter{MinAge: -1}}, "list a", "-older and -newer say how long ago, from 0 on"},
		{dlq{format: "yaml"}, "list a", `-format "yaml" is unknown; known: text, json`},
	} {
		if c.q.format == "" {
			c.q.format = "text"
		}
		if err := c.q.arguments(strings.Fields(c.args)); err == nil || err.Error() != c.want {
			t.Errorf("dlq %s: error %v, want %s", c.args, err, c.want)
		}
	}
}
