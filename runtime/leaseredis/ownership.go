package leaseredis

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
)

// checkName refuses names that no consumer may have, and those that keys cannot be made of: a colon ends the name there.
func checkName(consumer string) error {
	if strings.Contains(consumer, ":") {
		return fmt.Errorf("leaseredis: consumer %q: on Redis the name of a consumer has no colon; give it another name", consumer)
	}
	return backend.CheckNames(consumer)
}

// rule is what the scripts know of a consumer's leases.
func rule(info backend.ConsumerInfo) string {
	r := strconv.FormatInt(info.Grace.Microseconds(), 10)
	if info.Per == backend.PerStream {
		r += " stream"
	}
	if info.Lock == backend.LockRow {
		r += " row=" + strconv.FormatInt(info.TTL.Microseconds(), 10)
	}
	return r
}

// owner gives leases to sessions, and takes them back.
type owner struct {
	*catalog
	attempts sync.Map // consumer → the last attempt to acquire leases
}

// Register makes resources known to a consumer. Topics that its patterns do not match are passed over, and so is what is kept under
// tags that no session of the consumer reaches: feeds fail when one enters them, so that all is registered again.
func (o *owner) Register(ctx context.Context, info backend.ConsumerInfo, resources []string) error {
	if err := checkName(info.Name); err != nil {
		return err
	}
	sh, err := o.shape(ctx)
	if err != nil {
		return err
	}
	start, err := o.attach(ctx, sh, info)
	if err != nil {
		return fail("register consumer "+info.Name, err)
	}
	sweep := resources == nil && info.Per == backend.PerStream
	switch {
	case info.Per == backend.PerPartition, resources == nil && info.Per != backend.PerCluster:
		if resources, err = o.discover(ctx, sh, info); err != nil {
			return fail("find the resources of "+info.Name, err)
		}
	case info.Per == backend.PerTopic && sourceOf(info) == nil:
		resources = slices.DeleteFunc(slices.Clone(resources), func(t string) bool { return !backend.MatchTopic(info.Topics, t) })
	case info.Per.Whole():
		resources = []string{backend.Whole}
	}
	var steps []step
	byTag := o.byTag(sh, info.Name, resources)
	for _, tag := range o.reach(sh, info.Name) {
		chunks := slices.Collect(slices.Chunk(byTag[tag], leaseChunk))
		if sweep && len(chunks) == 0 {
			chunks = [][]string{nil}
		}
		for i, chunk := range chunks {
			args := with([]any{info.Name, rule(info), string(start), sweep && i == 0}, chunk...)
			steps = append(steps, step{tag: tag, script: scripts.register, args: args})
		}
	}
	answers := o.runAll(ctx, steps)
	for i, a := range answers {
		if a.err == nil {
			o.changes.seen(steps[i].tag, number(a.value))
		}
	}
	return fail("register resources of "+info.Name, firstError(answers))
}

// byTag groups resources by the tags of their leases.
func (o *owner) byTag(sh *shape, consumer string, resources []string) map[int][]string {
	out := map[int][]string{}
	for _, r := range resources {
		tag := sh.leaseTag(consumer, r)
		out[tag] = append(out[tag], r)
	}
	return out
}

func firstError(answers []answer) error {
	for _, a := range answers {
		if a.err != nil {
			return a.err
		}
	}
	return nil
}

// Survey counts members and leases.
func (o *owner) Survey(ctx context.Context, consumers []string) ([]backend.Survey, error) {
	surveys, _, err := o.survey(ctx, consumers)
	return surveys, err
}

// survey asks each tag with one script, and also returns for how long the consumers have been paused.
func (o *owner) survey(ctx context.Context, consumers []string) ([]backend.Survey, []time.Duration, error) {
	sh, err := o.shape(ctx)
	if err != nil {
		return nil, nil, err
	}
	out, paused := make([]backend.Survey, len(consumers)), make([]time.Duration, len(consumers))
	owned := make([]map[string]int, len(consumers))
	for _, a := range o.runAll(ctx, same(o.reach(sh, consumers...), scripts.survey, with(nil, consumers...)...)) {
		counts := list(a.value)
		if a.err != nil || len(counts) != len(consumers) {
			return nil, nil, fail("survey", unexpected(a))
		}
		for i := range consumers {
			c := list(counts[i])
			if len(c) != 4 {
				return nil, nil, fail("survey", unexpected(a))
			}
			if text(c[3]) != "" {
				out[i].Paused, paused[i] = true, max(paused[i], micros(c[3]))
			}
			out[i].Resources += int(number(c[0]))
			out[i].Free += int(number(c[1]))
			if owned[i] == nil {
				owned[i] = map[string]int{}
			}
			for m := list(c[2]); len(m) > 1; m = m[2:] {
				owned[i][text(m[0])] += int(number(m[1]))
			}
		}
	}
	for i, name := range consumers {
		out[i].Consumer = name
		for id, n := range owned[i] {
			out[i].Members = append(out[i].Members, backend.Member{Session: id, Owned: n})
		}
		slices.SortFunc(out[i].Members, func(x, y backend.Member) int { return strings.Compare(x.Session, y.Session) })
		if out[i].Paused { // by some tags, while an operator is at it
			out[i].Free = 0
		}
	}
	return out, paused, nil
}

// Owned lists the leases of a session under the tags that can be reached, some hundreds at a time.
func (o *owner) Owned(ctx context.Context, session, consumer string) ([]backend.Ref, error) {
	sh, err := o.shape(ctx)
	if err != nil {
		return nil, err
	}
	var refs []backend.Ref
	for _, tag := range o.reach(sh, consumer) {
		for at := "0"; ; {
			reply, err := o.run(ctx, tag, scripts.owned, session, consumer, at, leaseChunk)
			l := list(reply)
			if err != nil || len(l) == 0 {
				return nil, fail("list the leases of "+consumer, unexpected(answer{reply, err}))
			}
			for p := l[1:]; len(p) > 1; p = p[2:] {
				refs = append(refs, backend.Ref{Resource: text(p[0]), Epoch: number(p[1])})
			}
			if at = text(l[0]); at == "0" {
				break
			}
		}
	}
	return refs, nil
}

// unexpected is the error of an answer that is none, or that cannot be read.
func unexpected(a answer) error {
	if a.err != nil {
		return a.err
	}
	return fmt.Errorf("a script answered with %T of another form; another program uses the keys of this namespace", a.value)
}

// Acquire takes free resources, tag by tag, in an order that follows from the attempt's id: so
// members that ask at once begin at different tags, and a repeated attempt goes the same way. LockAdvisory is held
// as LockSession is: on Redis no lock costs less than the heartbeat.
func (o *owner) Acquire(ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
	sh, err := o.shape(ctx)
	if err != nil {
		return nil, err
	}
	name := req.Consumer.Name
	exclude := o.byTag(sh, name, req.Exclude)
	var rowTTL int64
	if req.Consumer.Lock == backend.LockRow {
		rowTTL = req.Consumer.TTL.Microseconds()
	}
	var grants []backend.Grant
	tags, parts := o.acquireFrom(sh, req), make([]int, sh.tags)
	// take carries out the next part of the attempt under a tag, and says how many leases it brought.
	take := func(tag, n int) (int, error) {
		args := []any{req.Session, name, req.Attempt, parts[tag], n, req.Consumer.Grace.Microseconds(), rowTTL}
		reply, err := o.run(ctx, tag, scripts.acquire, with(args, exclude[tag]...)...)
		got := list(reply)
		for _, g := range got {
			g := list(g)
			grant := grantOf(g)
			if err == nil && len(g) == 7 && number(g[6]) == 1 {
				grant.Lanes, err = o.parkedLanes(ctx, tag, name, grant.Resource)
			}
			grants = append(grants, grant)
		}
		o.holdings.took(req.Session, name, grants[len(grants)-len(got):])
		parts[tag]++
		return len(got), fail("acquire leases of "+name, err)
	}
	if last, _ := o.attempts.Swap(name, req.Attempt); last == req.Attempt {
		// It is repeated: what it was granted before comes first, so that it does not get more than Max.
		for _, tag := range tags {
			for n := 1; n > 0; {
				if n, err = take(tag, 0); err != nil {
					return nil, err
				}
			}
			parts[tag]-- // none was taken in that one
		}
	}
	for _, tag := range tags {
		for len(grants) < req.Max {
			n := min(req.Max-len(grants), leaseChunk)
			got, err := take(tag, n)
			if err != nil {
				return nil, err
			}
			if got < n {
				break
			}
		}
	}
	return grants, nil
}

// parkedLanes lists the parked parkedLanes of a resource that has very many. All that are there from first to last are among them;
// it is owned by who asks, so that no others come but by replay.
func (o *owner) parkedLanes(ctx context.Context, tag int, consumer, resource string) ([]string, error) {
	key := o.prefix(tag) + "due:" + consumer + ":" + resource
	pairs, err := o.scan(ctx, key, func(ctx context.Context) *redis.ScanCmd { return o.client.ZScan(ctx, key, 0, "", leaseChunk) })
	if err != nil {
		return nil, err
	}
	var lanes []string
	for pair := range slices.Chunk(pairs, 2) { // a lane, and when it is due
		lanes = append(lanes, pair[0])
	}
	slices.Sort(lanes)
	return slices.Compact(lanes), nil
}

// acquireFrom lists the tags that have leases of the consumer, in the order of the attempt, without
// those that the session has not entered.
func (o *owner) acquireFrom(sh *shape, req backend.AcquireRequest) []int {
	tags := make([]int, 0, sh.tags)
	if req.Consumer.Per.Whole() {
		tags = append(tags, sh.leaseTag(req.Consumer.Name, backend.Whole))
	} else {
		for tag := range sh.tags {
			tags = append(tags, (sh.tagOf(req.Attempt)+tag)%sh.tags)
		}
	}
	if s := o.session(req.Session); s != nil {
		tags = slices.DeleteFunc(tags, func(tag int) bool { return !s.has(tag) })
	}
	return tags
}

// grantOf reads what acquire.lua returns of a lease.
func grantOf(l []any) backend.Grant {
	if len(l) != 7 {
		return backend.Grant{}
	}
	g := backend.Grant{
		Ref: backend.Ref{Resource: text(l[0]), Epoch: number(l[1])}, Cursor: cursor(text(l[2])),
		Suspicion: int(number(l[3])), Mark: text(l[4]), MarkCount: int(number(l[5])),
	}
	g.Lanes = texts(l[6])
	slices.Sort(g.Lanes)
	return g
}
