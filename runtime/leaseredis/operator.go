package leaseredis

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// operator is for people: what is there, and changes by hand.
type operator struct {
	*catalog
	owner *owner
}

// consumers returns the names of all consumers that were ever registered.
func (cat *catalog) consumers(ctx context.Context, sh *shape) ([]string, error) {
	stored, err := askTags(ctx, cat.shards, sh.tags, "consumers", func(pipe redis.Pipeliner, prefix string) *redis.StringSliceCmd {
		return pipe.HKeys(ctx, prefix+"consumers")
	})
	if err != nil {
		return nil, err
	}
	names := slices.Concat(stored...)
	slices.Sort(names)
	return slices.Compact(names), nil
}

// registered returns the consumers whose first registration has got so far that messages can
// be counted: they are noted under every tag, and their views are filled.
func (cat *catalog) registered(ctx context.Context, sh *shape) ([]string, error) {
	names, err := cat.consumers(ctx, sh)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	noted, err := askTags(ctx, cat.shards, sh.tags, "consumers", func(pipe redis.Pipeliner, prefix string) *redis.SliceCmd {
		return pipe.HMGet(ctx, prefix+"consumers", names...)
	})
	if err != nil {
		return nil, err
	}
	views, err := askTags(ctx, cat.shards, sh.tags, "views", func(pipe redis.Pipeliner, prefix string) *redis.SliceCmd {
		return pipe.HMGet(ctx, prefix+"views", names...)
	})
	if err != nil {
		return nil, err
	}
	var out []string
	for i, name := range names {
		ready := true
		for tag := range noted {
			var view struct {
				Filled *string `json:"at"` // absent when all is there
			}
			if stored := text(views[tag][i]); stored != "" {
				if err := json.Unmarshal([]byte(stored), &view); err != nil {
					return nil, fmt.Errorf("read the view of %s: %w", name, err)
				}
			}
			ready = ready && noted[tag][i] != nil && view.Filled == nil
		}
		if ready {
			out = append(out, name)
		}
	}
	return out, nil
}

// leasePage is how many leases one script call describes.
const leasePage = 500

// leases describes the leases of a consumer, or the one of a resource.
func (o *operator) leases(ctx context.Context, sh *shape, info backend.ConsumerInfo, resource string) ([]backend.LeaseView, error) {
	var views []backend.LeaseView
	describe := func(tag int, names []string) error {
		if len(names) == 0 {
			return nil
		}
		args := []any{info.Name, info.Grace.Microseconds(), flag(info.Lock == backend.LockRow)}
		at := map[string]cursor{}
		for _, n := range names {
			args = append(args, n)
		}
		reply, err := o.run(ctx, tag, scripts.leases, args...)
		if err != nil {
			return err
		}
		first := len(views)
		for _, v := range list(reply) {
			v := list(v)
			l := backend.LeaseView{Lanes: int(number(v[7])), LeaseStatus: operate.LeaseStatus{
				Resource: text(v[0]), Session: text(v[1]), Epoch: number(v[2]), Parked: int(number(v[6])), Suspicion: int(number(v[5])),
			}}
			if l.Session != "" {
				l.Since = time.Duration(number(v[3])) * time.Microsecond
			}
			at[l.Resource] = cursor(text(v[4]))
			ins := o.inputsOf(sh, info, l.Resource)
			var last position
			for k, p := range at[l.Resource].positions(ins) {
				if p != (position{}) && p.compare(last) >= 0 {
					last, l.Position = p, messageID(ins[k], p)
				}
			}
			views = append(views, l)
		}
		behind, err := o.lag(ctx, sh, info, at)
		if err != nil {
			return err
		}
		for i := range views[first:] {
			l := &views[first+i]
			b := behind[l.Resource]
			l.Lag, l.OldestUnread = b.count, b.oldest
			switch {
			case !b.kept:
				l.Gone = l.Position
			case info.Per == backend.PerTopic: // it has one stream
				l.Gone = b.cut
			}
		}
		return nil
	}
	for _, s := range o.leaseSteps(sh, info, nil) {
		err := o.resources(ctx, s.tag, info.Name, resource, func(names []string) error { return describe(s.tag, names) })
		if err != nil {
			return nil, err
		}
	}
	return views, nil
}

// resources passes on the resources of a consumer that are known under a tag, page by page, or only
// the one given, if it is known there.
func (cat *catalog) resources(ctx context.Context, tag int, consumer, only string, each func([]string) error) error {
	key := cat.prefix(tag) + "res:" + consumer
	if only != "" {
		known, err := ask(ctx, cat.shards, key, func(ctx context.Context) (bool, error) { return cat.client.SIsMember(ctx, key, only).Result() })
		if err == nil && known {
			err = each([]string{only})
		}
		return err
	}
	names, err := cat.members(ctx, key)
	for some := range slices.Chunk(names, leasePage) {
		if err == nil {
			err = each(some)
		}
	}
	return err
}

// Status describes every consumer that was registered. One that is registered for the first time
// just now, so that the log is still being copied for it, follows when that is done.
func (o *operator) Status(ctx context.Context) ([]operate.ConsumerStatus, error) {
	return repeated(ctx, o.shards, "status", func() ([]operate.ConsumerStatus, error) { return o.status(ctx) })
}

// heldBy is what leases of a lock hang on here, see Acquire.
func heldBy(l backend.Lock) backend.Lock {
	if l == backend.LockAdvisory {
		return backend.LockSession
	}
	return l
}

func (o *operator) status(ctx context.Context) ([]operate.ConsumerStatus, error) {
	sh, err := o.shape(ctx)
	if err != nil {
		return nil, err
	}
	names, err := o.registered(ctx, sh)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	surveys, paused, err := o.owner.survey(ctx, names)
	if err != nil {
		return nil, err
	}
	out := make([]operate.ConsumerStatus, len(names))
	for i, name := range names {
		info, err := o.info(ctx, name)
		if err != nil {
			return nil, err
		}
		st := &out[i]
		*st = operate.ConsumerStatus{Consumer: name, Per: info.Per.String(), Lock: heldBy(info.Lock).String(),
			Paused: surveys[i].Paused, PausedFor: paused[i],
			Resources: surveys[i].Resources, Unowned: surveys[i].Resources, Members: len(surveys[i].Members)}
		for _, m := range surveys[i].Members {
			st.Unowned -= m.Owned
			if m.Owned == 0 {
				st.Standbys++
			}
		}
		views, err := o.leases(ctx, sh, info, "")
		if err != nil {
			return nil, err
		}
		known := make(map[string]bool, len(views))
		for _, l := range views {
			known[l.Resource] = true
			st.AddLag(l.Lag, l.OldestUnread)
			st.ParkedKeys += l.Lanes
		}
		if info.Per != backend.PerCluster { // some may not have been registered yet
			found, err := o.discover(ctx, sh, info)
			if err != nil {
				return nil, err
			}
			start, err := o.startOf(ctx, sh, name)
			if err != nil {
				return nil, err
			}
			found = slices.DeleteFunc(found, func(r string) bool { return known[r] })
			for some := range slices.Chunk(found, leasePage) {
				at := map[string]cursor{}
				for _, r := range some {
					at[r] = start
				}
				lags, err := o.lag(ctx, sh, info, at)
				if err != nil {
					return nil, err
				}
				for _, l := range lags {
					st.AddLag(l.count, l.oldest)
				}
			}
		}
		counts, err := o.deadCounts(ctx, sh, name)
		if err != nil {
			return nil, err
		}
		for _, n := range counts {
			st.DeadLetters += int(n)
		}
	}
	return out, nil
}

// Members lists the live sessions of a consumer.
func (o *operator) Members(ctx context.Context, consumer string) ([]operate.MemberStatus, error) {
	return repeated(ctx, o.shards, "members of "+consumer, func() ([]operate.MemberStatus, error) {
		return o.memberStatus(ctx, consumer)
	})
}

func (o *operator) memberStatus(ctx context.Context, consumer string) ([]operate.MemberStatus, error) {
	surveys, err := o.owner.Survey(ctx, []string{consumer})
	if err != nil {
		return nil, err
	}
	owned := map[string]int{}
	for _, m := range surveys[0].Members {
		owned[m.Session] = m.Owned
	}
	sh, err := o.shape(ctx)
	if err != nil {
		return nil, err
	}
	// A session is the same under all tags, but for when its heartbeats arrived, and for its connections.
	answers := o.runAll(ctx, same(o.reach(sh, consumer), scripts.members, consumer))
	if err := firstError(answers); err != nil {
		return nil, err
	}
	noted := map[string]int{}
	for _, a := range answers {
		for _, v := range list(a.value) {
			if v := list(v); text(v[6]) != "" {
				noted[text(v[0])]++
			}
		}
	}
	var out []operate.MemberStatus
	for _, v := range list(answers[0].value) {
		v := list(v)
		n, live := owned[text(v[0])]
		if !live {
			continue // it ended between the two questions
		}
		detection := "ttl"
		if noted[text(v[0])] == len(answers) {
			detection = "connection"
		}
		pid, _ := strconv.Atoi(text(v[2]))
		out = append(out, operate.MemberStatus{Session: text(v[0]), Host: text(v[1]), PID: pid, Owned: n, Detection: detection,
			Since: micros(v[3]), SinceBeat: micros(v[4]), TTLRemaining: micros(v[5])})
	}
	for i := range out {
		out[i].FairShare = (surveys[0].Resources + len(out) - 1) / len(out)
	}
	slices.SortFunc(out, func(a, b operate.MemberStatus) int {
		return cmp.Or(cmp.Compare(b.Since, a.Since), cmp.Compare(a.Session, b.Session))
	})
	return out, nil
}

// micros reads a reply that is a time in µs.
func micros(reply any) time.Duration { return time.Duration(number(reply)) * time.Microsecond }

// Leases lists leases of a consumer. A limit of 0 means all.
func (o *operator) Leases(ctx context.Context, consumer string, limit int) ([]operate.LeaseStatus, error) {
	views, err := o.views(ctx, consumer, "")
	if err != nil {
		return nil, fmt.Errorf("leaseredis: leases of %s: %w", consumer, err)
	}
	return backend.LeaseStatuses(views, limit), nil
}

// views is leases for operators: none for an unknown consumer.
func (o *operator) views(ctx context.Context, consumer, resource string) (views []backend.LeaseView, err error) {
	err = o.repeat(ctx, func() error {
		sh, err := o.shape(ctx)
		if err != nil {
			return err
		}
		info, err := o.info(ctx, consumer)
		if errors.Is(err, errUnknownConsumer) {
			return nil
		}
		if err != nil {
			return err
		}
		views, err = o.leases(ctx, sh, info, resource)
		return err
	})
	return views, err
}

// forgetStep is how many resources, lanes and messages one script call deletes.
const forgetStep = 200

// Forget deletes a consumer that no live process is a member of, with its leases, cursors,
// parked messages and executed items, so that the log need not be kept for it any longer: one
// that was renamed, for example. It refuses while there are dead letters; replay or purge them first.
// It can be repeated; a process that starts in between begins again.
func (o *operator) Forget(ctx context.Context, consumer string) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("leaseredis: forget consumer %q: %w", consumer, fmt.Errorf(format, args...))
	}
	sh, err := o.shape(ctx)
	if err != nil {
		return fail("%w", err)
	}
	// All tags are asked before anything is deleted.
	for _, limit := range []int{0, forgetStep} {
		for tag := 0; tag < sh.tags; {
			var reply any
			err := o.repeat(ctx, func() (err error) {
				reply, err = o.run(ctx, tag, scripts.forget, consumer, limit)
				return err
			})
			switch {
			case err != nil:
				return fail("%w", err)
			case text(reply) == "members":
				return fail("it has live members; stop its processes first")
			case text(reply) == "dead":
				return fail("it has dead letters; replay or purge them first")
			case number(reply) == 0 || limit == 0:
				tag++
			}
		}
	}
	o.running.Delete(consumer)
	o.attached.Delete(consumer)
	return nil
}
