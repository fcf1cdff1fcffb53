package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/leasegen/leasegen/runtime/leasepg"
)

func migrateCommand() command {
	const short = "create or upgrade the tables, or print the SQL that does"
	return databaseCommand("migrate [flags]", short, func(d *database) work {
		var m migration
		d.flags()
		d.fs.BoolVar(&m.print, "print", false, "print the SQL of the whole schema instead of running it; needs no connection")
		d.fs.StringVar(&m.grants, "grants", "", "print the SQL that gives an application's `role` what it needs; needs no connection")
		d.fs.IntVar(&m.from, "from", 0, "with -print: leave out what the schema's `version` has already")
		d.fs.StringVar(&m.rights, "rights", "", "with -grants: publish or consume, for a role that does only that")
		d.fs.IntVar(&m.slots, "slots", 0, "how many slots the log has for per=partition, 1 to 16384; 256 unless changed before the log has messages")
		return func(ctx context.Context, e *env, rest []string) error { return m.do(ctx, e, d, rest) }
	}, "migrate -dsn postgres://owner@host:5432/shop", "migrate -print -from 9 > upgrade.sql", "migrate -grants shop_app -rights consume | psql shop").noting(
		"It is one transaction, so that programs never see half of it: interrupted, all of it is done or none, and it can be repeated.")
}

// migration is what leasegen migrate was asked for.
type migration struct {
	print          bool
	grants, rights string
	slots, from    int
}

func (m *migration) do(ctx context.Context, e *env, d *database, rest []string) error {
	switch {
	case len(rest) > 0:
		return usagef("unexpected argument %q", rest[0])
	case m.from < 0 || m.from > 0 && !m.print:
		return usagef("-from goes with -print, and is a version")
	case !slices.Contains([]string{"", "publish", "consume"}, m.rights) || m.rights != "" && m.grants == "":
		return usagef("-rights goes with -grants, and is publish or consume")
	case m.slots < 0 || m.slots > 16384:
		return usagef("-slots %d is not within 1 and 16384", m.slots)
	case !m.print && m.grants == "":
		return d.migrate(ctx, e, leasepg.WithSlots(m.slots))
	case isRedis(d.dsn):
		return usagef("%s", noMigration)
	}
	if err := d.valid(); err != nil {
		return err
	}
	schema := leasepg.WithSchema(d.schema)
	if m.print {
		fmt.Fprint(e.Stdout, leasepg.Migrations(schema, leasepg.WithSlots(m.slots), leasepg.WithFrom(m.from)))
	}
	if m.grants != "" {
		fmt.Fprint(e.Stdout, leasepg.Grants(m.grants, schema, leasepg.WithRights(leasepg.Rights(m.rights))))
	}
	return nil
}

// noMigration is all there is to migrating Redis.
const noMigration = "Redis needs no migration: the first program that runs makes its namespace; leasegen acl USER prints what its user needs"

// migrate brings the database's schema to the version of this program.
func (d *database) migrate(ctx context.Context, e *env, slots leasepg.Option) error {
	dsn, from, err := d.source(e)
	if err != nil {
		return err
	}
	if isRedis(dsn) {
		_, err := fmt.Fprintln(e.Stdout, noMigration)
		return err
	}
	pool, err := d.connect(ctx, e, dsn, from)
	if err != nil {
		return err
	}
	defer closeSoon(pool)
	where := d.where(pool)
	stop := e.progress().clock("migrating " + where)
	applied, err := leasepg.Migrate(ctx, pool, leasepg.WithSchema(d.schema), slots)
	stop()
	for _, name := range applied {
		fmt.Fprintf(e.Stdout, "applied %s\n", name)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("interrupted: all of it is done or none, in %s; the same command says which", where)
	case err != nil:
		return err
	}
	if len(applied) == 0 {
		_, err = fmt.Fprintf(e.Stdout, "%s is up to date\n", where)
		return err
	}
	_, err = fmt.Fprintf(e.Stdout, "%s is ready; leasegen migrate -grants ROLE prints what an application's role needs\n", where)
	return err
}
