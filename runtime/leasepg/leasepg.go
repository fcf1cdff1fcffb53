package leasepg

import (
	"crypto/rand"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

var _ backend.Backend = (*Backend)(nil)

// Backend keeps sessions, leases and messages in one schema of a PostgreSQL database.
// It is safe for concurrent use.
//
// It has a part for each role, and below these what they share: the sessions of this process, what is known of the schema, the tables of
// applications, and the server.
type Backend struct {
	*server
	*tables
	*known
	*sessions

	*owner
	*publisher
	*reader
	*commits
	*transactor
	*keeper
	*operator
	*checker
}

// Option adjusts a Backend, or the SQL of [Migrate], [Migrations] and [Grants].
type Option func(*options)

type options struct {
	schema   string
	logger   *slog.Logger
	observer operate.Observer
	slots    int
	from     int
	rights   Rights
	publish  []backend.PublishMiddleware
	polls    bool
}

// WithSchema sets the schema's name: lower-case letters, digits and underscores.
// Default leasegen.
func WithSchema(name string) Option { return func(o *options) { o.schema = name } }

// WithLogger sets the logger. Default slog.Default().
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

// WithObserver sets the observer of what the backend itself does, see operate.ObservedSetBack.
// Default none.
func WithObserver(o operate.Observer) Option { return func(to *options) { to.observer = o } }

// WithPublishMiddleware puts middleware around publishing, by the backend and in callers' transactions, the first outermost.
// Given again, it adds more inside.
func WithPublishMiddleware(m ...backend.PublishMiddleware) Option {
	return func(o *options) { o.publish = append(o.publish, m...) }
}

// WithoutWaiting keeps sessions from waiting for the end of others on a connection of their own: each process has a connection
// fewer, and finds one that died within a second, not in a tenth of one, by asking 2.5 times a second. Default is to wait.
func WithoutWaiting() Option { return func(o *options) { o.polls = true } }

// WithSlots sets how many slots the log has, for [Migrate] and [Migrations]: 1 to 16,384.
// Default 256. It can be changed until the log has messages or a consumer owns slots.
func WithSlots(n int) Option { return func(o *options) { o.slots = n } }

// WithFrom leaves migrations out of [Migrations] up to that version, which a schema has already.
func WithFrom(version int) Option { return func(o *options) { o.from = version } }

func resolve(opts []Option) options {
	o := options{schema: defaultSchema, logger: slog.Default()}
	for _, f := range opts {
		f(&o)
	}
	return o
}

// New returns a backend on pool's database. It does not connect; what is wrong with the
// database, or the options, is reported by Check. The pool stays the caller's.
//
// Beside the pool a running process keeps three connections of its own, for heartbeats, for watching the log, and to wait for
// the end of another process (see [WithoutWaiting]), so that handlers that use up the pool cannot cost it its leases.
func New(pool *pgxpool.Pool, opts ...Option) *Backend {
	o := resolve(opts)
	sv := &server{pool: pool, schema: newSchema(o.schema), log: o.logger, observer: o.observer}
	ts := &tables{server: sv, names: newSchema(defaultSchema)}
	kn := &known{tables: ts, bySlot: logIndex{column: "slot"}, byKey: logIndex{column: "key"}}
	ss := &sessions{known: kn, polls: o.polls}
	p, cs := &publisher{known: kn, around: backend.NewPublishing(o.publish...)}, &commits{sessions: ss}
	return &Backend{
		server: sv, tables: ts, known: kn, sessions: ss,
		owner: &owner{sessions: ss}, publisher: p, reader: &reader{sessions: ss, publisher: p, bell: &bell{server: sv}}, commits: cs,
		transactor: &transactor{sessions: ss, commits: cs, handlers: turnsFor(pool.Config().MaxConns)},
		keeper:     &keeper{known: kn, id: rand.Text(), heldBackAfter: heldBackLong}, operator: &operator{sv}, checker: &checker{tables: ts},
	}
}

// Capabilities are all that there are.
func (b *Backend) Capabilities() backend.Capabilities {
	return backend.Capabilities{Rows: b, Streams: b, Ledger: b, Tx: b, Operator: b}
}
