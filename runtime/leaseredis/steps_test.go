package leaseredis_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// monitored are the commands that a server carries out while f runs, those of scripts among them.
func monitored(t testing.TB, s *redistest.Server, f func()) (commands [][]string) {
	t.Helper()
	conn := kit.Must[net.Conn](t)(net.Dial("tcp", s.Addr()))
	defer conn.Close()
	fmt.Fprint(conn, "MONITOR\r\n")
	r := bufio.NewReaderSize(conn, 1<<20)
	kit.Equal(t, "MONITOR", strings.TrimSpace(kit.Must[string](t)(r.ReadString('\n'))), "+OK")
	f()
	end := kit.ID()
	kit.OK(t, s.Client(t).Echo(t.Context(), end).Err())
	for {
		line := kit.Must[string](t)(r.ReadString('\n'))
		if strings.Contains(line, end) {
			return commands
		}
		_, what, _ := strings.Cut(line, `] "`)
		commands = append(commands, strings.Split(strings.TrimSuffix(strings.TrimSpace(what), `"`), `" "`))
	}
}

// Leases of sessions that died are set free in parts, for a process that wants some.
func TestLeasesOfTheDeadAreSetFreeInParts(t *testing.T) {
	c, ns := redistest.Shared(t).Client(t), redistest.Namespace(t)
	be := on(c, ns, leaseredis.WithTags(1), leaseredis.WithLogger(discard))
	const sessions, each = 3, 2500
	topics := kit.Topics(sessions * each)
	kit.OK(t, be.Register(t.Context(), topical, topics))
	for left := sessions; left > 0; {
		id := kit.Join(t, be, topical, 700*time.Millisecond)
		gs, err := be.Acquire(t.Context(), id.Request(each))
		if err == nil && len(gs) > 0 {
			left--
		} else if err != nil && !errors.Is(err, backend.ErrSessionLost) { // else the machine is slow
			t.Fatal(err)
		}
	}
	id := kit.Join(t, be, topical, time.Hour)
	kit.Eventually(t, "all are free", func() bool { return survey(t, be, topical).Free == sessions*each })
	freed := func() int64 { return kit.Must[int64](t)(c.ZCard(t.Context(), "{"+ns+"0}:free:topical").Result()) }
	before := freed()
	got := id.Acquires(10)
	kit.Equal(t, "acquired", len(got), 10)
	kit.Equal(t, "free", survey(t, be, topical).Free, sessions*each-10)
	if n := freed() - before; n > 1000 {
		t.Errorf("%d leases were set free in the step that took 10", n)
	}
	rest := id.Acquires(sessions * each)
	kit.Equal(t, "acquired in all", len(rest)+len(got), sessions*each)
	for _, g := range rest {
		if g.Suspicion < 1 {
			t.Fatalf("%s was taken over as if its owner had not crashed", g.Resource)
		}
	}
	kit.Equal(t, "free at last", survey(t, be, topical).Free, 0)
	kit.Equal(t, "sessions whose leases are to be set free", c.Exists(t.Context(), "{"+ns+"0}:freeing:topical").Val(), 0)
}

// parks sets aside n messages of a topic, each in the lane that its number gives.
func parks(t testing.TB, be *leaseredis.Backend, session string, g backend.Grant, body []byte, n int, lane func(int) string) {
	t.Helper()
	at, seq := g.Cursor, int64(0)
	for from := 0; from < n; {
		var es []backend.Event
		for i := from; i < min(from+500, n); i++ {
			es = append(es, backend.Event{Topic: g.Resource, Key: lane(i), Kind: "k", Payload: body})
		}
		kit.OK(t, be.Publish(t.Context(), es))
		for got := 0; got < len(es); {
			f := kit.Fetch(t, be, topical, g.Resource, at, 500)
			p := backend.Progress{Ref: g.Ref, Cursor: f.Next}
			seq++
			p.Seq = seq
			for _, m := range f.Messages {
				p.Park = append(p.Park, backend.Park{ID: m.ID, Lane: m.Key, Attempt: 1, Error: "e"})
			}
			kit.Equal(t, "fenced", len(kit.Must[[]string](t)(be.Commit(t.Context(), session, topical.Name, []backend.Progress{p}))), 0)
			got += len(f.Messages)
			at = f.Next
		}
		from += len(es)
	}
}

// Of parked messages no more are loaded than there is room for in the answer.
func TestLargeParkedMessagesAreLoadedAFewAtATime(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client(t)
	be := on(c, "lg", leaseredis.WithTags(1), leaseredis.WithLogger(discard))
	session, g := kit.Sole(t, be, topical, "x")
	const n = 24
	parks(t, be, session.ID, g, bytes.Repeat([]byte("x"), mega/2), n, func(int) string { return "one" })
	var p backend.Parked
	loaded := 0
	for _, command := range monitored(t, s, func() {
		p = kit.Must[backend.Parked](t)(be.FetchParked(t.Context(), backend.ParkedRequest{Session: session.ID, Consumer: topical, Limit: 100, MaxPayload: 2 * mega}))
	}) {
		if strings.EqualFold(command[0], "hmget") && strings.Contains(command[1], ":pk:") {
			loaded += len(command) - 2
		}
	}
	if len(p.Messages) == 0 || !p.More {
		t.Fatalf("%d messages were read, more: %v", len(p.Messages), p.More)
	}
	if loaded > len(p.Messages)+1 {
		t.Errorf("%d messages were loaded for an answer with %d", loaded, len(p.Messages))
	}
}

// A lease with very many parked lanes is granted in one small step; its lanes are read in others.
func TestALeaseWithManyParkedLanes(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client(t)
	be := on(c, "lg", leaseredis.WithTags(1), leaseredis.WithLogger(discard))
	session, g := kit.Sole(t, be, topical, "x")
	n := pace.Rounds(5000, 200_000)
	parks(t, be, session.ID, g, []byte("1"), n, func(i int) string { return fmt.Sprint("lane", i) })
	kit.OK(t, be.Release(t.Context(), session.ID, topical.Name, []backend.Ref{g.Ref}))
	var gs []backend.Grant
	for _, command := range monitored(t, s, func() { gs = session.Acquires(1) }) {
		if strings.EqualFold(command[0], "zrange") && strings.Contains(command[1], ":due:") {
			t.Errorf("all lanes were read at once: %q", command)
		}
	}
	kit.Equal(t, "leases", len(gs), 1)
	kit.Equal(t, "lanes", len(gs[0].Lanes), n)
}

// wholes are the commands that read or write all that a key holds, as scripts call them, and where they may: what these keys
// hold are processes, consumers and their patterns, which are few.
var wholes = map[string][]string{
	"SMEMBERS": {"fetchparked", "forget", "members", "narrow", "survey"}, // members of a consumer; in fetchparked up to 5,000 leases
	"HGETALL":  {"lib_log", "trimtopics"},                                // consumers and their views
	"HKEYS":    {"forgetsessions", "rewind"},                             // consumers
	"ZINTER":   {"survey"},                                               // of 500 at most
}

func TestScriptsReadNothingWhole(t *testing.T) {
	whole := regexp.MustCompile(`'(SMEMBERS|HGETALL|HKEYS|HVALS|KEYS|ZUNIONSTORE|ZINTERSTORE|ZINTER|ZUNION|SUNION|SINTER|SDIFF|SORT)'|'([LZ]RANGE)'[^\n]*, 0, -1`)
	files := kit.Must[[]string](t)(filepath.Glob("scripts/*.lua"))
	if len(files) < 40 {
		t.Fatalf("only %d scripts were found", len(files))
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".lua")
		for _, m := range whole.FindAllStringSubmatch(string(kit.Must[[]byte](t)(os.ReadFile(file))), -1) {
			command := m[1] + m[2]
			if !slices.Contains(wholes[command], name) && !(command == "ZRANGE" && slices.Contains([]string{"acquire", "forget"}, name)) {
				t.Errorf("%s reads a key whole: %s", name, m[0])
			}
		}
	}
}
