package leaseredis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

const greatest = "18446744073709551615-18446744073709551615"

// seenBy notes what the handlers of consumers were given, by a mark in the payload.
type seenBy struct {
	mu  sync.Mutex
	got map[string]map[string]bool // consumer → marks
}

func (s *seenBy) add(consumer, mark string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.got == nil {
		s.got = map[string]map[string]bool{}
	}
	if s.got[consumer] == nil {
		s.got[consumer] = map[string]bool{}
	}
	s.got[consumer][mark] = true
}

func (s *seenBy) missing(consumer string, marks []string) (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range marks {
		if !s.got[consumer][m] {
			out = append(out, m)
		}
	}
	return out
}

var errOdd = errors.New("odd")

// handlers take what is of kind "good" as handled; every other message fails.
func (s *seenBy) handlers(consumer string) []lease.Handler {
	one := func(_ context.Context, m lease.Message[[]byte]) error {
		s.add(consumer, string(m.Payload))
		if !strings.HasPrefix(string(m.Payload), "good") {
			return errOdd
		}
		return nil
	}
	return []lease.Handler{lease.One("good", one), lease.One("", one)}
}

// oddities are entries as no program of leasegen writes them. Each has a mark that tells it from others.
func oddity(r *rand.Rand, mark string) []any {
	long := strings.Repeat("x", 3000)
	fields := [][]any{
		{"payload", mark},
		{"kind", "good", "payload", mark, "headers", `{"retries": 3}`},
		{"kind", "good", "payload", mark, "headers", `[1, {"a": null}]`, "headers", "\xff"},
		{"kind", long, "payload", mark},
		{"kind", "good", "key", long, "payload", mark},
		{"kind", "\xff\x00", "key", "\xfe\x00", "topic", long, "payload", mark},
		{"what", mark},
		{"", "", mark, mark},
		{"kind", "good", "kind", "good", "key", "a", "key", "b", "payload", "{", "payload", mark},
		{"topic", "\n*", "payload", mark, "headers", `{"a":"b"}`},
	}
	f := fields[r.IntN(len(fields))]
	if r.IntN(10) == 0 {
		for i := range 300 {
			f = append(f, fmt.Sprint("field", i), "v")
		}
	}
	return f
}

// An entry that another program adds to streams that consumers read, with whatever ids and fields, is handled or a dead
// letter. Its neighbours are handled, and the operator's commands go on.
func TestAForeignWriterBesideAWellBehavedOne(t *testing.T) {
	t.Parallel()
	t.Run("streams", func(t *testing.T) {
		eachServer(t, func(t *testing.T, c redis.UniversalClient, ns string) { foreignStreams(t, c, ns) })
	})
	t.Run("topics", func(t *testing.T) { foreignTopics(t) })
}

func foreignStreams(t *testing.T, c redis.UniversalClient, ns string) {
	r := rand.New(rand.NewPCG(1, 2))
	be := on(c, ns, leaseredis.WithLogger(discard))
	names := []string{ns + "odd", ns + "good", ns + "other", ns + "odd2"}
	var seen seenBy
	for _, per := range []backend.Per{backend.PerTopic, backend.PerGroup} {
		run(t, be, lease.Spec{Name: per.String(), Per: per, Source: leaseredis.StreamSource{Names: names}, UnknownWait: -1,
			Retry: lease.Retry{Max: 1}, Handlers: seen.handlers(per.String())})
	}
	var good []string
	odd, different := 0, map[string]bool{}
	add := func(stream, id string, fields []any) {
		t.Helper()
		id = kit.Must[string](t)(c.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, ID: id, Values: fields}).Result())
		if stream == names[0] || stream == names[3] {
			different[stream+id] = true
		}
	}
	for round := range pace.Rounds(1, 20) {
		for i := range 24 {
			mark := fmt.Sprintf("good-%d-%d", round, i)
			good = append(good, mark)
			add(names[1+i%2], "*", []any{"kind", "good", "payload", mark})
			id := "*"
			if i == 12 {
				id = fmt.Sprint("1795248728123456789", round%10, "-5")
			}
			odd++
			add(names[3*(i%2)], id, oddity(r, fmt.Sprint("odd", odd)))
		}
		for _, n := range []string{names[0], names[3]} {
			odd++
			add(n, greatest, oddity(r, fmt.Sprint("odd", odd)))
		}
		for _, per := range []string{"topic", "group"} {
			kit.Eventually(t, per+" has handled what is good", func() bool { return len(seen.missing(per, good)) == 0 })
			kit.Eventually(t, per+" has handled what is odd, or given it up", func() bool {
				cs, err := be.Cursors(t.Context(), per, "", 0)
				kit.OK(t, err)
				lag := int64(0)
				for _, c := range cs {
					lag += c.Lag
				}
				return lag == 0
			})
		}
		kit.Must[[]operate.ConsumerStatus](t)(be.Status(t.Context()))
		// They are read on after they were deleted.
		for _, n := range []string{names[0], names[3]} {
			kit.OK(t, c.Del(t.Context(), n).Err())
			mark := fmt.Sprint("good-later-", n, round)
			good = append(good, mark)
			add(n, "*", []any{"kind", "good", "payload", mark})
		}
		for _, per := range []string{"topic", "group"} {
			kit.Eventually(t, per+" reads a stream that was deleted", func() bool { return len(seen.missing(per, good)) == 0 })
		}
	}
	for _, per := range []string{"topic", "group"} {
		kit.Eventually(t, per+" has given up all that is odd", func() bool {
			dead := map[string]bool{}
			for _, d := range kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(t.Context(), operate.DeadLetterFilter{Consumer: per})) {
				dead[d.MessageID] = true
				if y := d.PublishedAt.Year(); y > 9999 {
					t.Fatalf("a dead letter was published in %d, which JSON does not know", y)
				}
			}
			return len(dead) == len(different)-2*pace.Rounds(1, 20) // what follows DEL is good
		})
	}
}

func foreignTopics(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	c := redistest.Shared(t).Client(t)
	ns := redistest.Namespace(t)
	be := on(c, ns, leaseredis.WithTags(1), leaseredis.WithLogger(discard))
	pers := []backend.Per{backend.PerTopic, backend.PerGroup, backend.PerPartition, backend.PerStream}
	var seen seenBy
	for _, per := range pers {
		run(t, be, lease.Spec{Name: per.String(), Per: per, Topics: []string{"*"}, UnknownWait: -1, Retry: lease.Retry{Max: 1},
			Handlers: seen.handlers(per.String())})
	}
	prefix := "{" + ns + "0}:"
	streams := []string{"t:a", "t:b", "v:group:*", "v:partition:7", "v:stream:k1"}
	var good, odd []string
	write := func(i int) {
		mark := fmt.Sprintf("odd-%d.", i)
		stream := prefix + streams[i%len(streams)]
		id := strconv.FormatInt(time.Now().UnixMicro(), 10)
		switch r.IntN(4) {
		case 0:
			id = strconv.FormatInt(time.Now().Add(48*time.Hour).UnixMicro()+int64(i), 10) + "-7"
		case 1:
			id = "9100000000000000-" + strconv.Itoa(i)
		case 2:
			if i%3 == 0 {
				id = greatest
			}
		}
		err := c.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, ID: id, Values: oddity(r, mark)}).Err()
		if err == nil && strings.HasPrefix(stream, prefix+"t:") { // else Redis has refused it
			odd = append(odd, mark)
		}
	}
	for i := range pace.Rounds(60, 1000) {
		var es []backend.Event
		for _, topic := range []string{"a", "b", "c"} {
			mark := fmt.Sprintf("good-%s-%d", topic, i)
			good = append(good, mark)
			es = append(es, backend.Event{Topic: topic, Kind: "good", Key: fmt.Sprint("k", i%3), Payload: []byte(mark)})
		}
		write(i)
		kit.OK(t, be.Publish(t.Context(), es))
		if i%20 == 0 {
			kit.Must[[]operate.ConsumerStatus](t)(be.Status(t.Context()))
		}
	}
	for _, per := range pers {
		kit.Eventually(t, per.String()+" has handled what is good", func() bool { return len(seen.missing(per.String(), good)) == 0 })
		kit.Must[[]operate.CursorStatus](t)(be.Cursors(t.Context(), per.String(), "", 0))
	}
	// Every entry was handled, or is a dead letter. Those without the payload field have it among others.
	kit.Eventually(t, "what is odd has ended", func() bool {
		text := ""
		for _, d := range kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(t.Context(), operate.DeadLetterFilter{Consumer: "topic"})) {
			one := kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(t.Context(), operate.DeadLetterFilter{Consumer: "topic", IDs: []string{d.ID}}))
			text += string(one[0].Payload) + "\n"
		}
		for _, mark := range odd {
			if !strings.Contains(text, mark) {
				return false
			}
		}
		return true
	})
	if len(odd) < 5 {
		t.Errorf("only %d odd entries were written", len(odd))
	}
}
