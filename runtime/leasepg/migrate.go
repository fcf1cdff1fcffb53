package leasepg

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// The migrations are also the schema that sqlc checks the queries against.
//
//go:embed migrations/*.sql
var migrationFiles embed.FS

// migration is one file. Version 0 makes the schema itself.
type migration struct {
	version int
	name    string
	sql     string
}

func migrations() []migration {
	names, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	out := make([]migration, len(names))
	for i, n := range names {
		sql, err := migrationFiles.ReadFile(n)
		if err != nil {
			panic(err) // embedded
		}
		n = strings.TrimPrefix(n, "migrations/")
		v, err := strconv.Atoi(n[:4])
		if err != nil || i > 0 && v <= out[i-1].version {
			panic("leasepg: migration " + n + " is out of order")
		}
		out[i] = migration{v, n, string(sql)}
	}
	return out
}

func latestVersion() int {
	all := migrations()
	return all[len(all)-1].version
}

// beginner is a pool or a connection.
type beginner = interface {
	Begin(context.Context) (pgx.Tx, error)
}

// pinned keeps operators and functions that others have made from what is resolved now and stays: columns that
// are generated, conditions of triggers and indexes.
const pinned = "SET LOCAL search_path = pg_catalog, pg_temp"

// Migrate, on a pool or a connection, brings the schema to this program's version, in one transaction, and returns
// the names of the migrations it applied; none when there was no work, or when the schema is
// newer and serves this program, too. Replicas may race: one applies, the others wait for it. A statement that would have to wait for a
// lock of a running program for more than five seconds fails, and with it the migration.
func Migrate(ctx context.Context, db beginner, opts ...Option) (applied []string, err error) {
	o := resolve(opts)
	s := newSchema(o.schema)
	if err := s.valid(); err != nil {
		return nil, err
	}
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) (err error) {
		var path string // the caller's transaction, if this is in one, gets it back
		if err := tx.QueryRow(ctx, "SHOW search_path").Scan(&path); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, pinned); err != nil {
			return err
		}
		defer func() {
			if err == nil {
				_, err = tx.Exec(ctx, "SELECT set_config('search_path', $1, true)", path)
			}
		}()
		if err := migrateAlone(ctx, tx, s, o.logger); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '5s'; SET LOCAL synchronous_commit = on"); err != nil {
			return err
		}
		var exists, begun bool
		err = tx.QueryRow(ctx, "SELECT to_regnamespace($1) IS NOT NULL, to_regclass($2) IS NOT NULL",
			s.ident(), s.ident()+".migration").Scan(&exists, &begun)
		if err != nil {
			return err
		}
		q := leasedb.New(inSchema{tx, s})
		have := int32(-1)
		if exists {
			have = 0
		}
		if begun {
			if have, err = q.SchemaVersion(ctx); err != nil {
				return err
			}
		}
		if begun && int(have) < latestVersion() {
			// Only roles that may migrate can take this lock.
			if _, err := tx.Exec(ctx, s.rewrite("LOCK TABLE leasegen.migration IN SHARE ROW EXCLUSIVE MODE")); err != nil {
				return err
			}
			if have, err = q.SchemaVersion(ctx); err != nil {
				return err
			}
		}
		if int(have) > latestVersion() {
			if err := serves(ctx, q, have); err != nil {
				return err
			}
		}
		for _, m := range migrations() {
			if m.version <= int(have) {
				continue
			}
			if _, err := tx.Exec(ctx, s.rewrite(m.sql)); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			if m.version > 0 {
				if err := q.RecordMigration(ctx, leasedb.RecordMigrationParams{Version: int32(m.version), Name: m.name}); err != nil {
					return err
				}
			}
			applied = append(applied, m.name)
		}
		if o.slots == 0 {
			return nil
		}
		err = q.SetSlots(ctx, int32(o.slots))
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
			return errors.New(pg.Message) // says it all
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("leasepg: migrate schema %s: %w", s.name, err)
	}
	return applied, nil
}

const migrateAgain = 100 * time.Millisecond // between looks whether another replica has finished

// migrateAlone waits for other replicas that migrate, and says for whom after a while. A lock that is held by
// roles that could not migrate is passed over: every role that may connect can take it.
func migrateAlone(ctx context.Context, tx pgx.Tx, s schema, log *slog.Logger) error {
	const key = "hashtextextended('leasegen.migrate/' || $1, 0)"
	for tries := 0; ; tries++ {
		var held bool
		if err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock("+key+")", s.name).Scan(&held); err != nil || held {
			return err
		}
		var (
			pid          int32
			role         string
			may, another bool
		)
		err := tx.QueryRow(ctx, `SELECT l.pid, coalesce(a.usename, '')::text, coalesce(r.rolsuper
			OR has_database_privilege(r.oid, l.database, 'CREATE') OR coalesce(has_schema_privilege(r.oid, to_regnamespace($2), 'CREATE'), false), true)
			FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid LEFT JOIN pg_roles r ON r.oid = a.usesysid
			WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid <> pg_backend_pid()
			  AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
			  AND l.classid::bigint = ((`+key+` >> 32) & 4294967295) AND l.objid::bigint = (`+key+` & 4294967295)
			ORDER BY 3 DESC LIMIT 1`, s.name, s.ident()).Scan(&pid, &role, &may)
		if another = err == nil; err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if another && !may {
			log.Warn("leasepg: the lock for migrations is held by a role that cannot migrate; going on without it", "pid", pid, "role", role)
			return nil
		}
		if another && tries == int(2*time.Second/migrateAgain) {
			log.Warn("leasepg: waiting for another migration", "pid", pid, "role", role)
		}
		select {
		case <-time.After(migrateAgain):
		case <-ctx.Done():
			return fmt.Errorf("another migration runs (pid %d, role %s): %w", pid, role, ctx.Err())
		}
	}
}

// Migrations returns all migrations as one script, those after the version of WithFrom if that is given, for those
// who apply it with a tool of their own.
func Migrations(opts ...Option) string {
	o := resolve(opts)
	s := newSchema(o.schema)
	var b strings.Builder
	b.WriteString("BEGIN;\n" + pinned + ";\n\n")
	for _, m := range migrations() {
		if o.from > 0 && m.version <= o.from {
			continue
		}
		fmt.Fprintf(&b, "-- %s\n\n%s\n", m.name, s.rewrite(m.sql))
		if m.version > 0 {
			b.WriteString(s.rewrite(fmt.Sprintf("INSERT INTO leasegen.migration (version, name) VALUES (%d, '%s');\n\n", m.version, m.name)))
		}
	}
	if o.slots != 0 {
		b.WriteString(s.rewrite(fmt.Sprintf("SELECT leasegen.set_slots(%d);\n\n", o.slots)))
	}
	b.WriteString("COMMIT;\n")
	return b.String()
}

// Rights are what a role is to do.
type Rights string

const (
	PublishAndConsume Rights = ""
	PublishOnly       Rights = "publish"
	ConsumeOnly       Rights = "consume"
)

// WithRights narrows what [Grants] gives. A role that only publishes can read no message and touch no lease; one
// that only consumes can append only delayed events that are due.
func WithRights(r Rights) Option { return func(o *options) { o.rights = r } }

// Grants returns the statements that give role what an application needs, and no more:
// it can neither change the schema, nor delete leases and sessions, nor forge positions
// in the log. Run them as the role that ran Migrate, again after each Migrate.
func Grants(role string, opts ...Option) string {
	o := resolve(opts)
	sql := grantsUsage
	if o.rights != ConsumeOnly {
		sql += grantsPublish
	}
	if o.rights != PublishOnly {
		sql += grantsConsume
	}
	return strings.ReplaceAll(newSchema(o.schema).rewrite(sql), ":role", pgx.Identifier{role}.Sanitize())
}

const (
	grantsUsage = `GRANT USAGE ON SCHEMA leasegen TO :role;
`
	grantsPublish = `GRANT SELECT ON leasegen.segment TO :role;
GRANT SELECT ON SEQUENCE leasegen.message_id_seq TO :role;
GRANT SELECT (id), INSERT (topic, key, kind, payload, headers) ON leasegen.message TO :role;
GRANT SELECT, INSERT, UPDATE (at) ON leasegen.published_id TO :role;
GRANT INSERT (due_at, topic, key, kind, payload, headers) ON leasegen.delayed TO :role;
GRANT EXECUTE ON FUNCTION leasegen.ensure_segments(bigint) TO :role;
`
	grantsConsume = `GRANT SELECT ON leasegen.migration, leasegen.origin, leasegen.segment, leasegen.message,
    leasegen.session, leasegen.consumer, leasegen.lease, leasegen.parked, leasegen.dead_letter, leasegen.delayed, leasegen.pause TO :role;
GRANT SELECT ON SEQUENCE leasegen.message_id_seq TO :role;
GRANT INSERT, UPDATE (state, beat_at, expires_at, lock_key, backend_pid, server) ON leasegen.session TO :role;
GRANT INSERT, UPDATE (per, topics, likes, grace, lock, source, start_pos, start_snap, start_x, foreign_cursors) ON leasegen.consumer TO :role;
GRANT INSERT (consumer, resource, pos, snap, x, wanted) ON leasegen.lease TO :role;
GRANT UPDATE (session, epoch, attempt, acquired_at, expires_at, advisory, rested_at, pos, snap, x, late_snap,
    late_pos, suspicion, mark, mark_epoch, mark_count, seq, seq_epoch, wanted) ON leasegen.lease TO :role;
GRANT UPDATE (paused_at) ON leasegen.pause TO :role; -- no row is written: to acquire takes a lock that asks for it
GRANT INSERT, DELETE, UPDATE (attempt, next_at, failed_at, error, since) ON leasegen.parked TO :role;
GRANT INSERT, DELETE, UPDATE (reason) ON leasegen.dead_letter TO :role;
GRANT SELECT, DELETE ON leasegen.published_id TO :role;
GRANT SELECT, INSERT, DELETE, UPDATE ON leasegen.once TO :role;
GRANT SELECT, INSERT, UPDATE ON leasegen.chore TO :role;
GRANT EXECUTE ON FUNCTION leasegen.ensure_segments(bigint), leasegen.drop_segments(),
    leasegen.forget_sessions(interval), leasegen.forget_streams(interval, text, text), leasegen.index_log(text),
    leasegen.take_turn(text), leasegen.release_delayed(bigint), leasegen.pause_consumer(text, boolean) TO :role;
`
)
