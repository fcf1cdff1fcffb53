package leasetest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// request is one call of a backend, and whom it is about.
type request struct {
	op        string
	process   string
	consumers []string
	resources []string
	feed      *proxyFeed // of Feed.Next
	told      bool       // it returns an error alone
}

func (r request) names(consumer, resource string) bool {
	return slices.Contains(r.consumers, consumer) && slices.Contains(r.resources, resource)
}

// about is a request about one consumer.
func about(op, consumer string, resources ...string) request {
	return request{op: op, consumers: []string{consumer}, resources: resources}
}

func aboutRefs(op, consumer string, refs []backend.Ref) request {
	return about(op, consumer, each(refs, func(r backend.Ref) string { return r.Resource })...)
}

func aboutAll(op string, infos []backend.ConsumerInfo) request {
	return request{op: op, consumers: each(infos, func(c backend.ConsumerInfo) string { return c.Name })}
}

// proxy is the backend of one simulated process: all its calls go through via, which makes them or lets them go
// wrong. It counts what it hands out and does not get back.
type proxy struct {
	be    backend.Backend
	via   func(ctx context.Context, r request, call func(context.Context) (any, error)) (any, error)
	tally *tally
}

// through makes a call of a backend by way of its proxy.
func through[T any](ctx context.Context, p *proxy, r request, call func(context.Context) (T, error)) (T, error) {
	v, err := p.via(ctx, r, func(ctx context.Context) (any, error) { return call(ctx) })
	answer, _ := v.(T) // none when there is none
	return answer, err
}

// told is through for a call that returns an error alone.
func (p *proxy) told(ctx context.Context, r request, call func(context.Context) error) error {
	r.told = true
	_, err := p.via(ctx, r, func(ctx context.Context) (any, error) { return nil, call(ctx) })
	return err
}

// undo is what becomes of an answer that its caller does not get: the connection broke on which it was made.
func undo(ctx context.Context, answer any) {
	switch v := answer.(type) {
	case *proxyFeed:
		v.Close()
	case *proxyTx:
		v.Rollback(context.WithoutCancel(ctx))
	}
}

func (p *proxy) Publish(ctx context.Context, es []backend.Event) error {
	return p.told(ctx, request{op: "Publish"}, func(ctx context.Context) error { return p.be.Publish(ctx, es) })
}

func (p *proxy) Check(ctx context.Context, infos []backend.ConsumerInfo) error {
	return p.told(ctx, aboutAll("Check", infos), func(ctx context.Context) error { return p.be.Check(ctx, infos) })
}

func (p *proxy) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	return through(ctx, p, request{op: "OpenSession", consumers: spec.Consumers}, func(ctx context.Context) (backend.Session, error) {
		s, err := p.be.OpenSession(ctx, spec)
		if err != nil {
			return nil, err
		}
		return &proxySession{p, s, spec.Consumers}, nil
	})
}

func (p *proxy) Register(ctx context.Context, c backend.ConsumerInfo, resources []string) error {
	return p.told(ctx, about("Register", c.Name, resources...), func(ctx context.Context) error {
		return p.be.Register(ctx, c, resources)
	})
}

func (p *proxy) Survey(ctx context.Context, consumers []string) ([]backend.Survey, error) {
	return through(ctx, p, request{op: "Survey", consumers: consumers}, func(ctx context.Context) ([]backend.Survey, error) {
		return p.be.Survey(ctx, consumers)
	})
}

func (p *proxy) Acquire(ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
	return through(ctx, p, about("Acquire", req.Consumer.Name), func(ctx context.Context) ([]backend.Grant, error) {
		return p.be.Acquire(ctx, req)
	})
}

func (p *proxy) Release(ctx context.Context, session, consumer string, refs []backend.Ref) error {
	return p.told(ctx, aboutRefs("Release", consumer, refs), func(ctx context.Context) error {
		return p.be.Release(ctx, session, consumer, refs)
	})
}

func (p *proxy) Owned(ctx context.Context, session, consumer string) ([]backend.Ref, error) {
	return through(ctx, p, about("Owned", consumer), func(ctx context.Context) ([]backend.Ref, error) {
		return p.be.Owned(ctx, session, consumer)
	})
}

func (p *proxy) OpenFeed(ctx context.Context, infos []backend.ConsumerInfo) (backend.Feed, error) {
	return through(ctx, p, aboutAll("OpenFeed", infos), func(ctx context.Context) (backend.Feed, error) {
		f, err := p.be.OpenFeed(ctx, infos)
		if err != nil {
			return nil, err
		}
		p.tally.lend("feeds")
		return &proxyFeed{p: p, f: f, infos: infos}, nil
	})
}

func (p *proxy) Fetch(ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
	r := about("Fetch", req.Consumer.Name, each(req.Items, func(it backend.FetchItem) string { return it.Resource })...)
	return through(ctx, p, r, func(ctx context.Context) ([]backend.Fetched, error) { return p.be.Fetch(ctx, req) })
}

func (p *proxy) FetchParked(ctx context.Context, req backend.ParkedRequest) (backend.Parked, error) {
	r := about("FetchParked", req.Consumer.Name, req.Resources...)
	if len(req.Resources) == 0 && !slices.Contains(req.Exclude, poison) { // it is for all
		r.resources = []string{poison}
	}
	return through(ctx, p, r, func(ctx context.Context) (backend.Parked, error) { return p.be.FetchParked(ctx, req) })
}

func (p *proxy) Commit(ctx context.Context, session, consumer string, ps []backend.Progress) ([]string, error) {
	r := about("Commit", consumer, each(ps, func(p backend.Progress) string { return p.Resource })...)
	return through(ctx, p, r, func(ctx context.Context) ([]string, error) { return p.be.Commit(ctx, session, consumer, ps) })
}

func (p *proxy) Maintain(ctx context.Context, infos []backend.ConsumerInfo) (operate.MaintainReport, error) {
	return through(ctx, p, aboutAll("Maintain", infos), func(ctx context.Context) (operate.MaintainReport, error) {
		return p.be.Maintain(ctx, infos)
	})
}

// Capabilities are those of the backend, by way of the proxy. Its methods for them are there whatever the backend has.
func (p *proxy) Capabilities() backend.Capabilities {
	caps := p.be.Capabilities()
	if caps.Rows != nil {
		caps.Rows = p
	}
	if caps.Streams != nil {
		caps.Streams = p
	}
	if caps.Ledger != nil {
		caps.Ledger = p
	}
	if caps.Tx != nil {
		caps.Tx = p
	}
	return caps
}

func (p *proxy) Retire(ctx context.Context, session, consumer string, refs []backend.Ref) error {
	return p.told(ctx, aboutRefs("Retire", consumer, refs), func(ctx context.Context) error {
		return p.be.Capabilities().Streams.Retire(ctx, session, consumer, refs)
	})
}

func (p *proxy) Renew(ctx context.Context, session string, c backend.ConsumerInfo, refs []backend.Ref) ([]string, error) {
	return through(ctx, p, aboutRefs("Renew", c.Name, refs), func(ctx context.Context) ([]string, error) {
		return p.be.Capabilities().Rows.Renew(ctx, session, c, refs)
	})
}

func (p *proxy) StartOnce(ctx context.Context, session, consumer string, ref backend.Ref, key, message string) (backend.OnceState, error) {
	return through(ctx, p, about("StartOnce", consumer, ref.Resource), func(ctx context.Context) (backend.OnceState, error) {
		return p.be.Capabilities().Ledger.StartOnce(ctx, session, consumer, ref, key, message)
	})
}

func (p *proxy) Begin(ctx context.Context, session string) (backend.Tx, error) {
	return through(ctx, p, request{op: "Begin"}, func(ctx context.Context) (backend.Tx, error) {
		tx, err := p.be.Capabilities().Tx.Begin(ctx, session)
		if err != nil {
			return nil, err
		}
		p.tally.lend("transactions")
		return &proxyTx{Tx: tx, p: p}, nil
	})
}

type proxySession struct {
	p         *proxy
	s         backend.Session
	consumers []string
}

func (s *proxySession) Alarm() <-chan struct{} { return nil }

func (s *proxySession) Heartbeat(ctx context.Context) error {
	return s.p.told(ctx, request{op: "Heartbeat", consumers: s.consumers}, s.s.Heartbeat)
}

func (s *proxySession) Close(ctx context.Context) error {
	return s.p.told(ctx, request{op: "Close", consumers: s.consumers}, s.s.Close)
}

type proxyFeed struct {
	p     *proxy
	f     backend.Feed
	infos []backend.ConsumerInfo
	again *backend.News // to be reported twice
	once  sync.Once
}

// Next keeps to the feed's own rule: news whose reply was lost is lost with the feed.
func (f *proxyFeed) Next(ctx context.Context) (backend.News, error) {
	r := aboutAll("Feed.Next", f.infos)
	r.feed = f
	return through(ctx, f.p, r, f.f.Next)
}

// twice tells the same news two times: news that was taken is not there again.
func (f *proxyFeed) twice(ctx context.Context) (backend.News, error) {
	if n := f.again; n != nil {
		f.again = nil
		return *n, nil
	}
	n, err := f.f.Next(ctx)
	if err == nil {
		f.again = &n
	}
	return n, err
}

// flooded does not wait for news.
func (f *proxyFeed) flooded(ctx context.Context) (backend.News, error) {
	soon, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	n, err := f.f.Next(soon)
	if err != nil && ctx.Err() == nil {
		return backend.News{}, nil
	}
	return n, err
}

func (f *proxyFeed) Close() {
	f.once.Do(func() { f.p.tally.giveBack("feeds") })
	f.f.Close()
}

type proxyTx struct {
	backend.Tx
	p    *proxy
	once sync.Once
	sent bool
	err  error
}

func (t *proxyTx) Once(ctx context.Context, consumer, key string) (bool, error) {
	return through(ctx, t.p, about("Tx.Once", consumer), func(ctx context.Context) (bool, error) {
		return t.Tx.Once(ctx, consumer, key)
	})
}

// Commit is sent to the server once: what is executed twice finds no transaction there.
func (t *proxyTx) Commit(ctx context.Context, session, consumer string, progress backend.Progress) error {
	t.end()
	err := t.p.told(ctx, about("Tx.Commit", consumer, progress.Resource), func(ctx context.Context) error {
		if !t.sent {
			t.sent, t.err = true, t.Tx.Commit(ctx, session, consumer, progress)
		}
		return t.err
	})
	if !t.sent { // the server does it when the connection breaks
		t.Tx.Rollback(context.WithoutCancel(ctx))
	}
	return err
}

func (t *proxyTx) Rollback(ctx context.Context) error {
	t.end()
	err := t.p.told(ctx, request{op: "Tx.Rollback"}, t.Tx.Rollback)
	if err != nil {
		t.Tx.Rollback(context.WithoutCancel(ctx))
	}
	return err
}

func (t *proxyTx) end() { t.once.Do(func() { t.p.tally.giveBack("transactions") }) }
