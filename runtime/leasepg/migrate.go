package leasepg

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

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
		if err != nil || v != i {
			panic("leasepg: migration " + n + " is out of order")
		}
		out[i] = migration{v, n, string(sql)}
	}
	return out
}

func latestVersion() int { return len(migrations()) - 1 }

// Beginner is a pool or a connection.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Migrate brings the schema to this program's version, in one transaction, and returns
// the names of the migrations it applied; none when there was nothing to do. Replicas may
// race: one applies, the others wait for it. A statement that would have to wait for a
// lock of a running program for more than five seconds fails, and with it the migration.
func Migrate(ctx context.Context, db Beginner, opts ...Option) (applied []string, err error) {
	o := resolve(opts)
	s := newSchema(o.schema)
	if err := s.valid(); err != nil {
		return nil, err
	}
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('leasegen.migrate/' || $1, 0))", s.name); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '5s'; SET LOCAL synchronous_commit = on"); err != nil {
			return err
		}
		var exists, begun bool
		err := tx.QueryRow(ctx, "SELECT to_regnamespace($1) IS NOT NULL, to_regclass($2) IS NOT NULL",
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
		if int(have) > latestVersion() {
			return fmt.Errorf("the schema has version %d, this program knows %d: use a newer leasegen", have, latestVersion())
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

// Migrations returns all migrations as one script, for those who apply it with a tool of
// their own.
func Migrations(opts ...Option) string {
	o := resolve(opts)
	s := newSchema(o.schema)
	var b strings.Builder
	b.WriteString("BEGIN;\n\n")
	for _, m := range migrations() {
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

// Grants returns the statements that give role what an application needs, and no more:
// it can neither change the schema, nor delete leases and sessions, nor forge positions
// in the log. Run them as the role that ran Migrate, again after each Migrate.
func Grants(role string, opts ...Option) string {
	s := newSchema(resolve(opts).schema)
	return strings.ReplaceAll(s.rewrite(grants), ":role", pgx.Identifier{role}.Sanitize())
}

const grants = `GRANT USAGE ON SCHEMA leasegen TO :role;
GRANT SELECT ON leasegen.migration, leasegen.origin, leasegen.segment, leasegen.message,
    leasegen.session, leasegen.consumer, leasegen.lease, leasegen.parked, leasegen.dead_letter TO :role;
GRANT SELECT ON SEQUENCE leasegen.message_id_seq TO :role;
GRANT INSERT (topic, key, kind, payload, headers) ON leasegen.message TO :role;
GRANT INSERT, UPDATE (state, beat_at, expires_at, lock_key, backend_pid, server) ON leasegen.session TO :role;
GRANT INSERT, UPDATE (per, topics, likes, grace, lock, source, start_pos, start_snap, start_x, foreign_cursors) ON leasegen.consumer TO :role;
GRANT INSERT (consumer, resource, pos, snap, x, wanted) ON leasegen.lease TO :role;
GRANT UPDATE (session, epoch, attempt, acquired_at, expires_at, advisory, rested_at, pos, snap, x, late_snap,
    late_pos, suspicion, mark, mark_epoch, mark_count, seq, seq_epoch, wanted) ON leasegen.lease TO :role;
GRANT INSERT, DELETE, UPDATE (attempt, next_at, failed_at, error, since) ON leasegen.parked TO :role;
GRANT INSERT, DELETE, UPDATE (reason) ON leasegen.dead_letter TO :role;
GRANT SELECT, INSERT, DELETE, UPDATE (at) ON leasegen.published_id TO :role;
GRANT SELECT, INSERT, DELETE ON leasegen.delayed TO :role;
GRANT SELECT, INSERT, DELETE, UPDATE ON leasegen.once TO :role;
GRANT SELECT, INSERT, UPDATE ON leasegen.chore TO :role;
GRANT EXECUTE ON FUNCTION leasegen.ensure_segments(bigint), leasegen.drop_segments(),
    leasegen.forget_sessions(interval), leasegen.forget_streams(interval), leasegen.index_log(text) TO :role;
`
