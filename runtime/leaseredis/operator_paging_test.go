package leaseredis_test

import (
	"fmt"
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

// burying makes dead letters and parked messages as commits do: KEYS[1] is meta; from, to, a message's payload.
var burying = redis.NewScript(`
	local T, body = KEYS[1]:sub(1, -5), ''
	local function text(s) return string.char(#s) .. s end
	local now = redis.call('TIME')
	now = now[1] * 1000000 + now[2] - 100000000
	redis.call('SADD', T .. 'res:topical', 'x')
	for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
		local id, key = i .. '-0', 'key' .. math.floor(i / 7)
		local body = text(id) .. text('x') .. text(key) .. text('order') .. text('') .. text('') .. ARGV[3]
		local reason = i % 3 == 0 and 'carrier: 503 after ' .. i .. ' ms' or i % 3 == 1 and 'order ' .. redis.sha1hex(i) .. ' is gone' or 'no room'
		local number = string.format('%.0f', now + i * 500)
		redis.call('HSET', T .. 'dl:topical', number, cmsgpack.pack('x', id, 1, reason, now, now, body))
		redis.call('ZADD', T .. 'dead:topical', number, number)
		redis.call('HSET', KEYS[1], 'dead', number)
		redis.call('HSET', T .. 'pk:topical:x', id, cmsgpack.pack(key, 1, now + 3700000000, now, 'e', body, now))
		redis.call('RPUSH', T .. 'lane:topical:1:x:' .. key, id)
		redis.call('ZADD', T .. 'due:topical:x', string.format('%.0f', now + 3700000000), key)
	end
	redis.call('ZADD', T .. 'pr:topical', string.format('%.0f', now + 3700000000), 'x')
	return 1
`)

// Beside very many dead letters and parked messages operators look at as many as they show, and group quickly.
func TestOperatorsPageThroughManyKeys(t *testing.T) {
	t.Parallel()
	n := pace.Rounds(30_000, 100_000)
	s := redistest.Start(t)
	c := s.Client(t)
	be := on(c, "lg", leaseredis.WithTags(1), leaseredis.WithLogger(discard))
	kit.OK(t, be.Register(t.Context(), topical, nil))
	for from := 0; from < n; from += 1000 { // ten thousand took a slow machine longer than a client waits
		kit.OK(t, burying.Run(t.Context(), c, []string{"{lg0}:meta"}, from, from+999, fmt.Sprintf("%0300d", 0)).Err())
	}
	commands := func(what string, most int, f func()) {
		t.Helper()
		if got := len(monitored(t, s, f)); got > most {
			t.Errorf("%s: %d commands", what, got)
		}
	}
	var page []operate.DeadLetterInfo
	for what, f := range map[string]operate.DeadLetterFilter{"the first": {}, "young ones": {MaxAge: 30 * time.Second, MinAge: 5 * time.Second}} {
		f.Consumer, f.Limit = topical.Name, 100
		for pages := range 3 {
			commands(what, 400, func() { page = kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(t.Context(), f)) })
			if len(page) != 100 && what == "the first" {
				t.Errorf("%s: page %d has %d dead letters", what, pages, len(page))
			}
			if len(page) > 0 {
				f.After = page[len(page)-1].ID
			}
		}
	}
	var parked []operate.ParkedInfo
	f, seen := operate.ParkedFilter{Consumer: topical.Name, Limit: 100}, map[string]bool{}
	for range 5 {
		commands("parked messages", 400, func() { parked = kit.Must[[]operate.ParkedInfo](t)(be.Parked(t.Context(), f)) })
		for _, p := range parked {
			seen[p.MessageID] = true
		}
		f.After = parked[len(parked)-1].Place
	}
	kit.Equal(t, "messages of five pages", len(seen), 500)
	commands("by id", 20, func() {
		kit.Equal(t, "by id", len(kit.Must[[]operate.ParkedInfo](t)(be.Parked(t.Context(), operate.ParkedFilter{Consumer: topical.Name, Resource: "x", IDs: []string{"77-0"}}))), 1)
	})
	kit.Equal(t, "retried", kit.Must[int](t)(be.RetryParked(t.Context(), operate.ParkedFilter{Consumer: topical.Name, Limit: 1000})), 1000)
	grouping, reading := time.Hour, time.Hour // the best of a few
	for range 5 {
		began := time.Now()
		groups := kit.Must[operate.DeadLetterGroups](t)(be.DeadLetterGroups(t.Context(), operate.DeadLetterFilter{Consumer: topical.Name}))
		grouping = min(grouping, time.Since(began))
		kit.Equal(t, "groups", fmt.Sprint(len(groups.Groups), groups.Total, groups.More), fmt.Sprint(3, min(n, backend.GroupedDeadLetters), false))
		began = time.Now()
		kit.Equal(t, "read", len(kit.Must[[]string](t)(c.HVals(t.Context(), "{lg0}:dl:topical").Result())), n)
		reading = min(reading, time.Since(began))
	}
	t.Logf("%d dead letters in groups in %v; to read as many takes %v", n, grouping, reading)
	if grouping > 20*reading {
		t.Errorf("to group %d dead letters takes %v, want no more than 20 times what it takes to read them, %v", n, grouping, reading)
	}
	began := time.Now()
	kit.Equal(t, "of a text", kit.Must[operate.DeadLetterGroups](t)(be.DeadLetterGroups(t.Context(), operate.DeadLetterFilter{Consumer: topical.Name, Text: "ROOM"})).Total, n/3)
	t.Logf("those with a text in %v", time.Since(began))
}
