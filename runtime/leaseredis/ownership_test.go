package leaseredis_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
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

// Whatever comes between the look for work and the end of a stream's lease keeps the stream wanted.
func TestWorkThatComesWhileAStreamIsRetired(t *testing.T) {
	info := backend.ConsumerInfo{Name: "c", Per: backend.PerStream, Topics: []string{"*"}}
	for name, meddle := range map[string]func(other *leaseredis.Backend, session string, g backend.Grant){
		"a message": func(other *leaseredis.Backend, _ string, _ backend.Grant) {
			ok(t, other.Publish(t.Context(), []backend.Event{{Topic: "x", Key: "a", Kind: "k"}}))
			ok(t, other.Register(t.Context(), info, []string{"a"})) // as processes do that hear of it
		},
		"a replay": func(other *leaseredis.Backend, _ string, _ backend.Grant) {
			equal(t, "replayed", must[int](t)(other.Replay(t.Context(), operate.DeadLetterFilter{Consumer: "c"})), 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := redistest.Shared(t).Client(t)
			namespace := redistest.Namespace(t)
			be, other := on(c, namespace), on(redistest.Shared(t).Client(t), namespace)
			ok(t, other.Publish(t.Context(), []backend.Event{{Topic: "x", Key: "a", Kind: "k"}}))
			id, _ := member(t, be, time.Hour, info)
			ok(t, be.Register(t.Context(), info, []string{"a"}))
			g := acquire(t, be, id, info, 1)[0]
			got := fetch(t, be, info, "a", g.Cursor, 9)
			must[[]string](t)(be.Commit(t.Context(), id, "c", []backend.Progress{{Ref: g.Ref, Cursor: got.Next,
				Dead: []backend.Dead{{ID: got.Messages[0].ID, Attempt: 1, Reason: "r"}}}}))
			m := &meddler{before: "retire", do: func() { meddle(other, id, g) }}
			c.AddHook(m)
			ok(t, be.Retire(t.Context(), id, "c", []backend.Ref{g.Ref}))
			if !m.done {
				t.Fatal("nothing came in between")
			}
			equal(t, "free", survey(t, other, info).Free, 1)
		})
	}
}

// It is the lease that says whose it is, not the list of what a session owns.
func TestCloseFreesOnlyWhatTheSessionOwns(t *testing.T) {
	c := redistest.Shared(t).Client(t)
	namespace := redistest.Namespace(t)
	be := on(c, namespace)
	one, s := member(t, be, time.Hour, topical)
	two, _ := member(t, be, time.Hour, topical)
	ok(t, be.Register(t.Context(), topical, []string{"a"}))
	equal(t, "granted", len(acquire(t, be, two, topical, 1)), 1)
	ok(t, c.SAdd(t.Context(), "{"+namespace+"0}:held:topical:"+one, "a").Err())
	ok(t, s.Close(t.Context()))
	equal(t, "free", survey(t, be, topical).Free, 0)
}

// However many processes die at once, one acquire after the other finds what they leave.
func TestManySessionsDieAtOnce(t *testing.T) {
	const n = 50
	be := fresh(t, leaseredis.WithTags(2))
	ok(t, be.Register(t.Context(), topical, topicNames(n)))
	for range n {
		id, _ := member(t, be, time.Second, topical)
		equal(t, "granted", len(acquire(t, be, id, topical, 1)), 1)
	}
	next, _ := member(t, be, time.Hour, topical)
	eventually(t, "all are free", func() bool { return survey(t, be, topical).Free == n })
	got := 0
	eventually(t, "all are taken over", func() bool {
		got += len(acquire(t, be, next, topical, n))
		return got == n
	})
	s := survey(t, be, topical)
	equal(t, "members", len(s.Members), 1)
	equal(t, "owned", s.Members[0].Owned, n)
	equal(t, "free", s.Free, 0)
}

// A lease that expires by itself is counted once, also when its owner's session has expired too.
func TestALeaseThatExpiredTwiceIsCountedOnce(t *testing.T) {
	be := fresh(t)
	info := backend.ConsumerInfo{Name: "c", Per: backend.PerStream, Announced: true, Lock: backend.LockRow, TTL: 600 * time.Millisecond}
	id, _ := member(t, be, 3*time.Second, info)
	ok(t, be.Register(t.Context(), info, []string{"a", "b", "c"}))
	gs := acquire(t, be, id, info, 2)
	equal(t, "granted", len(gs), 2)
	info.TTL = time.Hour
	eventually(t, "the session and one of its leases expire", func() bool {
		_, err := be.Renew(t.Context(), id, info, refs(gs[:1]))
		ok(t, err)
		s := survey(t, be, info)
		if s.Free > 3 {
			t.Fatalf("%d of 3 leases are free", s.Free)
		}
		return len(s.Members) == 0
	})
	equal(t, "free", survey(t, be, info).Free, 3)
	next, _ := member(t, be, time.Hour, info)
	equal(t, "granted", len(acquire(t, be, next, info, 9)), 3)
}

// Names of resources and lanes may contain anything; those of consumers must not end early.
func TestNamesOfResources(t *testing.T) {
	be := fresh(t, leaseredis.WithTags(3))
	names := []string{"a", "a:b", "{lg1}", "}{", "*", " ", "\n", "[x]?", `\`, "é", fmt.Sprint("l", string(make([]byte, 900)))}
	id, _ := member(t, be, time.Hour, topical)
	info := topical
	info.Topics = []string{"*"}
	ok(t, be.Register(t.Context(), info, names))
	seen := map[string]bool{}
	gs := acquire(t, be, id, info, 99)
	for _, g := range gs {
		seen[g.Resource] = true
	}
	for _, n := range names {
		if !seen[n] {
			t.Errorf("%q was not granted", n)
		}
	}
	equal(t, "granted", len(gs), len(names))
	ok(t, be.Release(t.Context(), id, info.Name, refs(gs)))
	equal(t, "free", survey(t, be, info).Free, len(names))

	for _, bad := range []string{"", "a:b", "a\nb"} {
		info.Name = bad
		refused(t, be.Register(t.Context(), info, nil), fmt.Sprintf("%q", bad))
		_, err := be.OpenSession(t.Context(), backend.SessionSpec{ID: newID(), TTL: time.Hour, Consumers: []string{bad}})
		refused(t, err, fmt.Sprintf("%q", bad))
	}
}
