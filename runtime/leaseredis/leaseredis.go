package leaseredis

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Backend keeps sessions, leases and messages in one namespace of a Redis server or of a
// Redis Cluster. It is safe for concurrent use.
//
// It has a part for each role, and below these what they share: the streams and the catalog of consumers, the sessions of this
// process, and the shards, which reach the server.
type Backend struct {
	*shards
	*sessions
	*streams
	*catalog

	*owner
	*publisher
	*reader
	*commits
	*ledger
	*keeper
	*operator
	*checker
}

// Option adjusts a Backend.
type Option func(*Backend)

// WithNamespace sets what the hash tags of all keys begin with: lower-case letters, digits
// and dashes, at most 32. Default lg, which makes the tags {lg0}, {lg1} and so on.
// Namespaces do not see each other.
func WithNamespace(name string) Option { return func(b *Backend) { b.namespace = name } }

// WithLogger sets the logger. Default slog.Default(), also for nil.
func WithLogger(l *slog.Logger) Option {
	return func(b *Backend) {
		if b.log = l; l == nil {
			b.log = slog.Default()
		}
	}
}

// WithObserver sets the observer of what the backend itself does, see
// operate.ObservedTopology. Default none.
func WithObserver(o operate.Observer) Option { return func(b *Backend) { b.observer = o } }

// WithTags sets over how many hash tags the namespace is spread, 1 to 256, when it is
// created; a namespace that is there keeps its number, and Check refuses another one.
// Default 1 on a single server and 8 on a cluster. A topic belongs to one tag, so more tags
// spread topics over more nodes; a process sends a heartbeat to each.
func WithTags(n int) Option {
	return func(b *Backend) {
		b.wanted.tags = n
		if n < 1 || n > 256 {
			b.misuse = fmt.Errorf("leaseredis: WithTags(%d): the number of tags is not within 1 and 256", n)
		}
	}
}

// WithSlots sets how many slots keys are spread over for PerPartition, 1 to 16,384, when the
// namespace is created; it keeps its number. Default 256.
func WithSlots(n int) Option {
	return func(b *Backend) {
		b.wanted.slots = n
		if n < 1 || n > 16384 {
			b.misuse = fmt.Errorf("leaseredis: WithSlots(%d): the number of slots is not within 1 and 16384", n)
		}
	}
}

// WithPublishMiddleware puts middleware around publishing, the first outermost. Given again, it adds more inside.
func WithPublishMiddleware(m ...backend.PublishMiddleware) Option {
	return func(b *Backend) { b.publisher.middleware = append(b.publisher.middleware, m...) }
}

// WithMaxDeadLetters bounds the dead letters of consumers that set no bound of their own:
// the oldest go first, counted and logged. Default 10,000; 0 is no bound.
func WithMaxDeadLetters(n int) Option { return func(b *Backend) { b.keeper.maxDead = max(n, 0) } }

// New returns a backend on client's server or cluster: a *redis.Client, also one under
// Sentinel, or a *redis.ClusterClient that reads from masters. It does not connect; what is
// wrong with the client or the options is reported by every call, what is wrong with the
// server by Check, with which a consumer's Run begins. The client stays the caller's. Beside
// it a running process keeps two connections of its own to each node, made from the client's options: one for heartbeats,
// and one by which others notice that the process has ended; and a subscription on the client for all consumers with the same
// TTL and margin, and one for each that consumes streams of others.
func New(client redis.UniversalClient, opts ...Option) *Backend {
	d := &shards{client: client, namespace: "lg", log: slog.Default()}
	ss := &sessions{shards: d, open: map[string]*session{}}
	d.above = ss
	st := &streams{sessions: ss, reads: streamReads{of: map[[2]string]*streamRead{}}}
	c := &catalog{streams: st, changes: changes{of: map[int]changed{}}}
	o, ledger, trimmer := &owner{catalog: c}, &ledger{c}, &trimmer{catalog: c}
	p := &publisher{streams: st, numbering: numbering{id: newAttempt(), tags: map[int]*attempts{}}}
	r := &reader{catalog: c, trimmer: trimmer, missed: missed{topics: map[string]map[string]time.Time{}}}
	b := &Backend{
		shards: d, sessions: ss, streams: st, catalog: c,
		owner: o, publisher: p, reader: r, commits: &commits{c}, ledger: ledger,
		keeper: &keeper{catalog: c, trimmer: trimmer, ledger: ledger, maxDead: 10_000}, operator: &operator{c, o}, checker: &checker{c},
	}
	for _, o := range opts {
		o(b)
	}
	p.around = backend.NewPublishing(p.middleware...)
	if !namespacePattern.MatchString(b.namespace) {
		b.misuse = fmt.Errorf("leaseredis: WithNamespace(%q): a namespace is 1 to 32 lower-case letters, digits and dashes", b.namespace)
	}
	if err := b.checkClient(); err != nil {
		b.misuse = err
	}
	return b
}

var namespacePattern = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// pause waits for d or until ctx ends, and reports whether it waited.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Capabilities are all but transactions, which Redis does not have.
func (b *Backend) Capabilities() backend.Capabilities {
	return backend.Capabilities{Rows: b, Streams: b, Ledger: b, Operator: b}
}
