package leaseredis_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// rewriting changes what is sent, as a proxy might that has connections of its own.
type rewriting struct {
	net.Conn
	from, to []byte
}

func (r rewriting) Write(b []byte) (int, error) {
	if _, err := r.Conn.Write(bytes.ReplaceAll(b, r.from, r.to)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Where ids of connections are no proof, or may not be asked for, the TTL decides, and status and log say so.
func TestWhereTheTTLDecides(t *testing.T) {
	t.Parallel()
	rules := func(namespace string, without ...string) []string {
		return slices.DeleteFunc(leaseredis.ACL(namespace), func(r string) bool { return slices.Contains(without, r) })
	}
	for name, connect := range map[string]func(t *testing.T, s *redistest.Server, ns string) redis.UniversalClient{
		"no right to list": func(t *testing.T, s *redistest.Server, ns string) redis.UniversalClient {
			return s.User(t, "nolist", rules(ns, "+client|list")...)
		},
		"no rights": func(t *testing.T, s *redistest.Server, ns string) redis.UniversalClient {
			return s.User(t, "none", rules(ns, "+client|list", "+client|id", "+client|setname", "+info")...)
		},
		"proxy with other names": func(t *testing.T, s *redistest.Server, _ string) redis.UniversalClient {
			return behind(t, s, "leasegen-", "someones-")
		},
		"proxy with other ids": func(t *testing.T, s *redistest.Server, _ string) redis.UniversalClient {
			return behind(t, s, "client\r\n$2\r\nid\r\n", "client\r\n$8\r\ngetredir\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			w := watchedOn(t, s)
			var log logBook
			be := on(connect(t, s, w.namespace), w.namespace, log.option())
			kit.OK(t, be.Check(t.Context(), nil))
			able := on(w.c, w.namespace, leaseredis.WithLogger(discard))
			watcher := w.join(able, grouped, time.Minute)
			const ttl = 10 * time.Second
			a := kit.Join(t, be, grouped, ttl)
			kit.Eventually(t, "the log says so", func() bool { return log.count("when its TTL is over") == 1 })
			detection := map[string]string{}
			for _, m := range kit.Must[[]operate.MemberStatus](t)(able.Members(t.Context(), grouped.Name)) {
				detection[m.Session] = m.Detection
			}
			kit.Equal(t, "detection of one that can be watched", detection[watcher.ID], "connection")
			kit.Equal(t, "detection", detection[a.ID], "ttl")
			expires := time.UnixMicro(int64(w.c.ZScore(t.Context(), w.key(0, "sessions"), a.ID).Val()))
			kit.Eventually(t, "its TTL is over", func() bool {
				_ = watcher.Acquires(1)
				return w.dead(a.ID)
			})
			if early := time.Until(expires); early > 10*time.Millisecond {
				t.Errorf("it was ended %v too early", early)
			}
		})
	}
}

// listing is a connection through one of several proxies, each of which shows its own clients alone.
type listing struct {
	net.Conn
	admin *redis.Client
	own   *sync.Map // addresses of the proxy's connections
}

func (l listing) Write(b []byte) (int, error) {
	words := strings.Fields(string(b))
	if len(words) < 9 || words[2] != "CLIENT" || words[4] != "LIST" {
		return l.Conn.Write(b)
	}
	shown := map[string]bool{}
	for line := range strings.Lines(l.admin.ClientList(context.Background()).Val()) {
		f := strings.Fields(line)
		_, own := l.own.Load(strings.TrimPrefix(f[1], "addr="))
		shown[strings.TrimPrefix(f[0], "id=")] = own
	}
	args := []string{"CLIENT", "LIST", "ID"}
	for i := 8; i < len(words); i += 2 {
		if shown[words[i]] {
			args = append(args, words[i])
		}
	}
	request := "*" + strconv.Itoa(len(args)) + "\r\n"
	for _, a := range args {
		request += "$" + strconv.Itoa(len(a)) + "\r\n" + a + "\r\n"
	}
	if _, err := l.Conn.Write([]byte(request)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Of a process behind another proxy, which does not show its connection to this one, the TTL decides. The log says so.
func TestSeveralProxiesEndNobody(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	const ttl = 9 * time.Second
	var log logBook
	var all []*kit.Actor
	for range 2 {
		admin, own := s.Client(t), &sync.Map{}
		be := on(through(t, s.Addr(), func(c net.Conn) net.Conn {
			own.Store(c.LocalAddr().String(), true)
			return listing{c, admin, own}
		}), w.namespace, log.option())
		hinted(t, be)
		for range 2 {
			a := w.join(be, grouped, ttl)
			alive(t, a, ttl)
			all = append(all, a)
		}
	}
	status := on(w.c, w.namespace, leaseredis.WithLogger(discard))
	kit.Eventually(t, "the log and the status say so, for all behind one of the two", func() bool {
		by := map[string]string{}
		for _, m := range kit.Must[[]operate.MemberStatus](t)(status.Members(t.Context(), grouped.Name)) {
			by[m.Session] = m.Detection
		}
		ttl := func(a *kit.Actor) bool { return by[a.ID] == "ttl" }
		return log.count("as behind several proxies") > 0 && (ttl(all[0]) && ttl(all[1]) || ttl(all[2]) && ttl(all[3]))
	})
	for _, a := range all {
		kit.Equal(t, "it was ended", w.dead(a.ID), false)
	}
	kit.Equal(t, "deaths", log.count("a session has died"), 0)
}

// behind is a client whose connections replace what is sent.
func behind(t testing.TB, s *redistest.Server, from, to string) redis.UniversalClient {
	return through(t, s.Addr(), func(c net.Conn) net.Conn { return rewriting{c, []byte(from), []byte(to)} })
}

// When the right is taken away, what was noted is no proof any more.
func TestARightThatIsTakenAway(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	var seen sights
	be := on(through(t, s.Addr(), seen.open), w.namespace, leaseredis.WithLogger(discard))
	hinted(t, be)
	near := w.join(be, grouped, time.Minute)
	a := w.join(on(s.User(t, "app", leaseredis.ACL(w.namespace)...), w.namespace, leaseredis.WithLogger(discard)), grouped, time.Minute)
	w.sees(&seen, near.ID, a.ID)
	before := w.conn(0, a.ID)
	kit.OK(t, w.c.Do(t.Context(), "ACL", "SETUSER", "app", "-client|list").Err())
	killConn(t, s.Client(t), before)
	kit.Eventually(t, "it is taken back", func() bool { return w.conn(0, a.ID) == "" })
	time.Sleep(time.Second)
	kit.Equal(t, "it is dead", w.dead(a.ID), false)
	kit.OK(t, a.Session.Heartbeat(t.Context()))
}

// refusing is a connection to a server that answers BUSY to CLIENT, or to scripts, while it is to.
type refusing struct {
	net.Conn              // to the server
	replies, far net.Conn // ends of the pipe that replies go through
	client, eval *atomic.Bool
}

func refuses(c net.Conn, client, eval *atomic.Bool) net.Conn {
	near, far := net.Pipe()
	go func() { _, _ = io.Copy(far, c); far.Close() }()
	return refusing{c, near, far, client, eval}
}

func (r refusing) Write(b []byte) (int, error) {
	words := bytes.ToLower(b)
	if !(r.client.Load() && bytes.Contains(words, []byte("client"))) && !(r.eval.Load() && bytes.Contains(words, []byte("eval"))) {
		return r.Conn.Write(b)
	}
	go func() {
		for range bytes.Count(b, []byte("\r\n*")) + 1 {
			_, _ = r.far.Write([]byte("-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n"))
		}
	}()
	return len(b), nil
}

func (r refusing) Read(b []byte) (int, error) { return r.replies.Read(b) }

func (r refusing) SetReadDeadline(at time.Time) error { return r.replies.SetReadDeadline(at) }

func (r refusing) SetDeadline(at time.Time) error {
	return errors.Join(r.replies.SetReadDeadline(at), r.Conn.SetWriteDeadline(at))
}

func (r refusing) Close() error { r.replies.Close(); return r.Conn.Close() }

// A server that answers BUSY for a while has not said that its connections are no proof: who is refused keeps the one that it noted,
// and finds deaths soon after.
func TestABusyServerEndsNobody(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	be := on(w.c, w.namespace, leaseredis.WithLogger(discard))
	var busy atomic.Bool
	var log logBook
	var seen sights
	refused := on(through(t, s.Addr(), func(c net.Conn) net.Conn { return refuses(seen.open(c), &busy, &busy) }), w.namespace, log.option())
	hinted(t, be)
	hinted(t, refused)
	const ttl = 9 * time.Second
	witness := w.join(be, grouped, time.Hour)
	a := w.join(refused, grouped, ttl)
	alive(t, a, ttl)
	p := faultproxy.Start(t, s.Addr())
	c := redis.NewClient(&redis.Options{Addr: p.Addr()})
	t.Cleanup(func() { c.Close() })
	doomed := w.join(on(c, w.namespace, leaseredis.WithLogger(discard)), grouped, time.Hour)
	w.sees(&seen, a.ID, doomed.ID, witness.ID)
	busy.Store(true)
	time.Sleep(2 * time.Second)
	kit.Equal(t, "it was ended", w.dead(a.ID), false)
	busy.Store(false)
	kit.OK(t, witness.Session.Close(t.Context()))
	kit.OK(t, a.Session.Heartbeat(t.Context()))
	bare := pace.Beside(t, func(ctx context.Context) error { return w.c.Exists(ctx, w.key(0, "meta")).Err() })
	p.Cut()
	cut := time.Now()
	kit.Eventually(t, "it finds another", func() bool { return w.dead(doomed.ID) })
	bare.Within(t, "finding it", time.Since(cut), 5*time.Second)
	kit.Equal(t, "it was ended", w.dead(a.ID), false)
	kit.Equal(t, "warnings", log.count("when its TTL is over"), 0)
}

// The note of a connection that has ended is taken back as soon as the server lets that, also when no other can be made.
func TestAConnectionIsTakenBackWhenTheServerIs(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	var client, eval atomic.Bool
	a := w.join(on(through(t, s.Addr(), func(c net.Conn) net.Conn { return refuses(c, &client, &eval) }), w.namespace,
		leaseredis.WithLogger(discard)), grouped, time.Minute)
	before := w.conn(0, a.ID)
	client.Store(true)
	eval.Store(true)
	killConn(t, s.Client(t), before)
	time.Sleep(time.Second)
	kit.Equal(t, "connection noted while scripts are refused", w.conn(0, a.ID), before)
	eval.Store(false)
	kit.Eventually(t, "it is taken back", func() bool { return w.conn(0, a.ID) == "" })
	client.Store(false)
	w.linked(a.ID, before)
}

// When a part of a cluster refuses, under one tag of two, the connection stands under the other, and is not replaced all the time.
func TestATagThatIsDown(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := watchedOn(t, s)
	w.tags = 2
	down := kit.Must[string](t)(w.c.ScriptLoad(t.Context(), "return redis.error_reply('CLUSTERDOWN Hash slot not served')").Result())
	second := w.key(1, "")
	command := func(sha string) []byte {
		return []byte(sha + "\r\n$1\r\n2\r\n$" + strconv.Itoa(len(second+"meta")) + "\r\n" + second)
	}
	var refused atomic.Bool
	c := through(t, s.Addr(), func(c net.Conn) net.Conn {
		if refused.Load() {
			return rewriting{c, command(leaseredis.ShaOf("ring")), command(down)}
		}
		return c
	})
	var seen sights
	be := on(through(t, s.Addr(), seen.open), w.namespace, leaseredis.WithLogger(discard), leaseredis.WithTags(2))
	hinted(t, be)
	near := w.join(be, grouped, time.Minute)
	a := w.join(on(c, w.namespace, leaseredis.WithLogger(discard), leaseredis.WithTags(2)), grouped, time.Minute)
	alive(t, a, time.Minute)
	w.sees(&seen, near.ID, a.ID)
	before := w.conn(0, a.ID)
	refused.Store(true)
	killConn(t, s.Client(t), before)
	kit.Eventually(t, "it has another connection", func() bool { c := w.conn(0, a.ID); return c != "" && c != before })
	noted := w.conn(0, a.ID)
	time.Sleep(1500 * time.Millisecond)
	kit.Equal(t, "connection", w.conn(0, a.ID), noted)
	kit.Equal(t, "connection under the tag that is down", w.conn(1, a.ID), "")
	kit.Equal(t, "it was ended", w.dead(a.ID), false)
	refused.Store(false)
	killConn(t, s.Client(t), noted)
	w.linked(a.ID, noted)
	kit.Equal(t, "it was ended", w.dead(a.ID), false)
}
