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

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
	"github.com/leasegen/leasegen/runtime/operate"
)

var _ backend.Backend = (*Backend)(nil)

// Backend keeps sessions, leases and messages in one schema of a PostgreSQL database.
// It is safe for concurrent use.
type Backend struct {
	pool     *pgxpool.Pool
	schema   schema
	log      *slog.Logger
	observer operate.Observer // nil: nobody

	id            string        // of this process, among those that share the schema
	heldBackAfter time.Duration // see heldBackLong
	heldBack      throttle

	resting  resting
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
	observer operate.Observer
	slots    int
	from     int
	rights   Rights
}

// WithSchema sets the schema's name: lower-case letters, digits and underscores.
// Default leasegen.
func WithSchema(name string) Option { return func(o *options) { o.schema = name } }

// WithLogger sets the logger. Default slog.Default().
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

// WithObserver sets who is told of what the backend itself does, see operate.ObservedSetBack.
// Default nobody.
func WithObserver(o operate.Observer) Option { return func(to *options) { to.observer = o } }

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
// Beside the pool a running process keeps two connections of its own, for heartbeats and
// for watching, so that handlers that use up the pool cannot cost it its leases.
func New(pool *pgxpool.Pool, opts ...Option) *Backend {
	o := resolve(opts)
	b := &Backend{pool: pool, schema: newSchema(o.schema), log: o.logger, observer: o.observer, handlers: turnsFor(pool.Config().MaxConns)}
	b.id, b.heldBackAfter = rand.Text(), heldBackLong
	b.ttl.Store(int64(15 * time.Second))
	b.bySlot.column, b.byKey.column = "slot", "key"
	b.tables.names = newSchema(defaultSchema)
	return b
}

const defaultSchema = "leasegen"

var (
	schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)
	schemaUse  = regexp.MustCompile(`\bleasegen(\.|;| TO )`)
	// Functions of pg_catalog that statements call. Operators are written so that they fit one signature of
	// pg_catalog exactly, or with their schema.
	calls = regexp.MustCompile(`\b(array_agg|array_append|array_cat|array_remove|array_to_json|bool_and|cardinality|ceil|clock_timestamp|count|current_schemas|current_setting|` +
		`format|format_type|generate_series|generate_subscripts|has_\w+_privilege|hashtextextended|left|max|md5|min|octet_length|pg_\w+|random|` +
		`row_number|row_security_active|set_config|string_agg|to_jsonb|to_regclass|unnest)\(`)
)

// schema puts names into SQL that was written, and checked, without: the schema's own into what is written for
// the default one, and pg_catalog before its functions. So search_path never matters, and what another role puts
// into a schema on it is not called instead.
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

// rewrite is for a script of SQL, which fixes search_path itself.
func (s schema) rewrite(sql string) string {
	if s.name == defaultSchema {
		return sql
	}
	return schemaUse.ReplaceAllString(sql, strings.ReplaceAll(s.ident(), "$", "$$")+"$1")
}

// statement is for one statement of many.
func (s schema) statement(sql string) string {
	if w, ok := s.written.Load(sql); ok {
		return w.(string)
	}
	w := qualify(s.rewrite(sql))
	s.written.Store(sql, w)
	return w
}

func qualify(sql string) string {
	var b strings.Builder
	done := 0
	for _, at := range calls.FindAllStringIndex(sql, -1) {
		if at[0] > 0 && sql[at[0]-1] == '.' {
			continue // it has a schema
		}
		b.WriteString(sql[done:at[0]])
		b.WriteString("pg_catalog.")
		done = at[0]
	}
	b.WriteString(sql[done:])
	return b.String()
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
	return d.DBTX.Exec(ctx, d.schema.statement(sql), args...)
}

func (d inSchema) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return d.DBTX.Query(ctx, d.schema.statement(sql), args...)
}

func (d inSchema) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return d.DBTX.QueryRow(ctx, d.schema.statement(sql), args...)
}

// throttle lets one event through per interval.
type throttle struct{ last atomic.Int64 }

func (t *throttle) ready(now time.Time, every time.Duration) bool {
	last := t.last.Load()
	return now.UnixNano()-last >= int64(every) && t.last.CompareAndSwap(last, now.UnixNano())
}

// Capabilities are all that there are.
func (b *Backend) Capabilities() backend.Capabilities {
	return backend.Capabilities{Rows: b, Streams: b, Ledger: b, Tx: b, Operator: b}
}
