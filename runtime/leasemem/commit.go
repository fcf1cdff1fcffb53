package leasemem

import (
	"context"
	"fmt"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/backend/rows"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Commit stores progress.
func (b *Backend) Commit(ctx context.Context, session, consumer string, progress []backend.Progress) ([]string, error) {
	return call(ctx, b, "Commit", func(s *store, now time.Time) ([]string, error) {
		return s.commit(session, consumer, progress, now)
	})
}

// commit applies the entries whose epoch is current and names the others. With an error no entry has changed.
func (s *store) commit(session, consumer string, progress []backend.Progress, now time.Time) ([]string, error) {
	fenced, err := s.Rows.Commit(session, consumer, progress, func(l *rows.Lease, p backend.Progress) {
		s.endItems(consumer, l, p.Once, now)
	})
	if err != nil {
		err = fmt.Errorf("leasemem: %w", err)
	}
	return fenced, err
}

// FetchParked reads due parked messages.
func (b *Backend) FetchParked(ctx context.Context, req backend.ParkedRequest) (backend.Parked, error) {
	return call(ctx, b, "FetchParked", func(s *store, _ time.Time) (backend.Parked, error) {
		return s.Rows.FetchParked(req), nil
	})
}

// Maintain drops expired and surplus dead letters, passed messages and sessions
// that ended and own no lease. A segment of this log is one message.
func (b *Backend) Maintain(ctx context.Context, consumers []backend.ConsumerInfo) (operate.MaintainReport, error) {
	return call(ctx, b, "Maintain", func(s *store, now time.Time) (operate.MaintainReport, error) {
		s.releaseDelayed(now)
		r := s.Rows.Maintain(consumers)
		r.IDsForgotten = s.forgetIDs(now)
		for _, info := range consumers {
			r.OnceForgotten += s.forgetItems(info, now)
			if c := s.Consumers[info.Name]; c != nil {
				r.StreamsForgotten += s.forgetStreams(c, now)
			}
		}
		if r.SessionsForgotten > 0 {
			s.ownershipChanged()
		}
		r.SegmentsDropped = s.trim()
		return r, nil
	})
}
