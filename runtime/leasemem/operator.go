package leasemem

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Status describes every consumer that was registered.
func (b *Backend) Status(ctx context.Context) ([]operate.ConsumerStatus, error) {
	return call(ctx, b, "Status", func(s *store, now time.Time) ([]operate.ConsumerStatus, error) {
		s.releaseDelayed(now) // what is due is in the log, whether or not a feed has looked
		var out []operate.ConsumerStatus
		for _, name := range slices.Sorted(maps.Keys(s.consumers)) {
			c := s.consumers[name]
			st := operate.ConsumerStatus{
				Consumer: name, Per: c.info.Per.String(), Lock: c.info.Lock.String(), DeadLetters: len(c.dead),
			}
			var counted []backend.LeaseView
			for _, v := range s.views(c, "", now) {
				if !s.Leases[name][v.Resource].Idle {
					counted = append(counted, v)
					continue
				}
				st.AddLag(v.Lag, v.OldestUnread)
				st.ParkedKeys += v.Lanes
			}
			backend.AddLeases(&st, counted)
			for _, l := range s.unleased(c) { // nobody has asked for them yet
				st.AddLag(s.behind(c, l, now))
			}
			for _, d := range s.outbox.delayed {
				if backend.MatchTopic(c.info.Topics, d.event.Topic) {
					st.Delayed++
				}
			}
			for _, m := range s.Rows.Survey(name, 0).Members {
				st.Members++
				if m.Owned == 0 {
					st.Standbys++
				}
			}
			out = append(out, st)
		}
		return out, nil
	})
}

// Members lists the live sessions of a consumer.
func (b *Backend) Members(ctx context.Context, name string) ([]operate.MemberStatus, error) {
	return call(ctx, b, "Members", func(s *store, now time.Time) ([]operate.MemberStatus, error) {
		return s.Rows.Members(name), nil
	})
}

// Leases lists leases of a consumer. A limit of 0 means all.
func (b *Backend) Leases(ctx context.Context, name string, limit int) ([]operate.LeaseStatus, error) {
	return call(ctx, b, "Leases", func(s *store, now time.Time) ([]operate.LeaseStatus, error) {
		c := s.consumers[name]
		if c == nil {
			return nil, nil
		}
		return backend.LeaseStatuses(s.views(c, "", now), limit), nil
	})
}

// views describes the leases of a consumer, or the one of a resource.
func (s *store) views(c *consumer, resource string, now time.Time) []backend.LeaseView {
	var out []backend.LeaseView
	for _, l := range s.Leases[c.info.Name] {
		if resource == "" || l.Resource == resource {
			v := s.View(l, c.info.Grace)
			v.Lag, v.OldestUnread = s.behind(c, l, now)
			out = append(out, v)
		}
	}
	return out
}

// DeadLetters lists dead letters.
func (b *Backend) DeadLetters(ctx context.Context, f operate.DeadLetterFilter) ([]operate.DeadLetterInfo, error) {
	return call(ctx, b, "DeadLetters", func(s *store, now time.Time) ([]operate.DeadLetterInfo, error) {
		var out []operate.DeadLetterInfo
		for _, d := range s.deadLetters(f) {
			info := d.DeadLetterInfo
			info.Headers = maps.Clone(info.Headers)
			if len(f.IDs) == 1 {
				info.Payload = bytes.Clone(d.message.event.Payload)
			}
			out = append(out, info)
		}
		return out, nil
	})
}

// Parked lists parked messages.
func (b *Backend) Parked(ctx context.Context, f operate.ParkedFilter) ([]operate.ParkedInfo, error) {
	return call(ctx, b, "Parked", func(s *store, _ time.Time) ([]operate.ParkedInfo, error) {
		return s.Rows.Parked(f, func(m *backend.ParkedRow) backend.Raw { return m.Message.(*message).raw(0) }), nil
	})
}

// Replay parks dead letters again, in the lane of their key, due at once.
func (b *Backend) Replay(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	return call(ctx, b, "Replay", func(s *store, now time.Time) (int, error) {
		chosen := s.deadLetters(f)
		for _, d := range chosen {
			l := s.register(s.consumers[d.Consumer], d.Resource)
			if l.Idle {
				l.Idle = false
				s.ownershipChanged()
			}
			l.Replay(&d.DeadLetterInfo, now)
			l.Parked[len(l.Parked)-1].Message = d.message
			s.forget(d)
			s.replayed(d.Consumer)
		}
		return len(chosen), nil
	})
}

// Purge deletes dead letters.
func (b *Backend) Purge(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	return call(ctx, b, "Purge", func(s *store, now time.Time) (int, error) {
		chosen := s.deadLetters(f)
		for _, d := range chosen {
			s.forget(d)
		}
		return len(chosen), nil
	})
}

// deadLetters returns what f selects, the oldest first.
func (s *store) deadLetters(f operate.DeadLetterFilter) []*deadLetter {
	var out []*deadLetter
	for _, c := range s.consumers {
		for _, d := range c.dead {
			if backend.Selects(f, &d.DeadLetterInfo) {
				out = append(out, d)
			}
		}
	}
	slices.SortFunc(out, func(a, b *deadLetter) int { return int(a.id - b.id) })
	return backend.First(out, f.Limit)
}

func (s *store) forget(d *deadLetter) {
	c := s.consumers[d.Consumer]
	c.dead = slices.DeleteFunc(c.dead, func(x *deadLetter) bool { return x == d })
}
