package main

import (
	"context"
	"flag"
	"fmt"
	"slices"

	"github.com/leasegen/leasegen/runtime/leasepg"
)

func migrateCommand() command {
	const usage = "migrate [flags]"
	return command{
		name: "migrate", usage: usage, short: "create or upgrade the tables, or print the SQL that does",
		run: func(ctx context.Context, e *env, args []string) int {
			var (
				db     database
				print  bool
				grants string
				slots  int
				from   int
				rights string
			)
			fs := flag.NewFlagSet("migrate", flag.ContinueOnError)
			db.flags(fs)
			fs.BoolVar(&print, "print", false, "print the SQL of the whole schema instead of running it; connects to nothing")
			fs.StringVar(&grants, "grants", "", "print the SQL that gives an application's `role` what it needs; connects to nothing")
			fs.IntVar(&from, "from", 0, "with -print: leave out what the schema's `version` has already")
			fs.StringVar(&rights, "rights", "", "with -grants: publish or consume, for a role that does only that")
			fs.IntVar(&slots, "slots", 0, "how many slots the log has for per=partition, 1 to 16384; 256 unless changed before the log has messages")
			return carryOut(e, fs, usage, args, func(rest []string) error {
				switch {
				case len(rest) > 0:
					return usagef("unexpected argument %q", rest[0])
				case from < 0 || from > 0 && !print:
					return usagef("-from goes with -print, and is a version")
				case !slices.Contains([]string{"", "publish", "consume"}, rights) || rights != "" && grants == "":
					return usagef("-rights goes with -grants, and is publish or consume")
				case slots < 0 || slots > 16384:
					return usagef("-slots %d is not within 1 and 16384", slots)
				}
				if !print && grants == "" {
					return db.migrate(ctx, e, leasepg.WithSlots(slots))
				}
				if isRedis(db.dsn) {
					return usagef("%s", noMigration)
				}
				if err := db.valid(); err != nil {
					return err
				}
				schema := leasepg.WithSchema(db.schema)
				if print {
					fmt.Fprint(e.Stdout, leasepg.Migrations(schema, leasepg.WithSlots(slots), leasepg.WithFrom(from)))
				}
				if grants != "" {
					fmt.Fprint(e.Stdout, leasepg.Grants(grants, schema, leasepg.WithRights(leasepg.Rights(rights))))
				}
				return nil
			})
		},
	}
}

// noMigration is all there is to migrating Redis.
const noMigration = "nothing to migrate on Redis: the first program that runs makes its namespace; leasegen acl USER prints what its user needs"

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
	defer pool.Close()
	applied, err := leasepg.Migrate(ctx, pool, leasepg.WithSchema(d.schema), slots)
	for _, name := range applied {
		fmt.Fprintf(e.Stdout, "applied %s\n", name)
	}
	if err != nil {
		return err
	}
	c := pool.Config().ConnConfig
	where := fmt.Sprintf("schema %s of database %s on %s:%d", d.schema, c.Database, c.Host, c.Port)
	if len(applied) == 0 {
		_, err = fmt.Fprintf(e.Stdout, "%s is up to date\n", where)
		return err
	}
	_, err = fmt.Fprintf(e.Stdout, "%s is ready; leasegen migrate -grants ROLE prints what an application's role needs\n", where)
	return err
}
