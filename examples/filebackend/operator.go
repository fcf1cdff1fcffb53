package filebackend

import (
	"context"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/backend/rows"
	"github.com/leasegen/leasegen/runtime/operate"
)

// operator is the backend for those who run it.
type operator struct{ b *Backend }

func (o operator) Status(ctx context.Context) ([]operate.ConsumerStatus, error) {
	return call(ctx, o.b, "status", func(s *store) ([]operate.ConsumerStatus, error) {
		all := s.Operator().Status()
		for i := range all {
			for _, m := range s.delayed {
				if backend.MatchTopic(s.Consumers[all[i].Consumer].Topics, m.Topic) {
					all[i].Delayed++
				}
			}
		}
		return all, nil
	})
}

func (o operator) Members(ctx context.Context, name string) ([]operate.MemberStatus, error) {
	return call(ctx, o.b, "members", func(s *store) ([]operate.MemberStatus, error) { return s.Operator().Members(name), nil })
}

func (o operator) Leases(ctx context.Context, name string, limit int) ([]operate.LeaseStatus, error) {
	return call(ctx, o.b, "leases", func(s *store) ([]operate.LeaseStatus, error) {
		return s.Operator().Leases(name, limit), nil
	})
}

func (o operator) Pause(ctx context.Context, name string) error {
	return do(ctx, o.b, "pause "+name, func(s *store) error { return s.Operator().Pause(name, true) })
}

func (o operator) Resume(ctx context.Context, name string) error {
	return do(ctx, o.b, "resume "+name, func(s *store) error { return s.Operator().Pause(name, false) })
}

func (o operator) Forget(ctx context.Context, name string) error {
	return do(ctx, o.b, "forget "+name, func(s *store) error { return s.Operator().Forget(name) })
}

func (o operator) Cursors(ctx context.Context, name, resource string, limit int) ([]operate.CursorStatus, error) {
	return call(ctx, o.b, "cursors of "+name, func(s *store) ([]operate.CursorStatus, error) {
		return s.Operator().Cursors(name, resource, limit)
	})
}

func (o operator) SetCursor(ctx context.Context, name, resource string, target operate.CursorTarget) (int, error) {
	return call(ctx, o.b, "set cursor of "+name, func(s *store) (int, error) {
		moved, err := s.Operator().SetCursor(name, resource, target, rows.Position(len(s.log)))
		return len(moved), err
	})
}

func (o operator) Parked(ctx context.Context, f operate.ParkedFilter) ([]operate.ParkedInfo, error) {
	return call(ctx, o.b, "parked", func(s *store) ([]operate.ParkedInfo, error) { return s.Operator().Parked(f) })
}

func (o operator) RetryParked(ctx context.Context, f operate.ParkedFilter) (int, error) {
	return call(ctx, o.b, "retry parked", func(s *store) (int, error) { return s.Operator().RetryParked(f) })
}

func (o operator) DeadLetters(ctx context.Context, f operate.DeadLetterFilter) ([]operate.DeadLetterInfo, error) {
	return call(ctx, o.b, "dead letters", func(s *store) ([]operate.DeadLetterInfo, error) { return s.Operator().DeadLetters(f) })
}

func (o operator) DeadLetterGroups(ctx context.Context, f operate.DeadLetterFilter) (operate.DeadLetterGroups, error) {
	return call(ctx, o.b, "dead letter groups", func(s *store) (operate.DeadLetterGroups, error) { return s.Operator().DeadLetterGroups(f) })
}

func (o operator) Purge(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	return call(ctx, o.b, "purge", func(s *store) (int, error) { return s.Operator().Purge(f) })
}

func (o operator) Replay(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	return call(ctx, o.b, "replay", func(s *store) (int, error) {
		replayed, err := s.Operator().Replay(f)
		return len(replayed), err
	})
}
