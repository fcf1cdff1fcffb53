package leasepg

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

var (
	_ lease.Backend    = (*Backend)(nil)
	_ lease.Transactor = (*Backend)(nil)
	_ lease.Operator   = (*Backend)(nil)
)

// Backend keeps sessions, leases and messages in one schema of a PostgreSQL database.
// It is safe for concurrent use.
type Backend struct {
	pool     *pgxpool.Pool
	schema   schema
	log      *slog.Logger
	observer lease.Observer // nil: nobody

	id            string        // of this process, among those that share the schema
	heldBackAfter time.Duration // see heldBackLong
	heldBack      throttle

	handlers turns // of transactions that handlers have open

	pooled   atomic.Bool  // a transaction pooler is in between: no LISTEN
	told     sync.Once    // the log line about that
	small    sync.Once    // the log line about a small pool
	ttl      atomic.Int64 // of the session last opened, in ns
	notified throttle     // wakes sent by Publish
	joined   throttle     // wakes sent in callers' transactions
	logEnd   atomic.Int64 // first id known to have no partition

	sessions  sync.Map // id → *session, of those that live in this process
	squatters sync.Map // strangers that hold the lock of a consumer, and were told of

	bell          bell // for feeds of tables
	bySlot, byKey logIndex
	tables        tables
	kinds         sync.Map // kind → struct{}
	patterns      patterns
	ledgers       ledgers  // of transactions, see late.go
	places        sync.Map // [session, consumer] → place of parked messages
}

// Option adjusts a Backend, or the SQL of [Migrate], [Migrations] and [Grants].
type Option func(*options)

type options struct {
	schema   string
	logger   *slog.Logger
	observer lease.Observer
	slots    int
}

// WithSchema sets the schema's name: lower-case letters, digits and underscores.
// Default leasegen.
func WithSchema(name string) Option { return func(o *options) { o.schema = name } }

// WithLogger sets the logger. Default slog.Default().
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

// WithObserver sets who is told of what the backend itself does, see lease.ObservedSetBack.
// Default nobody.
func WithObserver(o lease.Observer) Option { return func(to *options) { to.observer = o } }

// WithSlots sets how many slots the log has, for [Migrate] and [Migrations]: 1 to 16,384.
// Default 256. It can be changed until the log has messages or a consumer owns slots.
func WithSlots(n int) Option { return func(o *options) { o.slots = n } }

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
// Beside the pool a running process keeps two connections of its own, for heartbeats and
// for watching, so that handlers that use up the pool cannot cost it its leases.
func New(pool *pgxpool.Pool, opts ...Option) *Backend {
	o := resolve(opts)
	b := &Backend{pool: pool, schema: newSchema(o.schema), log: o.logger, observer: o.observer, handlers: turnsFor(pool.Config().MaxConns)}
	b.id, b.heldBackAfter = rand.Text(), heldBackLong
	b.ttl.Store(int64(15 * time.Second))
	b.bySlot.column, b.byKey.column = "slot", "key"
	return b
}

const defaultSchema = "leasegen"

var (
	schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)
	schemaUse  = regexp.MustCompile(`\bleasegen(\.|;| TO )`)
)

// schema puts the schema's name into SQL that was written, and checked, for the default
// one. Every name in that SQL is qualified, so search_path never matters.
type schema struct {
	name    string
	written *sync.Map // SQL as compiled → SQL as sent
}

func newSchema(name string) schema { return schema{name, &sync.Map{}} }

func (s schema) valid() error {
	if !schemaName.MatchString(s.name) || strings.HasPrefix(s.name, "pg_") {
		return fmt.Errorf("leasepg: schema name %q: use lower-case letters, digits and underscores, "+
			"at most 63, not beginning with a digit or pg_", s.name)
	}
	return nil
}

func (s schema) ident() string { return pgx.Identifier{s.name}.Sanitize() }

func (s schema) rewrite(sql string) string {
	if s.name == defaultSchema {
		return sql
	}
	if w, ok := s.written.Load(sql); ok {
		return w.(string)
	}
	w := schemaUse.ReplaceAllString(sql, strings.ReplaceAll(s.ident(), "$", "$$")+"$1")
	s.written.Store(sql, w)
	return w
}

// queries runs sqlc's queries on db, in this backend's schema.
func (b *Backend) queries(db leasedb.DBTX) *leasedb.Queries {
	return leasedb.New(inSchema{db, b.schema})
}

type inSchema struct {
	leasedb.DBTX
	schema schema
}

func (d inSchema) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return d.DBTX.Exec(ctx, d.schema.rewrite(sql), args...)
}

func (d inSchema) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return d.DBTX.Query(ctx, d.schema.rewrite(sql), args...)
}

func (d inSchema) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return d.DBTX.QueryRow(ctx, d.schema.rewrite(sql), args...)
}

// throttle lets one event through per interval.
type throttle struct{ last atomic.Int64 }

func (t *throttle) ready(now time.Time, every time.Duration) bool {
	last := t.last.Load()
	return now.UnixNano()-last >= int64(every) && t.last.CompareAndSwap(last, now.UnixNano())
}
