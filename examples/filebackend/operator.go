package filebackend

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// operator is the backend for those who run it.
type operator struct{ b *Backend }

// views describes the leases of a consumer, or the one of a resource.
func (s *store) views(name, resource string) (views []backend.LeaseView) {
	for _, l := range s.Leases[name] {
		if resource != "" && l.Resource != resource {
			continue
		}
		c, v := s.Consumers[name], backend.LeaseView{Lanes: len(l.lanes())}
		v.Resource, v.Epoch, v.Parked, v.Suspicion = l.Resource, l.Epoch, len(l.Parked), l.Suspicion
		if s.live(l.Session) {
			v.Session, v.Since = l.Session, s.At.Sub(l.Since)
		}
		if l.Cursor > 0 {
			v.Position = l.Cursor.id()
		}
		for m := range s.unread(c.Per, l.Resource, l.Cursor, s.patterns(c.ConsumerInfo)) {
			if v.Lag++; v.Lag == 1 {
				v.OldestUnread = s.At.Sub(m.Due)
			}
		}
		views = append(views, v)
	}
	return views
}

func (o operator) Status(ctx context.Context) ([]operate.ConsumerStatus, error) {
	return call(ctx, o.b, "status", func(s *store) (all []operate.ConsumerStatus, err error) {
		for _, name := range slices.Sorted(maps.Keys(s.Consumers)) {
			c := s.Consumers[name]
			st := operate.ConsumerStatus{Consumer: name, Per: c.Per.String(), Lock: c.Lock.String(),
				DeadLetters: len(s.letters(operate.DeadLetterFilter{Consumer: name}))}
			backend.AddLeases(&st, s.views(name, ""))
			members, owned := s.members(name)
			for _, m := range members {
				if st.Members++; owned[m.ID] == 0 {
					st.Standbys++
				}
			}
			patterns := s.patterns(c.ConsumerInfo)
			for _, m := range s.due {
				if backend.MatchTopic(patterns, m.Topic) {
					st.Delayed++
				}
			}
			all = append(all, st)
		}
		return all, nil
	})
}

func (o operator) Members(ctx context.Context, name string) ([]operate.MemberStatus, error) {
	return call(ctx, o.b, "members", func(s *store) (all []operate.MemberStatus, err error) {
		members, owned := s.members(name)
		slices.SortStableFunc(members, func(a, b *session) int { return a.Opened.Compare(b.Opened) })
		for _, m := range members {
			all = append(all, operate.MemberStatus{Session: m.ID, Host: m.Host, PID: m.PID, Since: s.At.Sub(m.Opened),
				SinceBeat: s.At.Sub(m.Beat), TTLRemaining: m.Expires.Sub(s.At), Owned: owned[m.ID],
				FairShare: (len(s.Leases[name]) + len(members) - 1) / len(members)})
		}
		return all, nil
	})
}

func (o operator) Leases(ctx context.Context, name string, limit int) ([]operate.LeaseStatus, error) {
	return call(ctx, o.b, "leases", func(s *store) ([]operate.LeaseStatus, error) {
		return backend.LeaseStatuses(s.views(name, ""), limit), nil
	})
}

func (o operator) Cursors(ctx context.Context, name, resource string, limit int) ([]operate.CursorStatus, error) {
	return call(ctx, o.b, "cursors of "+name, func(s *store) ([]operate.CursorStatus, error) {
		if c := s.Consumers[name]; c != nil && c.ReadsNothing() {
			return nil, operate.ErrNoCursor
		}
		return backend.CursorStatuses(s.views(name, resource), limit), nil
	})
}

func (o operator) SetCursor(ctx context.Context, name, resource string, target operate.CursorTarget) (int, error) {
	return call(ctx, o.b, "set cursor of "+name, func(s *store) (moved int, err error) {
		last, to := s.message(target.After), position(0)
		switch c := s.Consumers[name]; {
		case target.Check() != nil:
			return 0, target.Check()
		case c == nil:
			return 0, errors.New("there is no such consumer; the status lists those there are")
		case c.ReadsNothing():
			return 0, operate.ErrNoCursor
		case target.Now:
			to = position(len(s.log))
		case target.After != "" && last == nil:
			return 0, errors.New(target.After + " is not the id of a message; give one that Cursors shows")
		case target.After != "":
			to = last.position
		}
		for _, l := range s.Leases[name] {
			if resource != "" && l.Resource != resource {
				continue
			}
			moved++
			l.Cursor, l.Mark, l.MarkCount = to, "", 0
			s.drop(name, l)
			if !target.Beginning {
				continue
			}
			l.Parked = nil
			for id, d := range s.Dead {
				if d.Consumer == name && d.Resource == l.Resource {
					s.line.Dead[id] = nil
				}
			}
		}
		return moved, nil
	})
}

func (o operator) Parked(ctx context.Context, f operate.ParkedFilter) ([]operate.ParkedInfo, error) {
	return call(ctx, o.b, "parked", func(s *store) (all []operate.ParkedInfo, err error) {
		for _, resource := range slices.Sorted(maps.Keys(s.Leases[f.Consumer])) {
			for _, lane := range s.Leases[f.Consumer][resource].lanes() {
				for i, p := range lane {
					m := s.message(p.ID)
					if (f.Resource == "" || f.Resource == resource) && (f.Key == "" || f.Key == m.Key) && (f.Limit <= 0 || len(all) < f.Limit) {
						all = append(all, operate.ParkedInfo{Resource: resource, MessageID: p.ID, Topic: m.Topic, Key: m.Key, Kind: m.Kind,
							Size: len(m.Payload), Attempts: p.Attempt, Due: p.Due, FirstFailed: p.FirstFailed, Behind: i > 0, Error: p.Error})
					}
				}
			}
		}
		return all, nil
	})
}

// letters returns the dead letters that the filter selects, the oldest first.
func (s *store) letters(f operate.DeadLetterFilter) (letters []*operate.DeadLetterInfo) {
	for _, d := range s.Dead {
		if backend.Selects(f, d) {
			letters = append(letters, d)
		}
	}
	slices.SortFunc(letters, func(a, b *operate.DeadLetterInfo) int {
		return cmp.Or(a.DeadAt.Compare(b.DeadAt), cmp.Compare(s.message(a.MessageID).position, s.message(b.MessageID).position))
	})
	return backend.First(letters, f.Limit)
}

func (o operator) DeadLetters(ctx context.Context, f operate.DeadLetterFilter) ([]operate.DeadLetterInfo, error) {
	return call(ctx, o.b, "dead letters", func(s *store) (all []operate.DeadLetterInfo, err error) {
		for _, d := range s.letters(f) {
			info := *d
			info.Headers = maps.Clone(d.Headers)
			if len(f.IDs) == 1 {
				info.Payload = slices.Clone(s.message(d.MessageID).Payload)
			}
			all = append(all, info)
		}
		return all, nil
	})
}

func (o operator) Purge(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	return call(ctx, o.b, "purge", func(s *store) (int, error) {
		letters := s.letters(f)
		for _, d := range letters {
			s.line.Dead[d.ID] = nil
		}
		return len(letters), nil
	})
}

func (o operator) Replay(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	return call(ctx, o.b, "replay", func(s *store) (int, error) {
		letters := s.letters(f)
		for _, d := range letters {
			if l := s.Leases[d.Consumer][d.Resource]; l.find(d.MessageID) < 0 {
				l.Parked = append(l.Parked, &parked{Park: backend.Park{ID: d.MessageID, Lane: d.Key}, Due: s.At, Since: s.At})
				s.save(d.Consumer, l)
			}
			s.line.Dead[d.ID] = nil
			s.replays++
		}
		return len(letters), nil
	})
}
