package leaseredis

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
)

// leaseChunk is how many leases one script call works on at most: the server serves no other client in that time.
const leaseChunk = 500

// session is the liveness of this process: an entry under every tag, and one pipelined heartbeat
// for all of them.
//
// A tag that cannot be reached when the session is opened (a cluster lost the nodes of a shard) is
// left out: what is kept under the others goes on. It is entered as soon as it can be.
type session struct {
	ss    *sessions
	spec  backend.SessionSpec
	alarm chan struct{}

	stop    context.CancelFunc // of watch
	watched chan struct{}      // closed when watch has returned

	mu      sync.Mutex
	own     redis.UniversalClient // nil when it is over, or the client cannot be copied
	entered []bool                // by tag
	heard   []time.Time           // by tag: when a request was begun that succeeded
	over    bool                  // closed, or found dead
	joining bool                  // a goroutine tries to enter the tags that were left out
	posts   []*post               // where it watches others from
}

// sessions are those that this process has open.
type sessions struct {
	*shards
	holdings holdings
	unusable atomic.Bool  // a call found the application's client closed
	entries  atomic.Int64 // how often a session entered tags that it had left out

	mu   sync.Mutex
	open map[string]*session
}

// OpenSession starts a new incarnation. Repeating it with the id of a live session returns that session.
func (ss *sessions) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	if spec.ID == "" || spec.TTL <= 0 || strings.Contains(spec.ID, "\n") {
		return nil, fmt.Errorf("leaseredis: open session %q: it needs an id and a TTL above 0, not %v", spec.ID, spec.TTL)
	}
	for _, name := range spec.Consumers {
		if err := checkName(name); err != nil {
			return nil, err
		}
	}
	sh, err := ss.shape(ctx)
	if err != nil {
		return nil, err
	}
	if err := ss.closed(ctx); err != nil {
		return nil, err
	}
	if s := ss.session(spec.ID); s != nil {
		return s, s.Heartbeat(ctx)
	}
	s := &session{ss: ss, spec: spec, alarm: make(chan struct{}, 1), own: ss.ownClient(spec.TTL), entered: make([]bool, sh.tags), heard: make([]time.Time, sh.tags), watched: make(chan struct{})}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	before := ss.session(spec.Replaces)
	if before != nil {
		before.leave()
	}
	out, err := s.enterAll(ctx)
	if before != nil {
		before.stop() // not sooner: others would take it for dead
	}
	if err == nil && out > 0 {
		ss.warn("session "+spec.ID, "a part of the cluster cannot be reached: what is kept there waits, the rest goes on", "tags", out)
		s.sound() // try again soon
	}
	if err != nil {
		close(s.watched)
		s.end()
		if ctx.Err() != nil { // it may have been opened: no process would know of a member that owns no lease
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			s.Close(closing) // else it expires
		}
		return nil, fail("open a session", err)
	}
	ss.endSilent()
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.open[spec.ID] = s
	go s.watch(watching)
	return s, nil
}

// session returns the open session of that id, or nil.
func (ss *sessions) session(id string) *session {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.open[id]
}

// endSilent gives up the connections of sessions that have heard no answer for longer than they
// live: no process believes in them any more, and no process says so.
func (ss *sessions) endSilent() {
	ss.mu.Lock()
	var silent []*session
	for _, s := range ss.open {
		if !slices.ContainsFunc(s.tags(), s.reaches) {
			silent = append(silent, s)
		}
	}
	ss.mu.Unlock()
	for _, s := range silent {
		s.end()
	}
}

// reach lists the tags that this process works with for some consumers, or for all: all but those that none of their open
// sessions could enter, or has heard from as long as it lives. Sessions with a longer TTL notice later that a tag is lost.
func (ss *sessions) reach(sh *shape, consumers ...string) []int {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	open := slices.Collect(maps.Values(ss.open))
	theirs := slices.DeleteFunc(slices.Clone(open), func(s *session) bool { return !s.serves(consumers) })
	if len(theirs) == 0 { // none is open yet, or they are an operator's
		theirs = open
	}
	tags := slices.DeleteFunc(sh.all(), func(tag int) bool {
		return len(theirs) > 0 && !slices.ContainsFunc(theirs, func(s *session) bool { return s.reaches(tag) })
	})
	if len(tags) == 0 { // it is not a part that is lost
		return sh.all()
	}
	return tags
}

// ownClients are those that heartbeats go over, in a cluster.
func (ss *sessions) ownClients() (out []*redis.ClusterClient) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, s := range ss.open {
		if c, _ := s.client(); c != nil {
			if own, ok := c.(*redis.ClusterClient); ok && c != s.ss.client {
				out = append(out, own)
			}
		}
	}
	return out
}

// clientClosed notes that the application has closed its client, and alarms all sessions.
func (ss *sessions) clientClosed() {
	ss.unusable.Store(true)
	ss.alarm()
}

func (ss *sessions) namespaceGone() { ss.alarm() }

// alarm tells all sessions that something is wrong: the server was emptied, for example.
func (ss *sessions) alarm() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, s := range ss.open {
		s.sound()
	}
}

// Alarm is ready when a heartbeat should be sent at once.
func (s *session) Alarm() <-chan struct{} { return s.alarm }

func (s *session) sound() {
	select {
	case s.alarm <- struct{}{}:
	default:
	}
}

// reaches reports whether the session has entered a tag and heard from it in the time that it lives.
func (s *session) reaches(tag int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return tag < len(s.entered) && s.entered[tag] && time.Since(s.heard[tag]) < s.spec.TTL
}

// serves reports whether the session is that of one of the consumers.
func (s *session) serves(consumers []string) bool {
	return slices.ContainsFunc(consumers, func(c string) bool { return slices.Contains(s.spec.Consumers, c) })
}

// hear notes a request that succeeded under a tag.
func (s *session) hear(tag int, begun time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entered[tag], s.heard[tag] = true, begun
}

// tags are all of the namespace's.
func (s *session) tags() []int {
	in, out := s.split()
	return append(in, out...)
}

func (s *session) has(tag int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return tag < len(s.entered) && s.entered[tag]
}

// split returns the tags that the session has entered, and the others.
func (s *session) split() (in, out []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for tag, is := range s.entered {
		if is {
			in = append(in, tag)
		} else {
			out = append(out, tag)
		}
	}
	return in, out
}

// client is the session's own, as long as it has one.
func (s *session) client() (client redis.UniversalClient, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own != nil {
		return s.own, s.over
	}
	return s.ss.client, s.over
}

// enterAll opens the session under every tag. One that does not answer is asked again for a while,
// since leaving it out means to leave what is kept there to others.
func (s *session) enterAll(ctx context.Context) (out int, err error) {
	deadline := time.Now().Add(min(s.spec.TTL/3, 3*time.Second))
	for wait := 20 * time.Millisecond; ; wait *= 2 {
		_, missing := s.split()
		out, err = s.enter(ctx, missing)
		if out == 0 || err != nil && !moved(err) || time.Now().Add(wait).After(deadline) || !pause(ctx, wait) {
			break
		}
	}
	if out < len(s.entered) && moved(err) {
		err = nil
	}
	return out, err
}

// enter opens the session under these tags, and returns how many are left out. It fails when all are, or when an error is
// not about the cluster's state; of several errors that is the one.
func (s *session) enter(ctx context.Context, tags []int) (out int, err error) {
	topics := []byte("{}")
	if len(s.spec.Topics) > 0 {
		if topics, err = json.Marshal(s.spec.Topics); err != nil {
			return len(tags), err
		}
	}
	steps := same(tags, scripts.open, s.spec.ID, s.spec.TTL.Microseconds(), s.spec.Host, s.spec.PID,
		strings.Join(s.spec.Consumers, "\n"), topics, s.spec.Replaces)
	client, _ := s.client()
	begun := time.Now()
	var away, failed error
	for i, a := range s.ss.runOn(ctx, client, steps) {
		switch {
		case a.err == nil:
			s.hear(tags[i], begun)
			continue
		case moved(a.err):
			away = a.err
		case failed == nil || errors.Is(a.err, backend.ErrSessionLost):
			failed = a.err
		}
		out++
	}
	if failed == nil && out == len(tags) {
		failed = away
	}
	return out, failed
}

// closed returns an error when the application has closed its client. A node that left a cluster says the same of
// itself, so the client is asked once more.
func (ss *sessions) closed(ctx context.Context) error {
	if !ss.unusable.Load() {
		return nil
	}
	_, err := within(ctx, func(ctx context.Context) (string, error) { return ss.client.Ping(ctx).Result() })
	if !errors.Is(err, redis.ErrClosed) {
		ss.unusable.Store(false)
		return nil
	}
	return fmt.Errorf("leaseredis: the client that New was given is closed; stop consumers before you close it: %w", err)
}

// Heartbeat extends the session wherever it was entered. It uses a connection of its own to each node.
func (s *session) Heartbeat(ctx context.Context) error {
	client, over := s.client()
	if over {
		return backend.ErrSessionLost
	}
	if err := s.ss.closed(ctx); err != nil { // with a heartbeat of its own it would hold leases that no process works on
		s.end()
		s.ss.warn("closed", "the application closed its client while consumers ran; their leases are left to expire", "error", err)
		return backend.ErrSessionLost
	}
	in, out := s.split()
	steps := same(in, scripts.heartbeat, s.spec.ID, s.spec.TTL.Microseconds())
	var failed error
	begun := time.Now()
	for i, a := range s.ss.runOn(ctx, client, steps) {
		switch {
		case errors.Is(a.err, backend.ErrSessionLost), errors.Is(a.err, errShape):
			s.end()
			return backend.ErrSessionLost
		case a.err != nil:
			failed = a.err
		default:
			if back := number(a.value); back > time.Second.Microseconds() {
				s.ss.warn("clock", "the server's clock was set back: leases, retries and delayed events go by the time that it had reached, and a tenth slower until the clock has caught up",
					"tag", s.ss.prefix(in[i]), "by", time.Duration(back)*time.Microsecond)
			}
			s.hear(in[i], begun)
		}
	}
	if failed != nil {
		return fail("send a heartbeat", failed)
	}
	if len(out) > 0 {
		s.join()
	}
	return nil
}

// join tries to enter the tags that were left out, without keeping the heartbeat waiting.
func (s *session) join() {
	s.mu.Lock()
	busy := s.joining || s.over
	s.joining = true
	s.mu.Unlock()
	if busy {
		return
	}
	go func() {
		defer func() { s.mu.Lock(); s.joining = false; s.mu.Unlock() }()
		_, tags := s.split()
		if len(tags) == 0 { // another has just entered them
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), s.spec.TTL/3)
		defer cancel()
		out, err := s.enter(ctx, tags)
		if out < len(tags) {
			s.ss.entries.Add(1) // not sooner: what is registered after it is not passed over
			s.ss.log.Info("leaseredis: a part of the cluster can be reached again", "tags", len(tags)-out)
		}
		switch _, over := s.client(); {
		case errors.Is(err, backend.ErrSessionLost): // it was entered after all, and expired there
			s.end()
			s.sound()
		case err != nil && !moved(err) && !over:
			s.ss.warn("enter "+s.spec.ID, "a part of the cluster refuses the session, trying again: what is kept there waits", "tags", out, "error", explained(err))
		}
	}()
}

// Close gives the session's leases back and ends it. Closing one that is dead has no effect.
func (s *session) Close(ctx context.Context) error {
	s.leave()
	var failed error // under one tag; what is held under the others is given back nevertheless
	for again := s.tags(); len(again) > 0; {
		steps := same(again, scripts.close, s.spec.ID, leaseChunk)
		again = again[:0]
		for i, a := range s.ss.runAll(ctx, steps) {
			switch {
			case errors.Is(a.err, errShape): // none is left
			case a.err != nil && !s.has(steps[i].tag): // it was not opened there, or it expires
			case a.err != nil:
				failed = cmp.Or(failed, a.err)
			case number(a.value) > 0:
				again = append(again, steps[i].tag)
			}
		}
	}
	s.stop()
	select {
	case <-s.watched:
	case <-ctx.Done():
	}
	return fail("close the session", failed)
}

// end notes that the session is over and gives up its connections. It does not tell the server.
func (s *session) end() {
	s.leave()
	s.stop()
}

// leave is end, but for the connections by which others see that the session lives: without them they end it.
func (s *session) leave() {
	s.mu.Lock()
	own := s.own
	s.own, s.over = nil, true
	s.mu.Unlock()
	if own != nil {
		own.Close()
	}
	s.ss.holdings.ended(s.spec.ID)
	s.ss.mu.Lock()
	defer s.ss.mu.Unlock()
	if s.ss.open[s.spec.ID] == s {
		delete(s.ss.open, s.spec.ID)
	}
}

// ownClient returns a client like the application's for heartbeats alone: no handler can use up its
// connections, and it neither waits nor repeats for longer than a heartbeat may take. Nil
// when the client is of a kind that cannot be copied.
func (ss *sessions) ownClient(ttl time.Duration) redis.UniversalClient {
	patience := min(max(ttl/6, 100*time.Millisecond), 2*time.Second)
	switch c := ss.client.(type) {
	case *redis.Client:
		o := *c.Options()
		o.ContextTimeoutEnabled = true
		o.MaxRetries, o.DialerRetries = -1, 1
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = patience, patience, patience, patience
		o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns, o.PipelinePoolSize = 2, 0, 0, 0, -1 // no further pool for pipelines
		o.PushNotificationProcessor = nil                                                                 // has handlers of the application's client
		o.ClientSideCache, o.ClientSideCacheConfig = nil, nil
		return redis.NewClient(&o)
	case *redis.ClusterClient:
		o := *c.Options()
		o.Addrs = append(addresses(c, patience), o.Addrs...)
		o.ContextTimeoutEnabled = true
		o.MaxRetries, o.MaxRedirects, o.DialerRetries = -1, 2, 1
		// A node that hangs is soon given up: while go-redis asks it, of all nodes, for the topology,
		// no process learns who has taken its place. And it must not use up what asking takes.
		patience = min(max(ttl/12, 250*time.Millisecond), time.Second)
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = patience, patience, patience, patience
		o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns, o.PipelinePoolSize = 16, 0, 0, 0, -1
		return redis.NewClusterClient(&o)
	}
	return nil
}

// addresses are those of the nodes that a client knows of: the ones that it got at first may have
// been replaced since.
func addresses(c *redis.ClusterClient, patience time.Duration) []string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var mu sync.Mutex
	var addrs []string
	within(ctx, func(ctx context.Context) (struct{}, error) { // of an error there are no addresses
		return struct{}{}, c.ForEachShard(ctx, func(_ context.Context, node *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			addrs = append(addrs, node.Options().Addr)
			return nil
		})
	})
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(addrs)
}

// sessionsKept is for how long an ended session is remembered: a request of its process that
// was held up on its way cannot bring it back within that time.
const sessionsKept = time.Hour

// everyTag runs a script with limit as its last argument under every tag in the consumers' reach, again and again
// where it did as much as it may at a time, and passes on each answer. done tells how much that was.
func (ss *sessions) everyTag(ctx context.Context, sh *shape, consumers []string, s *script, done func(value any) int, args ...any) error {
	args = append(slices.Clone(args), leaseChunk)
	for again := ss.reach(sh, consumers...); len(again) > 0; {
		steps := same(again, s, args...)
		again = nil
		for i, a := range ss.runAll(ctx, steps) {
			if a.err != nil {
				return a.err
			}
			if done(a.value) >= leaseChunk {
				again = append(again, steps[i].tag)
			}
		}
	}
	return nil
}

// forgetSessions declares expired sessions dead and forgets those that ended long ago. It also
// sees to it that none lives on because the server's clock was set back.
func (ss *sessions) forgetSessions(ctx context.Context, sh *shape, consumers []string) (int, error) {
	back := 0
	err := ss.everyTag(ctx, sh, consumers, scripts.rewind, func(v any) int { n := int(number(v)); back += n; return n })
	if err != nil {
		return 0, fail("look at the server's clock", err)
	}
	if back > 0 {
		ss.warn("clock", "the server's clock was set back by more than a minute: sessions and leases that waited for a time wait no longer than they would have", "corrected", back)
	}
	gone := map[string]bool{}
	err = ss.everyTag(ctx, sh, consumers, scripts.forgetsessions, func(v any) int {
		for _, id := range texts(v) {
			gone[id] = true
		}
		return len(list(v))
	}, sessionsKept.Microseconds())
	return len(gone), fail("forget sessions", err)
}
