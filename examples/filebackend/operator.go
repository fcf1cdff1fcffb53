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
	for _, l := range s.Of(name) {
		if resource != "" && l.Resource != resource {
			continue
		}
		c := s.Consumers[name]
		v := s.View(l, c.Grace)
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
			for _, m := range s.Survey(name, 0).Members {
				if st.Members++; m.Owned == 0 {
					st.Standbys++
				}
			}
			patterns := s.patterns(c.ConsumerInfo)
			for _, m := range s.delayed {
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
	return call(ctx, o.b, "members", func(s *store) ([]operate.MemberStatus, error) {
		return s.Members(name), nil
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
	return call(ctx, o.b, "set cursor of "+name, func(s *store) (int, error) {
		last, to := s.message(target.After), backend.Position(0)
		switch c := s.Consumers[name]; {
		case target.Check() != nil:
			return 0, target.Check()
		case c == nil:
			return 0, errors.New("there is no such consumer; the status lists those there are")
		case c.ReadsNothing():
			return 0, operate.ErrNoCursor
		case target.Now:
			to = backend.Position(len(s.log))
		case target.After != "" && last == nil:
			return 0, errors.New(target.After + " is not the id of a message; give one that Cursors shows")
		case target.After != "":
			to = last.Number
		}
		leases := s.MoveCursors(name, resource, to, target.Beginning)
		for id, d := range s.Dead {
			if target.Beginning && d.Consumer == name && (resource == "" || d.Resource == resource) {
				s.line.Dead[id] = nil
			}
		}
		return len(leases), nil
	})
}

func (o operator) Parked(ctx context.Context, f operate.ParkedFilter) ([]operate.ParkedInfo, error) {
	return call(ctx, o.b, "parked", func(s *store) ([]operate.ParkedInfo, error) {
		return s.Parked(f, func(p *backend.ParkedRow) backend.Raw { return s.message(p.ID).raw(0) }), nil
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
		return cmp.Or(a.DeadAt.Compare(b.DeadAt), cmp.Compare(s.message(a.MessageID).Number, s.message(b.MessageID).Number))
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
			l := s.Leases[d.Consumer][d.Resource]
			l.Replay(d, s.At)
			s.Save(d.Consumer, l)
			s.line.Dead[d.ID] = nil
			s.replays++
		}
		return len(letters), nil
	})
}
