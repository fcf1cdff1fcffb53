package leaseredis_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// losing loses the reply of one of the next scripts, with what the hook says.
type losing struct{ after atomic.Int64 }

func (l *losing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *losing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *losing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "evalsha" && l.after.Add(-1) == 0 {
			err = errors.New("the reply was lost")
			cmd.SetErr(err)
		}
		return err
	}
}

// An attempt that is repeated after a lost reply gets what it was granted, whatever became free in between, and not
// more than it asked for.
func TestARepeatedAttemptGetsNoMoreThanItAskedFor(t *testing.T) {
	name := redistest.Namespace(t)
	c := client(t, func(o *redis.Options) { o.MaxRetries = -1 })
	lost := &losing{}
	c.AddHook(lost)
	be := on(c, name, leaseredis.WithTags(2), leaseredis.WithLogger(discard))
	id := kit.Join(t, be, topical, time.Hour)
	topics := map[int][]string{}
	for _, topic := range kit.Topics(40) {
		topics[tagOf(topic, 2)] = append(topics[tagOf(topic, 2)], topic)
	}
	req := id.Request(5)
	first := tagOf(req.Attempt, 2) // the tag that the attempt begins at
	kit.OK(t, be.Register(t.Context(), topical, topics[1-first][:9]))
	kit.OK(t, be.Register(t.Context(), topical, topics[first][:1]))
	id.Acquires(10)
	held := survey(t, be, topical).Members[0].Owned
	kit.Equal(t, "held before", held, 10)
	kit.OK(t, be.Register(t.Context(), topical, topics[1-first][9:14])) // there is something free at the second tag only
	lost.after.Store(2)
	if _, err := be.Acquire(t.Context(), req); err == nil {
		t.Fatal("no reply was lost")
	}
	kit.OK(t, be.Register(t.Context(), topical, topics[first][1:9])) // and now at the first one, too
	gs := kit.Must[[]backend.Grant](t)(be.Acquire(t.Context(), req))
	kit.Equal(t, "granted", len(gs), 5)
	for _, g := range gs {
		kit.Equal(t, "tag of "+g.Resource, tagOf(g.Resource, 2), 1-first)
	}
	kit.Equal(t, "held after", survey(t, be, topical).Members[0].Owned, 15)
}

// An attempt that fails at one lease, whose key was overwritten, leaves those before it as they were.
func TestAnAttemptThatFailsTakesNone(t *testing.T) {
	c, ns := redistest.Shared(t).Client(t), redistest.Namespace(t)
	be := on(c, ns, leaseredis.WithTags(1), leaseredis.WithLogger(discard))
	kit.OK(t, be.Register(t.Context(), topical, []string{"a", "b"}))
	former := kit.Join(t, be, topical, time.Hour)
	gs := former.Acquires(2)
	kit.Equal(t, "granted", len(gs), 2)
	kit.OK(t, former.Session.Close(t.Context()))
	id := kit.Join(t, be, topical, time.Hour)
	key := func(topic string) string { return "{" + ns + "0}:l:topical:" + topic }
	before := kit.Must[map[string]string](t)(c.HGetAll(t.Context(), key("a")).Result())
	kit.OK(t, c.Set(t.Context(), key("b"), "not a lease", 0).Err())
	if gs, err := be.Acquire(t.Context(), id.Request(2)); err == nil {
		t.Fatalf("granted %v", gs)
	}
	after := kit.Must[map[string]string](t)(c.HGetAll(t.Context(), key("a")).Result())
	kit.Equal(t, "epoch", after["e"], before["e"])
	kit.Equal(t, "owner", after["o"], before["o"])
}
