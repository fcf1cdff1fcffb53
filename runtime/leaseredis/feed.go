package leaseredis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	feedGap    = 2 * time.Millisecond   // between two looks at a tag that has news all the time
	feedLeast  = 2 * time.Second        // between looks while hints arrive
	feedMost   = 4 * time.Second        // and without news
	feedAlone  = 500 * time.Millisecond // while they do not
	feedFailed = time.Second            // at most, after a look that failed
	feedCall   = time.Second            // one look, while that goes well
	feedAgain  = 5 * time.Second        // one look at a tag that failed, without work that waits for it
)

// feed watches the log and the leases on behalf of one process. Its view is complete
// by itself; hints only make it look sooner, at the tag that they come from.
type feed struct {
	r     *reader
	sh    *shape
	infos []backend.ConsumerInfo // of those that read the log
	names []string               // of all
	views []string               // consumers with views whose resources are reported one by one

	graces  []any // of sessions, in µs
	expires []any // consumers whose leases become free by time

	tags    []tagFeed
	sources []*sourceFeed
	hints   *hints
	late    chan lateLook // at tags that failed
	wait    time.Duration // between looks at a tag without news
	entries int64         // of sessions, when it was opened

	background context.Context // of what goes on between two calls
	cancel     context.CancelFunc
	done       sync.WaitGroup
}

// tagFeed is what a feed knows of one tag.
type tagFeed struct {
	told      int64   // id up to which topics were reported
	views     []int64 // and resources of views
	ownership int64
	least     int64 // changes of ownership that this process knew of when it asked
	losses    int   // of registrations, that it knew of when the feed began
	replays   int64
	setBacks  int64 // how often the server was found to be set back
	looked    int64 // when, by the server's clock; 0: never
	asked     time.Time
	next      time.Time // when to look again
	failures  int
	looking   bool // beside the others
}

// lateLook is what a tag answered that was looked at beside the others.
type lateLook struct {
	tag int
	answer
}

// errSetBack: a server that crashed, or a replica that was promoted, lacks what was stored last. Registrations may be
// among it, of topics whose messages are there.
var errSetBack = errors.New("leaseredis: the server has lost what was stored last; all is registered again")

// errEntered: Register passed over tags that the session has entered now.
var errEntered = errors.New("leaseredis: a part of the cluster can be reached again; all is registered again, as what is kept there was passed over")

// OpenFeed starts watching from the present on.
func (r *reader) OpenFeed(ctx context.Context, consumers []backend.ConsumerInfo) (backend.Feed, error) {
	sh, err := r.shape(ctx)
	if err != nil {
		return nil, fmt.Errorf("leaseredis: open the feed: %w", err)
	}
	f := &feed{r: r, sh: sh, tags: make([]tagFeed, sh.tags), late: make(chan lateLook, sh.tags), wait: feedLeast, entries: r.entries.Load()}
	graces := map[int64]bool{0: true}
	for _, c := range consumers {
		f.names = append(f.names, c.Name)
		graces[c.Grace.Microseconds()] = true
		if c.Grace > 0 || c.Lock == backend.LockRow {
			f.expires = append(f.expires, c.Name)
		}
		if s := sourceOf(c); s != nil {
			f.sources = append(f.sources, newSourceFeed(r.catalog, c, s))
			continue
		}
		if len(c.Topics) == 0 || c.Announced || c.Per == backend.PerCluster {
			continue
		}
		f.infos = append(f.infos, c)
		if viewed(c) != "" { // a group has news by topics; of what is copied into its view later it hears by that alone
			f.views = append(f.views, c.Name)
		}
	}
	for _, g := range slices.Sorted(maps.Keys(graces)) {
		f.graces = append(f.graces, g)
	}
	for tag := range f.tags {
		f.tags[tag].views = make([]int64, len(f.views))
	}
	if err := f.start(ctx); err != nil {
		return nil, fmt.Errorf("leaseredis: open the feed: %w", err)
	}
	background, cancel := context.WithCancel(context.Background())
	f.background, f.cancel = background, cancel
	f.hints = &hints{d: r.shards, sh: sh, hinted: make([]atomic.Bool, sh.tags), wake: make(chan struct{}, 1), ignores: f.ignores}
	f.done.Go(func() { f.hints.listen(background) })
	f.done.Go(func() { r.trimmer.trimTouched(background) })
	for _, s := range f.sources {
		f.done.Go(func() { s.watch(background, f.hints.signal) })
	}
	return f, nil
}

// ignores reports that a hint is about messages which others work on: all consumers of this process read a group or
// partitions, and it holds none of them. When it takes one over, that is read from its cursor on.
func (f *feed) ignores(what string) bool {
	return what == "m" && !slices.ContainsFunc(f.infos, func(c backend.ConsumerInfo) bool {
		return c.Per != backend.PerGroup && c.Per != backend.PerPartition || f.r.holdings.any(c.Name)
	})
}

// start notes the present of each tag. One that cannot be reached has all its news later.
func (f *feed) start(ctx context.Context) error {
	steps := make([]step, len(f.tags))
	for tag := range f.tags {
		steps[tag] = step{tag: tag, script: scripts.feed, args: f.args(tag, true)}
	}
	var failed error
	reached := false
	for tag, a := range f.r.runAll(ctx, steps) {
		t := &f.tags[tag]
		if a.err == nil {
			var ignored backend.News
			a.err = f.read(tag, a.value, &ignored)
		}
		switch {
		case errors.Is(a.err, errShape):
			return a.err
		case a.err != nil:
			failed = a.err
			continue
		}
		reached = true
		last := number(list(a.value)[1])
		t.told = last
		for i := range t.views {
			t.views[i] = last
		}
	}
	if !reached {
		return failed
	}
	return ctx.Err()
}

// Close stops watching.
func (f *feed) Close() {
	f.cancel()
	f.hints.close()
	f.done.Wait()
}

// Next waits until there is news, or until every tag has been looked at without any.
func (f *feed) Next(ctx context.Context) (backend.News, error) {
	for {
		if err := ctx.Err(); err != nil {
			return backend.News{}, err
		}
		if f.r.entries.Load() != f.entries {
			return backend.News{}, errEntered
		}
		now := time.Now()
		var news backend.News
		due, next := f.due(now)
		missed, again := f.tellMissed(now, &news)
		fromSources := f.tellSources(&news)
		looked, err := f.takeLate(&news)
		if err != nil {
			return backend.News{}, err
		}
		if due = f.lookBeside(due); len(due) > 0 {
			looked = true
			if err := f.ask(ctx, due, &news); err != nil {
				return backend.News{}, err
			}
		}
		if looked || missed || fromSources {
			news.Compact()
			f.pace(&news)
			return news, nil
		}
		if !again.IsZero() && (next.IsZero() || again.Before(next)) {
			next = again
		}
		wait := feedMost // all tags may be looked at beside
		if !next.IsZero() {
			wait = max(next.Sub(now), 0)
		}
		timer := time.NewTimer(wait)
		select {
		case <-f.hints.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// due returns the tags to look at now, and when there will be the next.
func (f *feed) due(now time.Time) (due []int, next time.Time) {
	for tag := range f.tags {
		t := &f.tags[tag]
		if t.looking {
			continue
		}
		at := t.next
		if idle := t.asked.Add(f.idleWait()); idle.Before(at) {
			at = idle // hints have stopped since
		}
		if f.hints.hinted[tag].Load() && t.failures == 0 {
			at = t.asked.Add(feedGap)
		}
		if !at.After(now) {
			due = append(due, tag)
		} else if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return due, next
}

func (f *feed) idleWait() time.Duration {
	if f.hints.connected.Load() {
		return f.wait
	}
	return feedAlone
}

// pace looks less often while there is no news.
func (f *feed) pace(news *backend.News) {
	if len(news.Topics)+len(news.Resources) > 0 || news.Ownership || news.Parked {
		f.wait = feedLeast
	} else {
		f.wait = min(f.wait+feedLeast/4, feedMost)
	}
}

// ask asks tags for news. A tag that fails is asked again later; others go on.
func (f *feed) ask(ctx context.Context, tags []int, news *backend.News) error {
	steps := make([]step, len(tags))
	now := time.Now()
	for i, tag := range tags {
		f.hints.hinted[tag].Store(false) // before the look: what comes after it counts
		f.tags[tag].asked = now
		steps[i] = step{tag: tag, script: scripts.feed, args: f.args(tag, false)}
	}
	call, cancel := context.WithTimeout(ctx, feedCall)
	defer cancel()
	answers := f.r.runAll(call, steps)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for i, tag := range tags {
		if err := f.heard(tag, answers[i], news); err != nil {
			return err
		}
	}
	return nil
}

// heard takes what a tag answered, or notes that it failed.
func (f *feed) heard(tag int, a answer, news *backend.News) error {
	err := a.err
	if err == nil {
		err = f.read(tag, a.value, news)
	}
	t := &f.tags[tag]
	if err == nil {
		t.failures = 0
		return nil
	}
	if errors.Is(err, errShape) || errors.Is(err, errSetBack) {
		return err // everything has to be registered again
	}
	t.failures++
	t.next = time.Now().Add(min(50*time.Millisecond<<min(t.failures, 6), feedFailed))
	f.r.warn("feed "+f.r.prefix(tag), "looking for news failed, trying again", "tag", f.r.prefix(tag), "error", err)
	return nil
}

// lookBeside begins to look at those tags that failed the last time, and returns the others:
// these do not wait for a node that hangs.
func (f *feed) lookBeside(due []int) (rest []int) {
	for _, tag := range due {
		t := &f.tags[tag]
		if t.failures == 0 {
			rest = append(rest, tag)
			continue
		}
		f.hints.hinted[tag].Store(false)
		t.asked, t.looking = time.Now(), true
		args := f.args(tag, false)
		f.done.Go(func() {
			ctx, cancel := context.WithTimeout(f.background, feedAgain)
			defer cancel()
			f.late <- lateLook{tag, f.r.runAll(ctx, []step{{tag: tag, script: scripts.feed, args: args}})[0]}
			f.hints.signal()
		})
	}
	return rest
}

// takeLate takes what tags answered that were looked at beside the others.
func (f *feed) takeLate(news *backend.News) (any bool, err error) {
	for {
		select {
		case l := <-f.late:
			f.tags[l.tag].looking = false
			any = true
			if err := f.heard(l.tag, l.answer, news); err != nil {
				return any, err
			}
		default:
			return any, nil
		}
	}
}

func (f *feed) args(tag int, first bool) []any {
	t := &f.tags[tag]
	known := f.r.changes.known(tag)
	t.least = max(t.ownership, known.count)
	if first {
		t.losses = known.losses
	}
	args := []any{t.told, t.looked, len(f.graces)}
	args = append(args, f.graces...)
	args = append(args, len(f.expires))
	args = append(args, f.expires...)
	registered := f.registered()
	args = append(append(args, len(registered)), registered...)
	if first {
		return args
	}
	for i, v := range f.views {
		args = append(args, v, t.views[i])
	}
	return args
}

// registered lists the consumers that this process has registered. When one of them is unknown to a tag,
// the server has lost what it had stored (it was emptied and the namespace created again by another process, an older
// copy was restored, a replica was promoted too early), and everything has to be registered again.
func (f *feed) registered() (names []any) {
	for _, name := range f.names {
		if v, ok := f.r.attached.Load(name); ok && v.(attachment).sh == f.sh {
			names = append(names, name)
		}
	}
	return names
}

// read adds to news what a tag answered.
func (f *feed) read(tag int, value any, news *backend.News) error {
	reply := list(value)
	if len(reply) < 10 || len(reply)%2 != 0 {
		return fmt.Errorf("leaseredis: the feed's script answered with %d values", len(reply))
	}
	t := &f.tags[tag]
	now, last := number(reply[0]), number(reply[1])
	ownership, replays := number(reply[2]), number(reply[3])
	if ownership < t.least || replays < t.replays { // these only rise
		f.r.changes.lost(tag, t.least, ownership)
		return errSetBack
	}
	if f.r.changes.known(tag).losses != t.losses { // another feed has found it out, whose consumers are others
		return errSetBack
	}
	expired, setBacks := number(reply[4])%2 != 0, number(reply[4])/2
	if t.looked > 0 && setBacks != t.setBacks {
		f.r.alarm() // the sessions have ended
		f.r.tellSetBack(tag, f.names)
		return errSetBack
	}
	t.setBacks = setBacks
	news.Ownership = news.Ownership || t.looked > 0 && ownership != t.ownership || expired
	news.Parked = news.Parked || t.looked > 0 && replays != t.replays
	t.ownership, t.replays, t.looked = ownership, replays, now
	wait := feedMost
	for _, at := range []int64{number(reply[5]), number(reply[6])} {
		if at > 0 && at-now < feedMost.Microseconds() { // what is centuries ahead is no time.Duration
			wait = min(wait, max(time.Duration(at-now)*time.Microsecond+time.Millisecond, feedGap))
		}
	}
	if wrong := text(reply[7]); wrong != "" {
		f.r.warn("delayed "+f.r.prefix(tag), "a delayed event cannot join the log, trying again", "error", explained(errors.New(wrong)))
	}
	topics := list(reply[8])
	for _, v := range topics {
		topic := text(v)
		if slices.ContainsFunc(f.infos, func(c backend.ConsumerInfo) bool { return backend.MatchTopic(c.Topics, topic) }) {
			news.Topics = append(news.Topics, topic)
		}
	}
	more := false
	t.told, more = told(topics, number(reply[9]), last)
	if len(reply) == 10+2*len(f.views) {
		for i, consumer := range f.views {
			names := list(reply[10+2*i])
			for _, v := range names {
				news.Add(consumer, text(v))
			}
			cut := false
			t.views[i], cut = told(names, number(reply[11+2*i]), last)
			more = more || cut
		}
	}
	if more {
		wait = 0
	}
	t.next = time.Now().Add(wait)
	return nil
}

// told is the id up to which everything was reported, and whether there is more.
func told(names []any, score, last int64) (int64, bool) {
	if len(names) >= 1000 {
		return score, true
	}
	return max(score, last), false
}

// tellSetBack says that positions of the consumers were ahead of a server that has lost writes.
func (r *reader) tellSetBack(tag int, consumers []string) {
	const reason = "the server has lost what was stored last, and its clock is behind: positions are read again"
	r.warn("setback "+r.prefix(tag), reason, "tag", r.prefix(tag), "consumers", consumers)
	if r.observer == nil {
		return
	}
	for _, c := range consumers {
		r.observer.Observe(operate.ObservedSetBack{Consumer: c, Reason: reason})
	}
}

// tellMissed names topics of its own consumers that could not be read, and returns when to ask for the next; zero: never.
func (f *feed) tellMissed(now time.Time, news *backend.News) (any bool, next time.Time) {
	tell := func(consumer string, name func(topic string)) {
		topics, at := f.r.missed.due(consumer, now)
		for _, topic := range topics {
			any = true
			name(topic)
		}
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for _, c := range f.infos {
		tell(c.Name, func(topic string) { news.Topics = append(news.Topics, topic) })
	}
	for _, s := range f.sources {
		tell(s.info.Name, func(topic string) { s.add(news, topic) })
	}
	return any, next
}

// tellSources adds what is new in streams of applications.
func (f *feed) tellSources(news *backend.News) bool {
	any := false
	for _, s := range f.sources {
		for _, name := range s.drain() {
			any = true
			s.add(news, name)
		}
	}
	return any
}
