package leaseredis_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// scriptCost is the most that one call of a script cost.
type scriptCost struct {
	commands int           // that it carried out
	took     time.Duration // by the server's own clock
}

// meter watches what the scripts of a server cost.
type meter struct {
	t      testing.TB
	c      *redis.Client
	conn   net.Conn
	names  map[string]string // by digest
	mu     sync.Mutex
	costs  map[string]scriptCost
	marked chan string
}

// newMeter counts the commands of scripts, or takes the time of those above a millisecond: to count takes time.
func newMeter(t testing.TB, s *redistest.Server, counting bool) *meter {
	t.Helper()
	m := &meter{t: t, c: s.Client(t), names: map[string]string{}, costs: map[string]scriptCost{}, marked: make(chan string, 100)}
	for name, src := range leaseredis.ScriptSources() {
		m.names[kit.Must[string](t)(m.c.ScriptLoad(t.Context(), src).Result())] = name
	}
	kit.OK(t, m.c.Do(t.Context(), "slowlog", "reset").Err())
	if !counting {
		kit.OK(t, m.c.ConfigSet(t.Context(), "slowlog-max-len", "20000").Err())
		kit.OK(t, m.c.ConfigSet(t.Context(), "slowlog-log-slower-than", "1000").Err())
		return m
	}
	kit.OK(t, m.c.ConfigSet(t.Context(), "slowlog-log-slower-than", "-1").Err())
	m.conn = kit.Must[net.Conn](t)(net.Dial("tcp", s.Addr()))
	t.Cleanup(func() { m.conn.Close() })
	fmt.Fprint(m.conn, "MONITOR\r\n")
	r := bufio.NewReaderSize(m.conn, 1<<20)
	kit.Equal(t, "MONITOR", strings.TrimSpace(kit.Must[string](t)(r.ReadString('\n'))), "+OK")
	go m.follow(r)
	return m
}

// follow counts the commands of each call of a script: they come right after it.
func (m *meter) follow(r *bufio.Reader) {
	script, n := "", 0
	end := func() {
		if script != "" {
			m.note(script, scriptCost{commands: n})
		}
		script, n = "", 0
	}
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		if strings.Contains(line, " lua] ") {
			n++
			continue
		}
		end()
		_, what, _ := strings.Cut(line, `] "`)
		parts := strings.SplitN(strings.TrimSpace(what), `" "`, 3)
		switch strings.ToLower(parts[0]) {
		case "evalsha":
			script = m.names[parts[1]]
		case "echo":
			m.marked <- strings.TrimSuffix(parts[1], `"`)
		}
	}
}

func (m *meter) note(script string, cost scriptCost) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.costs[script]
	m.costs[script] = scriptCost{max(was.commands, cost.commands), max(was.took, cost.took)}
}

// found is what calls have cost so far: processes at rest go on to call scripts.
func (m *meter) found() map[string]scriptCost {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.costs)
}

// during runs f and takes what it cost.
func (m *meter) during(f func()) {
	m.t.Helper()
	f()
	m.sync()
	type entry = redis.SlowLog
	for _, e := range kit.Must[[]entry](m.t)(m.c.SlowLogGet(m.t.Context(), 20000).Result()) {
		if len(e.Args) > 1 && strings.EqualFold(e.Args[0], "evalsha") {
			if name := m.names[e.Args[1]]; name != "" {
				m.note(name, scriptCost{took: e.Duration})
			}
		}
	}
}

func (m *meter) sync() {
	if m.conn == nil {
		return
	}
	end := kit.ID()
	kit.OK(m.t, m.c.Echo(m.t.Context(), end).Err())
	for got := range m.marked {
		if got == end {
			return
		}
	}
}

// scale is how much a server is filled with.
type scale struct{ topics, parked, dead, consumers, sessions int }

// scaled fills a server, and uses it as processes and operators do.
func scaled(t *testing.T, size scale, counting bool) map[string]scriptCost {
	s := redistest.Start(t)
	be := on(s.Client(t), "lg", leaseredis.WithTags(1), leaseredis.WithLogger(discard))
	ctx := t.Context()
	topics := kit.Topics(size.topics)
	const hot = "hot" // the one with very many parked keys
	partitioned := backend.ConsumerInfo{Name: "partitioned", Per: backend.PerPartition, Topics: []string{"*"}}
	streamed := backend.ConsumerInfo{Name: "streamed", Per: backend.PerStream, Topics: []string{"*"}}
	all := []backend.ConsumerInfo{topical, partitioned, streamed, grouped}
	var g backend.Grant
	for _, info := range all {
		kit.OK(t, be.Register(ctx, info, nil))
	}
	kit.OK(t, be.Register(ctx, topical, append(topics, hot)))
	live := kit.Join(t, be, all[0], time.Hour, all[1:]...)
	for i := range size.consumers {
		kit.OK(t, be.Register(ctx, backend.ConsumerInfo{Name: fmt.Sprint("other-", i), Per: backend.PerGroup, Topics: []string{"fan"}}, nil))
	}
	for range size.sessions {
		kit.Join(t, be, topical, time.Hour, partitioned, grouped)
	}
	for i := 0; i < size.topics; i += 500 {
		var es []backend.Event
		for j := i; j < min(i+500, size.topics); j++ {
			es = append(es, backend.Event{Topic: topics[j], Key: fmt.Sprint("k", j), Kind: "k", Payload: bytes.Repeat([]byte("x"), 300)})
		}
		kit.OK(t, be.Publish(ctx, es))
	}
	kit.OK(t, be.Publish(ctx, []backend.Event{{Topic: topics[0], Key: "k", Kind: "k", Payload: []byte("1"), After: time.Hour}}))
	gs := live.Acquires(len(topics) + 1)
	g = gs[slices.IndexFunc(gs, func(g backend.Grant) bool { return g.Resource == hot })]
	parks(t, be, live.ID, g, bytes.Repeat([]byte("x"), 300), size.parked+size.dead, func(i int) string { return fmt.Sprint("lane", i) })
	for left := size.dead; left > 0; {
		p := kit.Must[backend.Parked](t)(be.FetchParked(ctx, backend.ParkedRequest{Session: live.ID, Consumer: topical, Limit: min(left, 500), MaxPayload: mega}))
		progress := backend.Progress{Ref: g.Ref, Seq: time.Now().UnixMicro()}
		for _, d := range p.Messages {
			progress.Dead = append(progress.Dead, backend.Dead{ID: d.ID, Attempt: 2, Reason: "why"})
		}
		kit.Must[[]string](t)(be.Commit(ctx, live.ID, topical.Name, []backend.Progress{progress}))
		left -= len(p.Messages)
	}
	kit.OK(t, be.Release(ctx, live.ID, topical.Name, kit.Refs(gs)))
	// Processes that hold all of it die.
	for left := len(topics); left > 0; {
		id := kit.Join(t, be, topical, 3*time.Second)
		got, err := be.Acquire(ctx, id.Request(len(topics)/3+1))
		if err != nil {
			break // the machine is slow: it has expired
		}
		left -= len(got)
	}
	kit.Eventually(t, "they are dead", func() bool { return survey(t, be, topical).Free >= len(topics) })
	m := newMeter(t, s, counting) // watching what fills the server would take longer than that
	m.during(func() {
		var gs []backend.Grant
		kit.Eventually(t, "all is taken over", func() bool {
			got := live.Acquires(len(topics) + 1)
			gs = append(gs, got...)
			return len(gs) >= len(topics)+1
		})
		for _, info := range []backend.ConsumerInfo{partitioned, streamed, grouped} {
			kit.OK(t, be.Register(ctx, info, nil))
			gs := live.As(info).Acquires(300)
			if info.Per == backend.PerStream {
				kit.OK(t, be.Retire(ctx, live.ID, info.Name, kit.Refs(gs)))
			}
		}
		kit.OK(t, live.Heartbeat())
		kit.Must[[]backend.Ref](t)(be.Owned(ctx, live.ID, topical.Name))
		feed := kit.Must[backend.Feed](t)(be.OpenFeed(ctx, all))
		kit.OK(t, be.Publish(ctx, kit.Events("fan", 500))) // which all others take copies of
		kit.Must[backend.News](t)(feed.Next(ctx))
		feed.Close()
		req := backend.FetchRequest{Consumer: topical, MaxPayload: mega}
		for _, g := range gs[:min(len(gs), 1000)] {
			req.Items = append(req.Items, backend.FetchItem{Resource: g.Resource, From: g.Cursor, Limit: 10})
		}
		var ps []backend.Progress
		for i, f := range kit.Must[[]backend.Fetched](t)(be.Fetch(ctx, req)) {
			ps = append(ps, backend.Progress{Ref: gs[i].Ref, Seq: 1, Cursor: f.Next})
		}
		kit.Must[[]string](t)(be.Commit(ctx, live.ID, topical.Name, ps))
		kit.Must[backend.Parked](t)(be.FetchParked(ctx, backend.ParkedRequest{Session: live.ID, Consumer: topical, Limit: 100, PerResource: 100, MaxPayload: mega}))
		kit.Must[[]operate.ConsumerStatus](t)(be.Status(ctx))
		kit.Must[[]operate.MemberStatus](t)(be.Members(ctx, topical.Name))
		kit.Must[[]operate.CursorStatus](t)(be.Cursors(ctx, topical.Name, "", 10))
		kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(ctx, operate.DeadLetterFilter{Consumer: topical.Name, Limit: 100}))
		kit.Must[int](t)(be.Replay(ctx, operate.DeadLetterFilter{Consumer: topical.Name, Limit: 100}))
		bounded := topical
		bounded.Max = 10
		kit.Must[operate.MaintainReport](t)(be.Maintain(ctx, []backend.ConsumerInfo{bounded, partitioned, streamed, grouped}))
		kit.Must[int](t)(be.SetCursor(ctx, topical.Name, hot, operate.CursorTarget{Beginning: true}))
		kit.OK(t, be.Release(ctx, live.ID, topical.Name, kit.Refs(gs)))
		kit.OK(t, live.Session.Close(context.WithoutCancel(ctx)))
		kit.OK(t, be.Forget(ctx, streamed.Name))
	})
	return m.found()
}

// The work of one script call does not grow with what there is: leases, sessions, messages, parked ones, dead letters. In make
// test that is a number of commands; make scale judges the time that the server took for one call, too, at a hundred times as much.
func TestScriptsDoLittleAtATime(t *testing.T) {
	sizes := []scale{{100, 250, 250, 5, 1}, {600, 1500, 1500, 30, 6}}
	full := os.Getenv("SCALE_TABLE") != ""
	if full {
		sizes = []scale{{100, 2500, 2500, 5, 1}, {1000, 25_000, 25_000, 50, 10}, {10_000, 250_000, 250_000, 500, 100}}
	}
	costs := make([]map[string]scriptCost, len(sizes))
	other := redistest.Shared(t).Client(t)
	bare := pace.Beside(t, func(ctx context.Context) error { return other.Ping(ctx).Err() })
	for i, size := range sizes {
		switch {
		case !full:
			costs[i] = scaled(t, size, true)
		case i == len(sizes)-1: // counting takes several times as long
			costs[i] = scaled(t, size, false)
		default:
			costs[i] = scaled(t, size, true)
			for name, timed := range scaled(t, size, false) {
				costs[i][name] = scriptCost{costs[i][name].commands, timed.took}
			}
		}
	}
	last, counted := costs[len(costs)-1], costs[len(costs)-2]
	names := slices.SortedFunc(maps.Keys(counted), func(a, b string) int {
		return cmp.Or(cmp.Compare(counted[b].commands, counted[a].commands), cmp.Compare(a, b))
	})
	var table strings.Builder
	for _, name := range names {
		fmt.Fprintf(&table, "| %s |", name)
		for i := range sizes {
			fmt.Fprintf(&table, " %d |", costs[i][name].commands)
		}
		fmt.Fprintf(&table, " %.1f ms |\n", last[name].took.Seconds()*1000)
	}
	bare.Stop()
	t.Logf("commands of one call at most, and the slowest call at the last size\n%s", table.String())
	if path := os.Getenv("SCALE_TABLE"); path != "" {
		kit.OK(t, os.WriteFile(path, []byte(table.String()), 0o644))
	}
	for _, name := range names {
		if n := max(last[name].commands, counted[name].commands); n > 6000 {
			t.Errorf("one call of %s carried out %d commands", name, n)
		}
		bare.Within(t, "one call of "+name, last[name].took, 50*time.Millisecond)
	}
	if len(names) < 20 {
		t.Errorf("only %d scripts were measured", len(names))
	}
}
