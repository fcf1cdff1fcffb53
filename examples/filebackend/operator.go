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
		if c.info.Per == backend.PerTopic || wants(m.Topic) {
			if lag++; lag == 1 {
				oldest = s.now.Sub(m.published)
			}
		}
	}
	return lag, oldest
}

// owner returns the live session that holds a lease, or "".
func (s *state) owner(l *lease) string {
	if s.live(l.session) {
		return l.session
	}
	return ""
}

// list reads the leases of a consumer, or the one of a resource. An unknown consumer has none.
func list[A any](ctx context.Context, o operator, operation, name, resource string, of func(*state, *consumer, *lease) []A) ([]A, error) {
	return read(ctx, o.b, operation, func(s *state) (all []A, err error) {
		if c := s.consumers[name]; c != nil {
			for _, l := range c.order {
				if resource == "" || l.resource == resource {
					all = append(all, of(s, c, l)...)
				}
			}
		}
		return all, nil
	})
}

// first returns the first n of all; 0 stands for all.
func first[T any](all []T, n int) []T {
	if n > 0 && n < len(all) {
		return all[:n]
	}
	return all
}

func (o operator) Status(ctx context.Context) ([]operate.ConsumerStatus, error) {
	return read(ctx, o.b, "status", func(s *state) (all []operate.ConsumerStatus, err error) {
		for _, name := range slices.Sorted(maps.Keys(s.consumers)) {
			c, members := s.consumers[name], s.members(name)
			st := operate.ConsumerStatus{Consumer: name, Per: c.info.Per.String(), Lock: c.info.Lock.String(),
				Resources: len(c.order), Members: len(members)}
			for _, l := range c.order {
				lag, oldest := s.behind(c, l)
				st.LagTotal += lag
				st.LagMax, st.OldestUnread = max(st.LagMax, lag), max(st.OldestUnread, oldest)
				st.ParkedKeys += len(l.lanes())
				if s.owner(l) == "" {
					st.Unowned++
				}
			}
			for _, m := range members {
				if len(s.owned(m.spec.ID, name)) == 0 {
					st.Standbys++
				}
			}
			st.DeadLetters = len(s.selected(operate.DeadLetterFilter{Consumer: name}))
			wants := s.wants(c.info)
			for _, d := range s.delayed {
				if wants(d.event.Topic) {
					st.Delayed++
				}
			}
			all = append(all, st)
		}
		return all, nil
	})
}

func (o operator) Members(ctx context.Context, name string) ([]operate.MemberStatus, error) {
	return read(ctx, o.b, "members", func(s *state) (all []operate.MemberStatus, err error) {
		members, resources := s.members(name), 0
		slices.SortStableFunc(members, func(a, b *session) int { return a.opened.Compare(b.opened) })
		if c := s.consumers[name]; c != nil {
			resources = len(c.order)
		}
		for _, m := range members {
			all = append(all, operate.MemberStatus{Session: m.spec.ID, Host: m.spec.Host, PID: m.spec.PID, Since: s.now.Sub(m.opened),
				SinceBeat: s.now.Sub(m.beat), Owned: len(s.owned(m.spec.ID, name)), TTLRemaining: m.expires.Sub(s.now),
				FairShare: (resources + len(members) - 1) / len(members)})
		}
		return all, nil
	})
}

func (o operator) Leases(ctx context.Context, name string, limit int) ([]operate.LeaseStatus, error) {
	all, err := list(ctx, o, "leases", name, "", func(s *state, c *consumer, l *lease) []operate.LeaseStatus {
		st := operate.LeaseStatus{Resource: l.resource, Session: s.owner(l), Epoch: l.epoch, Parked: len(l.parked), Suspicion: l.suspicion}
		st.Lag, _ = s.behind(c, l)
		if l.epoch > 0 {
			st.Since = s.now.Sub(l.since)
		}
		return []operate.LeaseStatus{st}
	})
	slices.SortStableFunc(all, func(a, b operate.LeaseStatus) int { return cmp.Compare(b.Lag, a.Lag) })
	return first(all, limit), err
}

func (o operator) Cursors(ctx context.Context, name, resource string, limit int) ([]operate.CursorStatus, error) {
	if _, err := read(ctx, o.b, "cursors", func(s *state) (any, error) { return s.reader("cursors", name) }); err != nil {
		return nil, err
	}
	all, err := list(ctx, o, "cursors", name, resource, func(s *state, c *consumer, l *lease) []operate.CursorStatus {
		st := operate.CursorStatus{Resource: l.resource, Session: s.owner(l), Epoch: l.epoch}
		st.Lag, st.OldestUnread = s.behind(c, l)
		if l.cursor > 0 {
			st.Position = l.cursor.id()
		}
		return []operate.CursorStatus{st}
	})
	slices.SortStableFunc(all, func(a, b operate.CursorStatus) int { return cmp.Compare(b.Lag, a.Lag) })
	return first(all, limit), err
}

// reader returns a consumer that has cursors.
func (s *state) reader(operation, name string) (*consumer, error) {
	c := s.consumers[name]
	if c == nil {
		return nil, fmt.Errorf("%s %s: there is no such consumer; the status lists those there are", operation, name)
	}
	if c.info.ReadsNothing() {
		return nil, operate.ErrNoCursor
	}
	return c, nil
}

func (o operator) Parked(ctx context.Context, f operate.ParkedFilter) ([]operate.ParkedInfo, error) {
	all, err := list(ctx, o, "parked", f.Consumer, f.Resource, func(_ *state, _ *consumer, l *lease) (all []operate.ParkedInfo) {
		for _, lane := range l.lanes() {
			for i, p := range lane {
				if f.Key == "" || f.Key == p.Key {
					all = append(all, operate.ParkedInfo{Resource: l.resource, MessageID: p.Park.ID, Topic: p.Topic, Key: p.Key, Kind: p.Kind,
						Size: len(p.Payload), Attempts: p.Attempt, Due: p.due, FirstFailed: p.firstFailed, Behind: i > 0, Error: p.Error})
				}
			}
		}
		return all
	})
	return first(all, f.Limit), err
}

// selected returns the dead letters that the filter selects.
func (s *state) selected(f operate.DeadLetterFilter) (selected []*deadLetter) {
	for _, d := range s.dead {
		if (f.Consumer == "" || f.Consumer == d.Consumer) && (len(f.IDs) == 0 || slices.Contains(f.IDs, d.DeadLetterInfo.ID)) &&
			(f.Topic == "" || backend.MatchTopic([]string{f.Topic}, d.message.Topic)) && (f.Key == "" || f.Key == d.message.Key) &&
			(f.Reason == "" || backend.MatchTopic([]string{f.Reason}, d.Reason)) {
			selected = append(selected, d)
		}
	}
	return first(selected, f.Limit)
}

func (o operator) DeadLetters(ctx context.Context, f operate.DeadLetterFilter) ([]operate.DeadLetterInfo, error) {
	return read(ctx, o.b, "dead letters", func(s *state) (all []operate.DeadLetterInfo, err error) {
		for _, d := range s.selected(f) {
			info := d.DeadLetterInfo
			info.Headers = maps.Clone(info.Headers)
			if len(f.IDs) == 1 {
				info.Payload = slices.Clone(d.message.Payload)
			}
			all = append(all, info)
		}
		return all, nil
	})
}

func (o operator) Purge(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	return change[int](ctx, o.b, "purge", f)
}

func (s *state) purge(f operate.DeadLetterFilter) (int, error) { return len(s.remove(f)), nil }

// remove removes the dead letters that the filter selects.
func (s *state) remove(f operate.DeadLetterFilter) []*deadLetter {
	selected := s.selected(f)
	s.dead = slices.DeleteFunc(s.dead, func(d *deadLetter) bool { return slices.Contains(selected, d) })
	s.changed = len(selected) > 0
	return selected
}

func (o operator) Replay(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	return change[int](ctx, o.b, "replay", f)
}

func (s *state) replay(f operate.DeadLetterFilter) (int, error) {
	letters := s.remove(f)
	for _, d := range letters {
		if l := s.consumers[d.Consumer].leases[d.Resource]; l.find(d.MessageID) < 0 {
			park := backend.Park{ID: d.MessageID, Lane: d.lane}
			l.parked = append(l.parked, &parked{message: d.message, Park: park, due: s.now, since: s.now})
		}
		s.replays++
	}
	return len(letters), nil
}

func (o operator) SetCursor(ctx context.Context, consumer, resource string, to operate.CursorTarget) (int, error) {
	return change[int](ctx, o.b, "set cursor", move{consumer, resource, to})
}

type move struct {
	Consumer, Resource string
	To                 operate.CursorTarget
}

func (s *state) setCursor(m move) (moved int, err error) {
	c, err := s.reader("set cursor", m.Consumer)
	if err != nil {
		return 0, err
	}
	var to position
	switch last := s.message(m.To.After); {
	case m.To == operate.CursorTarget{Beginning: true}:
	case m.To == operate.CursorTarget{Now: true}:
		to = position(len(s.log))
	case m.To == operate.CursorTarget{After: m.To.After} && last != nil:
		to = last.position
	default:
		return 0, fmt.Errorf("set cursor %s: %+v is not one place of the log; give beginning, now or the id of a message", m.Consumer, m.To)
	}
	for _, l := range c.order {
		if m.Resource != "" && l.resource != m.Resource {
			continue
		}
		moved++
		l.cursor, l.mark, l.marks = to, "", 0
		s.drop(l)
		if m.To.Beginning {
			l.parked = nil
			s.dead = slices.DeleteFunc(s.dead, func(d *deadLetter) bool { return d.Consumer == m.Consumer && d.Resource == l.resource })
		}
	}
	return moved, nil
}
