package leasetest

import (
	"context"
	"sync"
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// mutant is a handle on a memory backend whose methods a mutation replaces.
type mutant struct {
	*leasemem.Backend
	shared *mutantState
	mutation
}

// mutation holds the broken methods; nil ones are not broken.
type mutation struct {
	begin       func(m *mutant, ctx context.Context, session string) (backend.Tx, error)
	openSession func(m *mutant, ctx context.Context, spec backend.SessionSpec) (backend.Session, error)
	acquire     func(m *mutant, ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error)
	release     func(m *mutant, ctx context.Context, session, consumer string, refs []backend.Ref) error
	owned       func(m *mutant) ([]backend.Ref, error)
	commit      func(m *mutant, ctx context.Context, session, consumer string, p []backend.Progress) ([]string, error)
	fetch       func(m *mutant, ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error)
	next        func(m *mutant, n backend.News) backend.News
	survey      func(m *mutant, s []backend.Survey) []backend.Survey
	retire      func(m *mutant, ctx context.Context, session, consumer string, refs []backend.Ref) error
	renew       func(m *mutant, ctx context.Context, session string, c backend.ConsumerInfo, refs []backend.Ref) ([]string, error)
	register    func(m *mutant, ctx context.Context, c backend.ConsumerInfo, resources []string) error
	setCursor   func(m *mutant, ctx context.Context, consumer, resource string, to operate.CursorTarget) (int, error)
	letters     func(f operate.DeadLetterFilter) operate.DeadLetterFilter // what Replay, DeadLetters and their like see of it
	retry       func(m *mutant, ctx context.Context, f operate.ParkedFilter) (int, error)
	parked      func(f operate.ParkedFilter) operate.ParkedFilter // the same of parked messages
}

// mutantState is what all handles on one storage know.
type mutantState struct {
	mu    sync.Mutex
	owner map[string]backend.Ref // the newest grant of each resource
	by    map[string]string      // the session it went to
	infos map[string]backend.ConsumerInfo
}

func (m *mutant) Capabilities() backend.Capabilities {
	return backend.Capabilities{Rows: m, Streams: m, Ledger: m, Tx: m, Operator: m}
}

func (m *mutant) Begin(ctx context.Context, session string) (backend.Tx, error) {
	if m.begin != nil {
		return m.begin(m, ctx, session)
	}
	return m.Backend.Begin(ctx, session)
}

func (m *mutant) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	if m.openSession != nil {
		return m.openSession(m, ctx, spec)
	}
	return m.Backend.OpenSession(ctx, spec)
}

func (m *mutant) Acquire(ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
	call := func(m *mutant, ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
		return m.Backend.Acquire(ctx, req)
	}
	if m.acquire != nil {
		call = m.acquire
	}
	gs, err := call(m, ctx, req)
	m.shared.mu.Lock()
	defer m.shared.mu.Unlock()
	for _, g := range gs {
		m.shared.owner[g.Resource], m.shared.by[g.Resource] = g.Ref, req.Session
	}
	return gs, err
}

func (m *mutant) Release(ctx context.Context, session, consumer string, refs []backend.Ref) error {
	if m.release != nil {
		return m.release(m, ctx, session, consumer, refs)
	}
	return m.Backend.Release(ctx, session, consumer, refs)
}

func (m *mutant) Owned(ctx context.Context, session, consumer string) ([]backend.Ref, error) {
	if m.owned != nil {
		return m.owned(m)
	}
	return m.Backend.Owned(ctx, session, consumer)
}

func (m *mutant) Commit(ctx context.Context, session, consumer string, p []backend.Progress) ([]string, error) {
	if m.commit != nil {
		return m.commit(m, ctx, session, consumer, p)
	}
	return m.Backend.Commit(ctx, session, consumer, p)
}

func (m *mutant) Fetch(ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
	if m.fetch != nil {
		return m.fetch(m, ctx, req)
	}
	return m.Backend.Fetch(ctx, req)
}

func (m *mutant) Register(ctx context.Context, c backend.ConsumerInfo, resources []string) error {
	m.shared.mu.Lock()
	m.shared.infos[c.Name] = c
	m.shared.mu.Unlock()
	if m.register != nil {
		return m.register(m, ctx, c, resources)
	}
	return m.Backend.Register(ctx, c, resources)
}

func (m *mutant) Retire(ctx context.Context, session, consumer string, refs []backend.Ref) error {
	if m.retire != nil {
		return m.retire(m, ctx, session, consumer, refs)
	}
	return m.Backend.Retire(ctx, session, consumer, refs)
}

func (m *mutant) Renew(ctx context.Context, session string, c backend.ConsumerInfo, refs []backend.Ref) ([]string, error) {
	if m.renew != nil {
		return m.renew(m, ctx, session, c, refs)
	}
	return m.Backend.Renew(ctx, session, c, refs)
}

func (m *mutant) SetCursor(ctx context.Context, consumer, resource string, to operate.CursorTarget) (int, error) {
	if m.setCursor != nil {
		return m.setCursor(m, ctx, consumer, resource, to)
	}
	return m.Backend.SetCursor(ctx, consumer, resource, to)
}

func (m *mutant) DeadLetters(ctx context.Context, f operate.DeadLetterFilter) ([]operate.DeadLetterInfo, error) {
	return m.Backend.DeadLetters(ctx, m.sees(f))
}

func (m *mutant) Replay(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	return m.Backend.Replay(ctx, m.sees(f))
}

func (m *mutant) sees(f operate.DeadLetterFilter) operate.DeadLetterFilter {
	if m.letters != nil {
		f = m.letters(f)
	}
	return f
}

func (m *mutant) Parked(ctx context.Context, f operate.ParkedFilter) ([]operate.ParkedInfo, error) {
	if m.parked != nil {
		f = m.parked(f)
	}
	return m.Backend.Parked(ctx, f)
}

func (m *mutant) RetryParked(ctx context.Context, f operate.ParkedFilter) (int, error) {
	if m.parked != nil {
		f = m.parked(f)
	}
	if m.retry != nil {
		return m.retry(m, ctx, f)
	}
	return m.Backend.RetryParked(ctx, f)
}

func (m *mutant) Survey(ctx context.Context, consumers []string) ([]backend.Survey, error) {
	s, err := m.Backend.Survey(ctx, consumers)
	if m.survey != nil {
		s = m.survey(m, s)
	}
	return s, err
}

func (m *mutant) OpenFeed(ctx context.Context, infos []backend.ConsumerInfo) (backend.Feed, error) {
	f, err := m.Backend.OpenFeed(ctx, infos)
	if err == nil && m.next != nil {
		f = &mutantFeed{f, m}
	}
	return f, err
}

type mutantFeed struct {
	backend.Feed
	m *mutant
}

func (f *mutantFeed) Next(ctx context.Context) (backend.News, error) {
	n, err := f.Feed.Next(ctx)
	return f.m.next(f.m, n), err
}

// current returns the newest grant of a resource and the session it went to.
func (s *mutantState) current(resource string) (backend.Ref, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owner[resource], s.by[resource]
}

func newMutant(mu mutation, opts ...leasemem.Option) *mutant {
	return &mutant{leasemem.New(opts...), &mutantState{owner: map[string]backend.Ref{}, by: map[string]string{}, infos: map[string]backend.ConsumerInfo{}}, mu}
}

func (m *mutant) share(opts ...leasemem.Option) *mutant {
	return &mutant{m.Backend.Share(opts...), m.shared, m.mutation}
}

func factoryOf(mu mutation) Factory {
	return Factory{
		New: func(testing.TB) backend.Backend {
			return newMutant(mu)
		},
		Again: func(_ testing.TB, be backend.Backend) backend.Backend {
			return be.(*mutant).share()
		},
	}
}
