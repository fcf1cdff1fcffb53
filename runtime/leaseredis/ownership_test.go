package leaseredis_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// meddler does something right before a script is called for the first time.
type meddler struct {
	before string // script
	do     func()
	done   bool
}

func (m *meddler) look(cmd redis.Cmder) {
	args := cmd.Args()
	if len(args) > 1 && args[1] == leaseredis.ShaOf(m.before) && !m.done {
		m.done = true
		m.do()
	}
}

func (m *meddler) DialHook(next redis.DialHook) redis.DialHook { return next }

func (m *meddler) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		m.look(cmd)
		return next(ctx, cmd)
	}
}

func (m *meddler) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, c := range cmds {
			m.look(c)
		}
		return next(ctx, cmds)
	}
}

// A message between the look for work and the end of a stream's lease keeps the stream wanted.
func TestWorkThatComesWhileAStreamIsRetired(t *testing.T) {
	info := backend.ConsumerInfo{Name: "c", Per: backend.PerStream, Topics: []string{"*"}}
	for name, meddle := range map[string]func(other *leaseredis.Backend, session string, g backend.Grant){
		"a message": func(other *leaseredis.Backend, _ string, _ backend.Grant) {
			kit.OK(t, other.Publish(t.Context(), []backend.Event{{Topic: "x", Key: "a", Kind: "k"}}))
			kit.OK(t, other.Register(t.Context(), info, []string{"a"})) // as processes do that hear of it
		},
		"a replay": func(other *leaseredis.Backend, _ string, _ backend.Grant) {
			kit.Equal(t, "replayed", kit.Must[int](t)(other.Replay(t.Context(), operate.DeadLetterFilter{Consumer: "c"})), 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := redistest.Shared(t).Client(t)
			namespace := redistest.Namespace(t)
			be, other := on(c, namespace), on(redistest.Shared(t).Client(t), namespace)
			kit.OK(t, other.Publish(t.Context(), []backend.Event{{Topic: "x", Key: "a", Kind: "k"}}))
			id := kit.Join(t, be, info, time.Hour)
			kit.OK(t, be.Register(t.Context(), info, []string{"a"}))
			g := id.Acquires(1)[0]
			got := kit.Fetch(t, be, info, "a", g.Cursor, 9)
			kit.Must[[]string](t)(be.Commit(t.Context(), id.ID, "c", []backend.Progress{{Ref: g.Ref, Cursor: got.Next,
				Dead: []backend.Dead{{ID: got.Messages[0].ID, Attempt: 1, Reason: "r"}}}}))
			m := &meddler{before: "retire", do: func() { meddle(other, id.ID, g) }}
			c.AddHook(m)
			kit.OK(t, be.Retire(t.Context(), id.ID, "c", []backend.Ref{g.Ref}))
			if !m.done {
				t.Fatal("nothing came in between")
			}
			kit.Equal(t, "free", survey(t, other, info).Free, 1)
		})
	}
}

// It is the lease that says whose it is, not the list of what a session owns.
func TestCloseFreesOnlyWhatTheSessionOwns(t *testing.T) {
	c := redistest.Shared(t).Client(t)
	namespace := redistest.Namespace(t)
	be := on(c, namespace)
	one := kit.Join(t, be, topical, time.Hour)
	two := kit.Join(t, be, topical, time.Hour)
	kit.OK(t, be.Register(t.Context(), topical, []string{"a"}))
	kit.Equal(t, "granted", len(two.Acquires(1)), 1)
	kit.OK(t, c.SAdd(t.Context(), "{"+namespace+"0}:held:topical:"+one.ID, "a").Err())
	kit.OK(t, one.Session.Close(t.Context()))
	kit.Equal(t, "free", survey(t, be, topical).Free, 0)
}

// However many processes die at once, one acquire after the other finds what they leave.
func TestManySessionsDieAtOnce(t *testing.T) {
	const n = 50
	be := fresh(t, leaseredis.WithTags(2))
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(n)))
	for range n {
		id := kit.Join(t, be, topical, 3*time.Second)
		kit.Equal(t, "granted", len(id.Acquires(1)), 1)
	}
	next := kit.Join(t, be, topical, time.Hour)
	kit.Eventually(t, "all are free", func() bool { return survey(t, be, topical).Free == n })
	got := 0
	kit.Eventually(t, "all are taken over", func() bool {
		got += len(next.Acquires(n))
		return got == n
	})
	s := survey(t, be, topical)
	kit.Equal(t, "members", len(s.Members), 1)
	kit.Equal(t, "owned", s.Members[0].Owned, n)
	kit.Equal(t, "free", s.Free, 0)
}

// A lease that expires by itself is counted once, also when its owner's session has expired too.
func TestALeaseThatExpiredTwiceIsCountedOnce(t *testing.T) {
	t.Parallel()
	be := fresh(t)
	info := backend.ConsumerInfo{Name: "c", Per: backend.PerStream, Announced: true, Lock: backend.LockRow, TTL: 600 * time.Millisecond}
	id := kit.Join(t, be, info, 3*time.Second)
	kit.OK(t, be.Register(t.Context(), info, []string{"a", "b", "c"}))
	gs := id.Acquires(2)
	kit.Equal(t, "granted", len(gs), 2)
	info.TTL = time.Hour
	kit.Eventually(t, "the session and one of its leases expire", func() bool {
		_, err := be.Renew(t.Context(), id.ID, info, kit.Refs(gs[:1]))
		kit.OK(t, err)
		s := survey(t, be, info)
		if s.Free > 3 {
			t.Fatalf("%d of 3 leases are free", s.Free)
		}
		return len(s.Members) == 0
	})
	kit.Equal(t, "free", survey(t, be, info).Free, 3)
	next := kit.Join(t, be, info, time.Hour)
	kit.Equal(t, "granted", len(next.Acquires(9)), 3)
}

// Names of resources and lanes may contain anything; those of consumers must not end early.
func TestNamesOfResources(t *testing.T) {
	be := fresh(t, leaseredis.WithTags(3))
	names := []string{"a", "a:b", "{lg1}", "}{", "*", " ", "\n", "[x]?", `\`, "é", fmt.Sprint("l", string(make([]byte, 900)))}
	id := kit.Join(t, be, topical, time.Hour)
	info := topical
	info.Topics = []string{"*"}
	kit.OK(t, be.Register(t.Context(), info, names))
	seen := map[string]bool{}
	gs := id.As(info).Acquires(99)
	for _, g := range gs {
		seen[g.Resource] = true
	}
	for _, n := range names {
		if !seen[n] {
			t.Errorf("%q was not granted", n)
		}
	}
	kit.Equal(t, "granted", len(gs), len(names))
	kit.OK(t, be.Release(t.Context(), id.ID, info.Name, kit.Refs(gs)))
	kit.Equal(t, "free", survey(t, be, info).Free, len(names))

	for _, bad := range []string{"", "a:b", "a\nb"} {
		info.Name = bad
		refused(t, be.Register(t.Context(), info, nil), fmt.Sprintf("%q", bad))
		_, err := be.OpenSession(t.Context(), backend.SessionSpec{ID: kit.ID(), TTL: time.Hour, Consumers: []string{bad}})
		refused(t, err, fmt.Sprintf("%q", bad))
	}
}
