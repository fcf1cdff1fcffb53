package filebackend

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// operator is the backend for those who run it.
type operator struct{ b *Backend }

// behind returns how many messages of a resource are unread, and the age of the oldest of them.
func (s *state) behind(c *consumer, l *lease) (lag int64, oldest time.Duration) {
	wants := s.wants(c.info)
	for _, m := range s.unread(c.info.Per, l.resource, l.cursor) {
		if wants(m) {
			if lag++; lag == 1 {
				oldest = s.now.Sub(m.published)
			}
		}
	}
	return lag, oldest
}

// on reads one consumer. Of one that is not known there is nothing to tell.
func (o operator) on(ctx context.Context, operation, name string, fn func(*state, *consumer) error) error {
	return o.b.read(ctx, operation, func(s *state) error {
		if c := s.consumers[name]; c != nil {
			return fn(s, c)
		}
		return nil
	})
}

// first returns the first n of all, or all when n is 0.
func first[T any](all []T, n int) []T {
	if n > 0 && n < len(all) {
		return all[:n]
	}
	return all
}

func (o operator) Status(ctx context.Context) (all []operate.ConsumerStatus, err error) {
	err = o.b.read(ctx, "status", func(s *state) error {
		for _, name := range slices.Sorted(maps.Keys(s.consumers)) {
			c, members := s.consumers[name], s.members(name)
			st := operate.ConsumerStatus{Consumer: name, Per: c.info.Per.String(), Lock: c.info.Lock.String(),
				Resources: len(c.order), Members: len(members)}
			owners := map[string]bool{}
			for _, l := range c.order {
				lag, oldest := s.behind(c, l)
				st.LagTotal += lag
				st.LagMax, st.OldestUnread = max(st.LagMax, lag), max(st.OldestUnread, oldest)
				st.ParkedKeys += len(l.lanes())
				owners[l.session] = true
				if !s.live(l.session) {
					st.Unowned++
				}
			}
			for _, m := range members {
				if !owners[m.spec.ID] {
					st.Standbys++
				}
			}
			for _, d := range s.dead {
				if d.consumer == name {
					st.DeadLetters++
				}
			}
			patterns := s.patterns(c.info)
			for _, d := range s.delayed {
				if backend.MatchTopic(patterns, d.event.Topic) {
					st.Delayed++
				}
			}
			all = append(all, st)
		}
		return nil
	})
	return all, err
}

func (o operator) Members(ctx context.Context, name string) (all []operate.MemberStatus, err error) {
	err = o.on(ctx, "members", name, func(s *state, c *consumer) error {
		members := s.members(name)
		slices.SortStableFunc(members, func(a, b *session) int { return a.opened.Compare(b.opened) })
		for _, m := range members {
			st := operate.MemberStatus{Session: m.spec.ID, Host: m.spec.Host, PID: m.spec.PID, Since: s.now.Sub(m.opened),
				SinceBeat: s.now.Sub(m.beat), FairShare: (len(c.order) + len(members) - 1) / len(members), TTLRemaining: m.expires.Sub(s.now)}
			for _, l := range c.order {
				if l.session == m.spec.ID {
					st.Owned++
				}
			}
			all = append(all, st)
		}
		return nil
	})
	return all, err
}

func (s *state) owner(l *lease) string {
	if s.live(l.session) {
		return l.session
	}
	return ""
}

func (o operator) Leases(ctx context.Context, name string, limit int) (all []operate.LeaseStatus, err error) {
	err = o.on(ctx, "leases", name, func(s *state, c *consumer) error {
		for _, l := range c.order {
			st := operate.LeaseStatus{Resource: l.resource, Session: s.owner(l), Epoch: l.epoch, Parked: len(l.parked), Suspicion: l.suspicion}
			st.Lag, _ = s.behind(c, l)
			if !l.since.IsZero() {
				st.Since = s.now.Sub(l.since)
			}
			all = append(all, st)
		}
		slices.SortStableFunc(all, func(a, b operate.LeaseStatus) int { return cmp.Compare(b.Lag, a.Lag) })
		return nil
	})
	return first(all, limit), err
}

func (o operator) Cursors(ctx context.Context, name, resource string, limit int) (all []operate.CursorStatus, err error) {
	err = o.on(ctx, "cursors", name, func(s *state, c *consumer) error {
		if c.info.ReadsNothing() {
			return operate.ErrNoCursor
		}
		for _, l := range c.order {
			if resource != "" && l.resource != resource {
				continue
			}
			st := operate.CursorStatus{Resource: l.resource, Session: s.owner(l), Epoch: l.epoch}
			st.Lag, st.OldestUnread = s.behind(c, l)
			if l.cursor > 0 {
				st.Position = (&message{position: l.cursor}).id()
			}
			all = append(all, st)
		}
		slices.SortStableFunc(all, func(a, b operate.CursorStatus) int { return cmp.Compare(b.Lag, a.Lag) })
		return nil
	})
	return first(all, limit), err
}

func (o operator) Parked(ctx context.Context, f operate.ParkedFilter) (all []operate.ParkedInfo, err error) {
	err = o.on(ctx, "parked", f.Consumer, func(s *state, c *consumer) error {
		for _, l := range c.order {
			for _, lane := range l.lanes() {
				for i, p := range lane {
					if f.Resource == "" || f.Resource == l.resource {
						if f.Key == "" || f.Key == p.Key {
							all = append(all, operate.ParkedInfo{Resource: l.resource, MessageID: p.id(), Topic: p.Topic, Key: p.Key, Kind: p.Kind,
								Size: len(p.Payload), Attempts: p.attempt, Due: p.due, FirstFailed: p.firstFailed, Behind: i > 0, Error: p.err})
						}
					}
				}
			}
		}
		return nil
	})
	return first(all, f.Limit), err
}

// selected returns the dead letters that the filter selects.
func (s *state) selected(f operate.DeadLetterFilter) (selected []*deadLetter) {
	for _, d := range s.dead {
		if (f.Consumer == "" || f.Consumer == d.consumer) && (len(f.IDs) == 0 || slices.Contains(f.IDs, d.id)) &&
			(f.Topic == "" || backend.MatchTopic([]string{f.Topic}, d.Topic)) && (f.Key == "" || f.Key == d.Key) &&
			(f.Reason == "" || backend.MatchTopic([]string{f.Reason}, d.reason)) {
			selected = append(selected, d)
		}
	}
	return first(selected, f.Limit)
}

// remove removes the dead letters that the filter selects.
func (s *state) remove(f operate.DeadLetterFilter) []*deadLetter {
	selected := s.selected(f)
	gone := map[*deadLetter]bool{}
	for _, d := range selected {
		gone[d] = true
	}
	s.dead = slices.DeleteFunc(s.dead, func(d *deadLetter) bool { return gone[d] })
	s.changed = len(selected) > 0
	return selected
}

func (o operator) DeadLetters(ctx context.Context, f operate.DeadLetterFilter) (all []operate.DeadLetterInfo, err error) {
	err = o.b.read(ctx, "dead letters", func(s *state) error {
		for _, d := range s.selected(f) {
			info := operate.DeadLetterInfo{ID: d.id, Consumer: d.consumer, Resource: d.resource, MessageID: d.message.id(), Topic: d.Topic, Key: d.Key,
				Kind: d.Kind, Size: len(d.Payload), Headers: maps.Clone(d.Headers), PublishedAt: d.published, FirstFailed: d.firstFailed,
				DeadAt: d.at, Attempts: d.attempts, Reason: d.reason}
			if len(f.IDs) == 1 {
				info.Payload = slices.Clone(d.Payload)
			}
			all = append(all, info)
		}
		return nil
	})
	return all, err
}

func (o operator) Purge(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	return change[int](ctx, o.b, "purge", purge{f})
}

type purge struct{ Filter operate.DeadLetterFilter }

func (p purge) apply(s *state) (any, error) { return len(s.remove(p.Filter)), nil }

func (o operator) Replay(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	return change[int](ctx, o.b, "replay", replay{f})
}

type replay struct{ Filter operate.DeadLetterFilter }

func (r replay) apply(s *state) (any, error) {
	letters := s.remove(r.Filter)
	for _, d := range letters {
		l := s.consumers[d.consumer].leases[d.resource]
		if l.find(d.message.id()) < 0 {
			l.parked = append(l.parked, &parked{message: d.message, lane: d.lane, due: s.now, since: s.now})
		}
		s.replays++
	}
	return len(letters), nil
}

func (o operator) SetCursor(ctx context.Context, consumer, resource string, to operate.CursorTarget) (int, error) {
	return change[int](ctx, o.b, "set cursor", setCursor{consumer, resource, to})
}

type setCursor struct {
	Consumer, Resource string
	To                 operate.CursorTarget
}

func (c setCursor) apply(s *state) (any, error) {
	known := s.consumers[c.Consumer]
	if known == nil {
		return 0, fmt.Errorf("set cursor %s: there is no such consumer; the status lists those there are", c.Consumer)
	}
	if known.info.ReadsNothing() {
		return 0, operate.ErrNoCursor
	}
	var to position
	switch m := s.message(c.To.After); {
	case c.To == operate.CursorTarget{Beginning: true}:
	case c.To == operate.CursorTarget{Now: true}:
		to = position(len(s.log))
	case c.To == operate.CursorTarget{After: c.To.After} && m != nil:
		to = m.position
	default:
		return 0, fmt.Errorf("set cursor %s: the target %+v is not one place of the log; give beginning, now or the id of a message", c.Consumer, c.To)
	}
	moved := 0
	for _, l := range known.order {
		if c.Resource != "" && l.resource != c.Resource {
			continue
		}
		moved++
		l.cursor, l.mark, l.marks = to, "", 0
		s.drop(l)
		if c.To.Beginning {
			l.parked = nil
			s.dead = slices.DeleteFunc(s.dead, func(d *deadLetter) bool { return d.consumer == c.Consumer && d.resource == l.resource })
		}
	}
	return moved, nil
}
