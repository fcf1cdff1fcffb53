package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// world is a storage with two consumers, made by hand at a fixed time: billing owns
// a lease of three topics on each of two sessions, shipping has dead letters.
type world struct {
	*leasemem.Backend
	now   time.Time
	grant backend.Grant // shipping's
}

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func newWorld(t *testing.T) *world {
	t.Helper()
	ctx := t.Context()
	w := &world{now: noon}
	w.Backend = leasemem.New(leasemem.WithClock(func() time.Time { return w.now }))
	billing := backend.ConsumerInfo{Name: "billing", Per: lease.PerTopic, Topics: []string{"orders.*"}}
	shipping := backend.ConsumerInfo{Name: "shipping", Per: lease.PerGroup, Topics: []string{"orders.*"}}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var events []lease.Event
	for i := range 12 {
		events = append(events, lease.Event{
			Topic: "orders." + []string{"eu", "us", "apac"}[i%3], Key: fmt.Sprintf("cust-%d", i%4), Kind: "order.placed",
			Payload: fmt.Appendf(nil, `{"n":%d}`, i), Headers: map[string]string{"trace": "t1"},
		})
	}
	ok(w.Publish(ctx, events))
	for i, id := range []string{"a81f00000000000000000000000000aa", "b92e00000000000000000000000000bb"} {
		_, err := w.OpenSession(ctx, backend.SessionSpec{ID: id, TTL: 10 * time.Hour, Consumers: []string{"billing", "shipping"}, Host: "web-1", PID: 4121 + i})
		ok(err)
		w.now = w.now.Add(time.Minute)
	}
	ok(w.Register(ctx, billing, nil))
	ok(w.Register(ctx, shipping, []string{backend.Whole}))
	_, err := w.Acquire(ctx, backend.AcquireRequest{Session: "a81f00000000000000000000000000aa", Consumer: billing, Max: 2, Attempt: "1"})
	ok(err)
	grants, err := w.Acquire(ctx, backend.AcquireRequest{Session: "b92e00000000000000000000000000bb", Consumer: shipping, Max: 1, Attempt: "2"})
	ok(err)
	if len(grants) != 1 {
		t.Fatalf("shipping got %d leases, want 1", len(grants))
	}
	w.grant = grants[0]
	fetched, err := w.Fetch(ctx, backend.FetchRequest{Consumer: shipping, MaxPayload: 1 << 20,
		Items: []backend.FetchItem{{Resource: backend.Whole, From: w.grant.Cursor, Limit: 100}}})
	ok(err)
	p := backend.Progress{Ref: w.grant.Ref, Cursor: fetched[0].Next}
	for i, m := range fetched[0].Messages {
		reason := "carrier: 503 after 8 attempts in 3m20s"
		if i%4 == 0 {
			reason = "address: want string, got number"
		}
		p.Dead = append(p.Dead, backend.Dead{ID: m.ID, Attempt: 8, Reason: reason})
	}
	fenced, err := w.Commit(ctx, "b92e00000000000000000000000000bb", "shipping", []backend.Progress{p})
	ok(err)
	if len(fenced) != 0 {
		t.Fatalf("fenced: %v", fenced)
	}
	w.now = w.now.Add(10 * time.Minute)
	return w
}

func (w *world) status(t *testing.T, s status) string {
	t.Helper()
	if s.limit == 0 {
		s.limit = 50
	}
	if s.format == "" {
		s.format = "text"
	}
	var out bytes.Buffer
	if err := s.do(t.Context(), &output{Writer: &out}, target{Operator: w, where: "memory"}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func expect(t *testing.T, got, want string) {
	t.Helper()
	if d := cmp.Diff(strings.TrimPrefix(want, "\n"), got); d != "" {
		t.Errorf("output (-want +got):\n%s", d)
	}
}

func TestStatus(t *testing.T) {
	w := newWorld(t)
	expect(t, w.status(t, status{}), `
consumer  per    lock     resources  members  standbys  unowned  lag(max)  oldest unread  parked keys  dead letters
billing   topic  session          3        2         1        1         4  12m00s                   0             0
shipping  group  session          1        2         1        0         0  -                        0            12
billing: 1 resource has no owner, which is normal for a moment; if it stays, see which processes are full: leasegen status billing -members
billing: its oldest unread message has waited for 12m00s; see whose resource is furthest behind: leasegen status billing -leases
shipping: 12 messages were given up on; see why: leasegen dlq list shipping
`)
	expect(t, w.status(t, status{consumer: "shipping"}), `
consumer  per    lock     resources  members  standbys  unowned  lag(max)  oldest unread  parked keys  dead letters
shipping  group  session          1        2         1        0         0  -                        0            12
leader web-1:4122 for 10m00s, epoch 1772625720000000
shipping: 12 messages were given up on; see why: leasegen dlq list shipping
`)
}

func TestStatusOfAConsumerThatIsPaused(t *testing.T) {
	w := newWorld(t)
	if err := w.Pause(t.Context(), "billing"); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(2 * time.Hour)
	expect(t, w.status(t, status{}), `
consumer        per    lock     resources  members  standbys  unowned  lag(max)  oldest unread  parked keys  dead letters
billing PAUSED  topic  session          3        2         1        1         4  2h12m                    0             0
shipping        group  session          1        2         1        0         0  -                        0            12
billing: PAUSED 2h00m ago, its messages wait; let it go on: leasegen resume billing
shipping: 12 messages were given up on; see why: leasegen dlq list shipping
`)
	if out := w.status(t, status{format: "json"}); !strings.Contains(out, `"paused": true,`) || !strings.Contains(out, `"paused_seconds": 7200,`) ||
		!strings.Contains(out, `"paused": false,`) || strings.Count(out, "paused_seconds") != 1 {
		t.Errorf("as json:\n%s", out)
	}
}

func TestPauseAndResume(t *testing.T) {
	w := newWorld(t)
	run := func(p pause) string {
		t.Helper()
		p.consumer = "billing"
		var out bytes.Buffer
		if err := p.do(t.Context(), &output{Writer: &out}, target{Operator: w, where: "memory"}); err != nil {
			t.Fatal(err)
		}
		w.now = w.now.Add(time.Minute)
		return out.String()
	}
	expect(t, run(pause{resume: true}), "billing, in memory, was not paused\n")
	expect(t, run(pause{}), "paused billing, in memory (2 live members): owners finish the calls they are in and give back what they have of 3 resources; "+
		"its log grows; let it go on: leasegen resume billing\n")
	expect(t, run(pause{}), "billing, in memory, was paused already, 1m00s ago; let it go on: leasegen resume billing\n")
	expect(t, run(pause{resume: true}), "resumed billing, in memory (2 live members) after 2m00s: 12 messages of 3 resources unread\n")
	p := pause{consumer: "biling"}
	if err := p.do(t.Context(), &output{Writer: io.Discard}, target{Operator: w, where: "memory"}); err == nil || !strings.Contains(err.Error(), `there is no consumer "biling"; known: billing, shipping`) {
		t.Errorf("of a consumer that is not known: %v", err)
	}
}

func TestStatusMembers(t *testing.T) {
	w := newWorld(t)
	expect(t, w.status(t, status{consumer: "billing", members: true}), `
session    host:pid    since   heartbeat   owns  target
a81f0000…  web-1:4121  12m00s  12m00s ago     2       2
b92e0000…  web-1:4122  11m00s  11m00s ago     0       2
`)
}

// The table says how the end of each process is found, where the backend tells.
func TestMembersTableTellsOfDetection(t *testing.T) {
	var b strings.Builder
	members := []operate.MemberStatus{{Session: "a81f0000", Host: "web-1", PID: 1, Detection: "lock"}, {Session: "b92e0000", Host: "web-1", PID: 2}}
	if err := membersTable(members).print(&output{Writer: &b}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	for i, want := range []string{"end found by", "lock", "-"} {
		if !strings.HasSuffix(lines[i], want) {
			t.Errorf("line %d: %q does not end with %q", i, lines[i], want)
		}
	}
}

func TestStatusLeases(t *testing.T) {
	w := newWorld(t)
	got := w.status(t, status{consumer: "billing", leases: true, limit: 2})
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != 4 || lines[3] != "1 more; -limit n shows n" {
		t.Fatalf("want a title, two leases and a note on the third, got:\n%s", got)
	}
	got = w.status(t, status{consumer: "billing", leases: true})
	for _, want := range []string{"resource", "web-1:4121", "orders.eu", "orders.us", "orders.apac", "  -  "} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
}

func TestStatusJSON(t *testing.T) {
	w := newWorld(t)
	var got struct {
		Consumers []struct {
			Consumer    string
			DeadLetters int `json:"dead_letters"`
			Sessions    []struct {
				Session string
				Owned   int
			}
			Leases []struct{ Resource string }
		}
	}
	if err := json.Unmarshal([]byte(w.status(t, status{consumer: "billing", members: true, leases: true, format: "json"})), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Consumers) != 1 || len(got.Consumers[0].Sessions) != 2 || got.Consumers[0].Sessions[0].Owned != 2 || len(got.Consumers[0].Leases) != 3 {
		t.Errorf("got %+v", got)
	}
}

func TestStatusUnknownConsumer(t *testing.T) {
	w := newWorld(t)
	err := (&status{consumer: "shiping", limit: 1, format: "text"}).do(t.Context(), &output{Writer: io.Discard}, target{Operator: w, where: "memory"})
	if err == nil || err.Error() != `there is no consumer "shiping"; known: billing, shipping` {
		t.Errorf("error: %v", err)
	}
	err = (&status{consumer: "x", limit: 1, format: "text"}).do(t.Context(), &output{Writer: io.Discard}, target{Operator: leasemem.New()})
	if err == nil || err.Error() != `there is no consumer "x": none has run on this database yet` {
		t.Errorf("error: %v", err)
	}
	var out bytes.Buffer
	if err := (&status{limit: 1, format: "text"}).do(context.Background(), &output{Writer: &out}, target{Operator: leasemem.New()}); err != nil {
		t.Fatal(err)
	}
	expect(t, out.String(), "no consumer has run on this database yet\n")
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain":                 "plain",
		"ünïcode":               "ünïcode",
		"red \x1b[31m":          `red \x1b[31m`,
		"a\nb":                  `a\nb`,
		"right\u202eleft":       `right\u202eleft`,
		"bad \xff":              `bad \ufffd`,
		strings.Repeat("x", 30): strings.Repeat("x", 20) + "…",
	} {
		if got := printable(in, 20); got != want {
			t.Errorf("printable(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestNumberAndAge(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 40012: "40,012", 1234567: "1,234,567", -1000: "-1,000"} {
		if got := number(n); got != want {
			t.Errorf("number(%d) = %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		-time.Second: "0.0 s", 800 * time.Millisecond: "0.8 s", 42 * time.Second: "42 s", 5*time.Minute + 2*time.Second: "5m02s",
		131 * time.Minute: "2h11m", 76 * time.Hour: "3d04h",
	} {
		if got := age(d); got != want {
			t.Errorf("age(%v) = %q, want %q", d, got, want)
		}
	}
}

// The output of -format json is safe for a terminal as well, and the same text when it is read.
func TestJSONSteersNoTerminal(t *testing.T) {
	const text = "\x1b[2J\u009b1A\u0085\x7f\u202e\u2066\u200f\U000e0041 é 日本 😀\ttab"
	var b bytes.Buffer
	if err := printJSON(&b, map[string]string{"reason": text}); err != nil {
		t.Fatal(err)
	}
	if i := strings.IndexFunc(b.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("printed as it is: %q", b.String()[i:])
	}
	if !strings.Contains(b.String(), "é 日本 😀") {
		t.Errorf("not printed as it is: %s", b.String())
	}
	var back map[string]string
	if err := json.Unmarshal(b.Bytes(), &back); err != nil || back["reason"] != text {
		t.Errorf("%v: %q", err, back["reason"])
	}
}

func TestStatusNotes(t *testing.T) {
	n := notes{transaction: "the prepared transaction 'a\x1b[2J' of database b", open: 26 * time.Hour}
	var b bytes.Buffer
	if err := n.print(&output{Writer: &b}); err != nil {
		t.Fatal(err)
	}
	expect(t, b.String(), "the log cannot be shortened: the prepared transaction 'a\\x1b[2J' of database b is open for "+age(n.open)+"; commit it or roll it back\n")
	b.Reset()
	if err := (&status{format: "json"}).json(&b, nil, nil, nil, n); err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Held struct {
			Transaction string
			Open        float64 `json:"open_seconds"`
		} `json:"held_back"`
	}
	if err := json.Unmarshal(b.Bytes(), &doc); err != nil || doc.Held.Transaction != n.transaction || doc.Held.Open != n.open.Seconds() {
		t.Errorf("%v: %s", err, b.String())
	}
}
