package leasemem

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strconv"
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
			owned := map[string]bool{}
			for _, l := range c.leases {
				lag, oldest := s.behind(c, l, now)
				st.LagTotal += lag
				st.LagMax = max(st.LagMax, lag)
				st.OldestUnread = max(st.OldestUnread, oldest)
				st.ParkedKeys += len(l.parked)
				if !c.counts(l) {
					continue
				}
				st.Resources++
				if s.owned(c, l, now) {
					owned[l.owner] = true
				} else {
					st.Unowned++
				}
			}
			for _, l := range s.unleased(c) { // nobody has asked for them yet
				lag, oldest := s.behind(c, l, now)
				st.LagTotal += lag
				st.LagMax = max(st.LagMax, lag)
				st.OldestUnread = max(st.OldestUnread, oldest)
			}
			for _, d := range s.outbox.delayed {
				if backend.MatchTopic(c.info.Topics, d.event.Topic) {
					st.Delayed++
				}
			}
			for _, m := range s.members(name, now) {
				st.Members++
				if !owned[m.spec.ID] {
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
		live := s.members(name, now)
		slices.SortStableFunc(live, func(a, b *session) int { return a.opened.Compare(b.opened) })
		owned, share := map[string]int{}, 0
		if c := s.consumers[name]; c != nil {
			resources := 0
			for _, l := range c.leases {
				if c.counts(l) {
					owned[l.owner]++
					resources++
				}
			}
			if len(live) > 0 {
				share = (resources + len(live) - 1) / len(live)
			}
		}
		out := make([]operate.MemberStatus, len(live))
		for i, se := range live {
			out[i] = operate.MemberStatus{
				Session: se.spec.ID, Host: se.spec.Host, PID: se.spec.PID,
				Since: now.Sub(se.opened), SinceBeat: now.Sub(se.beat), TTLRemaining: se.expires.Sub(now),
				Owned: owned[se.spec.ID], FairShare: share,
			}
		}
		return out, nil
	})
}

// Leases lists leases of a consumer. A limit of 0 means all.
func (b *Backend) Leases(ctx context.Context, name string, limit int) ([]operate.LeaseStatus, error) {
	return call(ctx, b, "Leases", func(s *store, now time.Time) ([]operate.LeaseStatus, error) {
		c := s.consumers[name]
		if c == nil {
			return nil, nil
		}
		out := make([]operate.LeaseStatus, 0, len(c.leases))
		for _, l := range c.leases {
			lag, _ := s.behind(c, l, now)
			st := operate.LeaseStatus{
				Resource: l.resource, Epoch: l.epoch, Lag: lag,
				Parked: len(l.parkedByID), Suspicion: l.suspicion,
			}
			if s.owned(c, l, now) {
				st.Session, st.Since = l.owner, now.Sub(l.acquired)
			}
			out = append(out, st)
		}
		slices.SortFunc(out, byLag)
		if limit > 0 && len(out) > limit {
			out = out[:limit]
		}
		return out, nil
	})
}

// DeadLetters lists dead letters.
func (b *Backend) DeadLetters(ctx context.Context, f operate.DeadLetterFilter) ([]operate.DeadLetterInfo, error) {
	return call(ctx, b, "DeadLetters", func(s *store, now time.Time) ([]operate.DeadLetterInfo, error) {
		var out []operate.DeadLetterInfo
		for _, d := range s.deadLetters(f) {
			m := d.message
			info := operate.DeadLetterInfo{
				ID: strconv.FormatInt(d.id, 10), Consumer: d.consumer, Resource: d.resource, MessageID: m.name(),
				Topic: m.event.Topic, Key: m.event.Key, Kind: m.event.Kind,
				Size: len(m.event.Payload), Headers: maps.Clone(m.event.Headers), PublishedAt: m.publishedAt,
				FirstFailed: d.firstFailed, DeadAt: d.deadAt, Attempts: d.attempts, Reason: d.reason,
			}
			if len(f.IDs) == 1 {
				info.Payload = bytes.Clone(m.event.Payload)
			}
			out = append(out, info)
		}
		return out, nil
	})
}

// Parked lists parked messages.
func (b *Backend) Parked(ctx context.Context, f operate.ParkedFilter) ([]operate.ParkedInfo, error) {
	return call(ctx, b, "Parked", func(s *store, _ time.Time) ([]operate.ParkedInfo, error) {
		c := s.consumers[f.Consumer]
		if c == nil {
			return nil, nil
		}
		var out []operate.ParkedInfo
		for _, l := range c.sortedLeases() {
			if f.Resource != "" && f.Resource != l.resource {
				continue
			}
			for _, lane := range slices.Sorted(maps.Keys(l.parked)) {
				for i, m := range l.parked[lane] {
					if f.Limit > 0 && len(out) == f.Limit {
						return out, nil
					}
					if e := &m.message.event; f.Key == "" || f.Key == e.Key {
						out = append(out, operate.ParkedInfo{
							Resource: l.resource, MessageID: m.message.name(), Topic: e.Topic, Key: e.Key, Kind: e.Kind, Size: len(e.Payload),
							Attempts: m.attempt, Due: m.due, FirstFailed: m.firstFailed, Behind: i > 0, Error: m.err,
						})
					}
				}
			}
		}
		return out, nil
	})
}

// Replay parks dead letters again, in the lane of their key, due at once.
func (b *Backend) Replay(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	return call(ctx, b, "Replay", func(s *store, now time.Time) (int, error) {
		chosen := s.deadLetters(f)
		for _, d := range chosen {
			l, lane := s.consumers[d.consumer].register(d.resource), d.message.event.Key
			if !l.wanted {
				l.wanted = true
				s.ownershipChanged()
			}
			l.setAside(&parked{message: d.message, lane: lane, due: now, since: now})
			s.forget(d)
			s.replayed(d.consumer)
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
	match := func(pattern, v string) bool { return pattern == "" || backend.MatchTopic([]string{pattern}, v) }
	var out []*deadLetter
	for name, c := range s.consumers {
		for _, d := range c.dead {
			if (f.Consumer == "" || f.Consumer == name) &&
				(len(f.IDs) == 0 || slices.Contains(f.IDs, strconv.FormatInt(d.id, 10))) &&
				match(f.Topic, d.message.event.Topic) &&
				(f.Key == "" || f.Key == d.message.event.Key) &&
				match(f.Reason, d.reason) {
				out = append(out, d)
			}
		}
	}
	slices.SortFunc(out, func(a, b *deadLetter) int { return int(a.id - b.id) })
	if f.Limit > 0 && len(out) > f.Limit {
		out = out[:f.Limit]
	}
	return out
}

func (s *store) forget(d *deadLetter) {
	c := s.consumers[d.consumer]
	c.dead = slices.DeleteFunc(c.dead, func(x *deadLetter) bool { return x == d })
}
