package filebackend

import (
	"context"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// FetchParked reads the messages that are due.
func (b *Backend) FetchParked(ctx context.Context, req backend.ParkedRequest) (backend.Parked, error) {
	return call(ctx, b, "fetch parked", func(s *store) (backend.Parked, error) { return s.FetchParked(req), nil })
}

// Commit stores progress.
func (b *Backend) Commit(ctx context.Context, session, consumer string, entries []backend.Progress) ([]string, error) {
	return call(ctx, b, "commit", func(s *store) ([]string, error) { return s.Commit(session, consumer, entries, nil) })
}

// Maintain forgets in one call all that is due: in memory that is quick.
func (b *Backend) Maintain(ctx context.Context, consumers []backend.ConsumerInfo) (operate.MaintainReport, error) {
	return call(ctx, b, "maintain", func(s *store) (operate.MaintainReport, error) { return s.Maintain(consumers), nil })
}
