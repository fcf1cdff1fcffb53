package leaseredis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
)

// How a process that died is found within half a second, whatever the TTL: every session has a connection to each server that has
// tags of it, and notes the connection's id under those tags. The sessions of a tag are a ring, and each looks whether the server
// still has the connections of the next two. Looking is one command, and writes no key.
//
// A connection that is gone twice in a row proves death, within the run of the server that gave the id; after a restart or a
// failover the TTL decides. And only if the one who looks has seen it over the link that it has now: behind several proxies each may
// show its own clients alone. So each also looks once at those of the next twenty that it has not seen, when it reads who they are: the dead
// may stand side by side. The TTL decides about a process that dies in its first moment, until others have looked at it (a third of a second, or
// ringEvery if they did not hear of it), about one whose watchers have all died or lost their links with it, and beyond twenty dead
// side by side. The script that ends a session does so only while that has noted no other connection. A process
// whose connection alone broke says so at once over that of its heartbeats, and then has a new one; a process that lost a connection
// itself, or was slow, does not judge. A process that was ended by mistake is fenced, and opens a new session.
const (
	watchEvery = 310 * time.Millisecond
	// A connection that broke under a process that lives is replaced within this time, or three times as long as it takes.
	watchAgain = 120 * time.Millisecond
	// ringEvery is how often a session reads who comes after it, when none is known to have come or gone; of more than five tags
	// of one server a second each.
	ringEvery = 5 * time.Second
	// watchLate is by how much a look is late, at least, of a process that was frozen.
	watchLate = time.Second
	// postsEvery is how often it is looked where the tags are.
	postsEvery = time.Second
	// proveEvery is how often a server is asked again whose connections were no proof.
	proveEvery = time.Minute
	// A session that lives for so long after its connection was looked for in vain is behind another proxy.
	hiddenFor = ringEvery - time.Second
	// After so many refusals in a row a link is tried less often, and the log says so.
	refusals, refusedEvery = 20, 5 * time.Second
)

// post is where a session watches others from: one server.
type post struct {
	s       *session
	addr    string
	options redis.Options
	stop    context.CancelFunc
	stirred chan struct{} // a session has come or gone, or other tags are here
	missed  int           // for how many passes in a row no tag was here

	mu   sync.Mutex
	tags []int
}

// neighbour is a session that comes after this one, and the connection that it has noted.
type neighbour struct {
	session, conn string
	id            int64
}

// watch keeps a post at each server that has tags which the session has entered, until ctx ends.
func (s *session) watch(ctx context.Context) {
	all := posts{}
	var running sync.WaitGroup
	defer close(s.watched)
	defer running.Wait()
	for {
		begun, left := all.follow(s.nodes(ctx))
		for _, p := range left {
			p.stop()
		}
		for _, p := range begun {
			watching, stop := context.WithCancel(ctx)
			p.stop = stop
			running.Go(func() { p.keep(watching) })
		}
		s.mu.Lock()
		s.posts = slices.Collect(maps.Values(all))
		s.mu.Unlock()
		if !pause(ctx, postsEvery) {
			return
		}
	}
}

// posts are those of a session, by address.
type posts map[string]*post

// follow takes over where the tags are now, and returns which posts are new, and which are left. One is left when no tag was there
// twice in a row: a client that lacks a slot for a moment names any node.
func (all posts) follow(at map[string]*post) (begun, left []*post) {
	for addr, p := range all {
		if at[addr] != nil {
			p.missed = 0
		} else if p.missed++; p.missed > 1 {
			left = append(left, p)
			delete(all, addr)
		}
	}
	for addr, p := range at {
		if there := all[addr]; there != nil {
			there.assign(p.tags)
			continue
		}
		all[addr] = p
		begun = append(begun, p)
	}
	return begun, left
}

// nodes are posts for where the tags are now.
func (s *session) nodes(ctx context.Context) map[string]*post {
	tags, _ := s.split()
	client, _ := s.client()
	at := map[string]*post{}
	add := func(addr string, c *redis.Client, tags ...int) {
		if at[addr] == nil {
			at[addr] = &post{s: s, addr: addr, options: *c.Options(), stirred: make(chan struct{}, 1)}
		}
		at[addr].tags = append(at[addr].tags, tags...)
	}
	switch c := client.(type) {
	case *redis.Client:
		add(addressOf(c), c, tags...)
	case *redis.ClusterClient:
		ctx, cancel := context.WithTimeout(ctx, postsEvery)
		defer cancel()
		for _, tag := range tags {
			node, err := within(ctx, func(ctx context.Context) (*redis.Client, error) {
				return c.MasterForKey(ctx, s.ss.prefix(tag)+"meta")
			})
			if err == nil {
				add(node.Options().Addr, node, tag)
			}
		}
	}
	return at
}

// assign says which tags are here.
func (p *post) assign(tags []int) {
	p.mu.Lock()
	same := slices.Equal(p.tags, tags)
	p.tags = tags
	p.mu.Unlock()
	if !same {
		p.stir()
	}
}

func (p *post) here() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tags
}

func (p *post) stir() {
	select {
	case p.stirred <- struct{}{}:
	default:
	}
}

// sessionsChanged makes all sessions look who comes after them.
func (ss *sessions) sessionsChanged() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, s := range ss.open {
		s.mu.Lock()
		for _, p := range s.posts {
			p.stir()
		}
		s.mu.Unlock()
	}
}

// keep keeps a link, and looks after others over it, until ctx ends or the session has.
func (p *post) keep(ctx context.Context) {
	var back time.Time // when a broken link was replaced last
	for failures := 0; ctx.Err() == nil; failures++ {
		l, err := dial(ctx, p.options)
		if err == nil {
			settled := false
			settled, err = p.watch(ctx, l, back)
			if len(l.noted) > 0 {
				back = time.Now()
			}
			if settled {
				failures = -1
			}
			p.drop(l)
		}
		wait := min(5*time.Millisecond<<min(failures+1, 7), 500*time.Millisecond)
		switch {
		case errors.Is(err, backend.ErrSessionLost), errors.Is(err, errShape):
			p.s.sound()
			return
		case errors.Is(err, errUnprovable):
			p.s.ss.warn("detection "+p.addr, "that a process was killed is noticed when its TTL is over; give the user what leasegen acl prints, and connect without a proxy, to notice it by the end of its connection",
				"server", p.addr, "cause", err)
			wait = proveEvery
		case failures > refusals && passing(err):
			p.s.ss.warn("detection "+p.addr, "that this process was killed is noticed when its TTL is over, until the server accepts one more connection of it",
				"server", p.addr, "cause", err)
			wait = refusedEvery
		case failures < 0:
			continue
		}
		pause(ctx, wait)
	}
}

// drop closes a link. While the session lives, what was noted of the link is taken back first: its end proves death until then.
func (p *post) drop(l *link) {
	if _, over := p.s.client(); over || len(l.noted) == 0 {
		l.close()
		return
	}
	p.s.sound() // the runtime asks what is left
	go func() {
		defer l.close()
		p.s.withdraw(l.conn(), slices.Collect(maps.Keys(l.noted)))
	}()
}

// withdraw notes that a connection is no proof any more, over that of the heartbeats, as long as the session lives: another
// would end it when the server is back, and has not heard of this.
func (s *session) withdraw(conn string, tags []int) {
	for wait := 20 * time.Millisecond; len(tags) > 0; wait = min(2*wait, time.Second) {
		client, over := s.client()
		if over {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), s.spec.TTL/3)
		var again []int
		for i, a := range s.ss.runOn(ctx, client, same(tags, scripts.withdraw, s.spec.ID, conn)) {
			if a.err != nil && !errors.Is(a.err, errShape) {
				again = append(again, tags[i])
			}
		}
		cancel()
		if tags = again; len(tags) > 0 {
			time.Sleep(wait)
		}
	}
}

// watch looks after the session's neighbours until ctx ends or the link breaks. It returns whether the link could be noted.
// A server that refuses for a while what it is asked, because it runs a script of others, does not break the link.
func (p *post) watch(ctx context.Context, l *link, back time.Time) (settled bool, err error) {
	if !back.IsZero() {
		back = time.Now()
	}
	var of map[neighbour][]int // the tags of those to be watched
	var more []int64           // further connections that were not seen yet
	var read time.Time         // when they were
	due := time.Now()          // the next look
	for {
		stirred := false
		select {
		case <-p.stirred:
			stirred = true
		default:
		}
		if stirred || time.Since(read) >= max(ringEvery, time.Duration(len(p.here()))*time.Second) {
			read = time.Now()
			if of, more, err = p.ring(ctx, l); passing(err) {
				read = time.Time{}
			} else if err != nil {
				return settled, err
			}
			settled = settled || len(l.noted) > 0
		}
		gone, err := l.gone(ctx, of, more...)
		more = nil
		if err != nil && !passing(err) {
			return settled, err
		}
		if err != nil || since(due) > watchLate {
			back = time.Now()
		}
		early := !back.IsZero() && time.Since(back) < p.patience()
		if len(gone) > 0 && early {
			read = time.Time{} // who has come back is to be seen
		} else if len(gone) > 0 {
			buried, err := p.judge(ctx, l, gone, &back, &due)
			if passing(err) {
				back = time.Now()
			} else if err != nil {
				return settled, err
			}
			read = time.Time{}
			if buried > 0 {
				continue // who comes after them in the ring may have died with them
			}
		}
		wait, woken := watchEvery-watchEvery/20+rand.N(watchEvery/10), p.stirred
		if len(of) == 0 && !read.IsZero() {
			wait = ringEvery
		} else {
			woken = nil
		}
		due = time.Now().Add(wait)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-woken:
			p.stir()
		case <-l.line.ended:
			err = errLinkBroken
		case <-ctx.Done():
			err = ctx.Err()
		}
		timer.Stop()
		if err != nil && !passing(err) {
			return settled, err
		}
	}
}

// since is the time that has passed, also while the machine slept.
func since(at time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(at), now.Round(0).Sub(at.Round(0)))
}

// patience is for how long a process that was cut off or frozen leaves the others the time to come back, too.
func (p *post) patience() time.Duration { return min(max(p.s.spec.TTL/3, time.Second), 10*time.Second) }

// ring notes the link under the tags, and returns which two sessions come after this one under each, and the connections of the next
// ones that the link has not shown yet. If the server refuses that under some tags, the error says so, and the other tags count.
func (p *post) ring(ctx context.Context, l *link) (of map[neighbour][]int, more []int64, err error) {
	tags := p.here()
	of = map[neighbour][]int{}
	known := map[int64]sight{}
	var broken error
	for i, a := range p.s.ss.runOn(ctx, l.client, same(tags, scripts.ring, p.s.spec.ID, l.conn())) {
		switch {
		case redis.HasErrorPrefix(a.err, "MOVED"), redis.HasErrorPrefix(a.err, "ASK"), redis.HasErrorPrefix(a.err, "TRYAGAIN"):
			continue // another post will note one there
		case passing(a.err):
			err = a.err
			continue
		case a.err != nil:
			broken = a.err
		}
		l.noted[tags[i]] = true // or it may be
		for at, all := 0, texts(a.value); len(all) >= 3*(at+1); at++ {
			session, conn, beat := all[3*at], all[3*at+1], all[3*at+2]
			id, ok := l.given(conn)
			if !ok || session == p.s.spec.ID {
				continue
			}
			if at < 2 {
				n := neighbour{session, conn, id}
				of[n] = append(of[n], tags[i])
			}
			if _, is := known[id]; is {
				continue
			}
			before, is := l.known[id]
			switch {
			case !is:
				before = sight{tag: tags[i], since: time.Now(), beat: beat}
			case !before.seen && before.tag == tags[i] && before.beat != beat && time.Since(before.since) > hiddenFor:
				broken = fmt.Errorf("%w: the server does not show the connection of a process that lives, as behind several proxies", errUnprovable)
			}
			known[id] = before
			if !before.seen && at >= 2 {
				more = append(more, id)
			}
		}
	}
	if broken != nil {
		return nil, nil, broken
	}
	l.known = known
	return of, more, err
}

// judge looks once more, after the time in which a process that lives is back, and ends the sessions that are not. It notes in back that this
// process was frozen in that time, and in due when it looked last: what it waited by itself is no sign that it was frozen.
func (p *post) judge(ctx context.Context, l *link, suspects map[neighbour][]int, back, due *time.Time) (buried int, err error) {
	again := max(watchAgain, 3*l.took)
	gone := suspects
	for {
		began := time.Now()
		if !pause(ctx, again) {
			return 0, ctx.Err()
		}
		if gone, err = l.gone(ctx, gone); err != nil || len(gone) == 0 {
			return 0, err
		}
		took := since(began)
		*due = time.Now()
		if took > again+watchLate {
			*back = time.Now()
			return 0, nil
		}
		if took <= 2*again { // who is slow itself leaves others more time
			break
		}
	}
	var steps []step
	for n, tags := range gone {
		steps = append(steps, same(tags, scripts.bury, p.s.spec.ID, n.session, n.conn)...)
	}
	told := map[string]bool{}
	for _, a := range p.s.ss.runOn(ctx, l.client, steps) {
		if a.err != nil {
			err = a.err
		}
		if of := texts(a.value); len(of) == 3 && !told[of[0]] {
			told[of[0]] = true
			buried++
			p.s.ss.log.Warn("leaseredis: a session has died, its leases are free", "session", of[0], "host", of[1], "pid", of[2], "reason", "its connection ended")
		}
	}
	return buried, err
}
