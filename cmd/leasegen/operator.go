package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// operatorCommands are the commands that look at a database and fix it.
func operatorCommands() []command {
	now := time.Now()
	return []command{
		migrateCommand(), aclCommand(),
		operation("status [flags] [consumer]", "show who owns what, and how far behind it is", &status{},
			"status", "status billing -leases", "status -watch", "status -format json -dsn redis://host:6379/0"),
		operation("parked [flags] consumer", "list the messages that wait for a retry, or behind one; retry them now", &parked{now: now},
			"parked billing", "parked billing -key cust-7", "parked billing -id 9133", "parked billing -id 9133 -retry -yes"),
		operation("dlq list|show|groups|replay|purge [flags] [consumer]", "list, show, group, replay and purge dead letters", &dlq{now: now},
			"dlq list", "dlq groups billing", "dlq list billing -topic 'orders.*' -newer 1h", "dlq show billing -id 7", "dlq replay billing -reason 'carrier: 503*'",
			"dlq replay billing -reason 'carrier: 503*' -yes", "dlq purge billing -id 7,8 -yes"),
		operation("cursor show|reset|set [flags] consumer", "show and move how far a consumer has got", &cursor{},
			"cursor show billing", "cursor reset billing", "cursor set billing -to now -yes", "cursor set billing -resource 17 -to 9000").noting(
			"reset first drops dead letters, step by step. Then cursors move: on PostgreSQL all in one transaction, so that a move that is\n" +
				"interrupted has moved none; on Redis one after the other. Interrupted, it says how far it is; the same command goes on."),
		operation("pause [flags] consumer", "stop a consumer until it is resumed: its messages wait", &pause{}, "pause billing"),
		operation("resume [flags] consumer", "let a consumer that is paused go on", &pause{resume: true}, "resume billing"),
		webCommand(),
		operation("forget [flags] consumer", "delete what is stored of a removed consumer", &forget{}, "forget mailing", "forget mailing -yes"),
	}
}

// answered is how long an operation may take that does not say how far it is.
const answered = time.Minute

// operation is a command that runs on a target.
func operation(usage, short string, o interface {
	flags(fs *flag.FlagSet)
	arguments(rest []string) error // takes and checks them, and the flags
	lasts() bool                   // it may take as long as there is much to do; it says how far it is, or watches
	do(ctx context.Context, out *output, on target) error
}, examples ...string) command {
	return databaseCommand(usage, short, func(d *database) work {
		d.flags()
		o.flags(d.fs)
		return func(ctx context.Context, e *env, rest []string) error {
			if err := o.arguments(rest); err != nil {
				return err
			}
			return d.withTarget(ctx, e, func(on target) error {
				out := e.output(e.Stdout)
				out.progress = e.progress()
				if o.lasts() {
					return o.do(ctx, out, on)
				}
				within, cancel := context.WithTimeout(ctx, answered)
				defer cancel()
				err := o.do(within, out, on)
				if err != nil && within.Err() != nil && ctx.Err() == nil {
					err = fmt.Errorf("no answer within %s, in %s; see whether the server is overloaded, or stands still", age(answered), on.where)
				}
				return err
			})
		}
	}, examples...)
}

// databaseCommand is a command that works on a database.
func databaseCommand(usage, short string, set func(*database) work, examples ...string) command {
	return command{usage: usage, short: short, examples: examples, set: func(_ *env, fs *flag.FlagSet) work {
		return set(&database{fs: fs})
	}}
}

// verbAndConsumer checks the arguments of a command that does several things to one consumer.
func verbAndConsumer(rest []string, verbs ...string) error {
	known := strings.Join(verbs, ", ")
	switch {
	case len(rest) == 0:
		return usagef("say what to do: %s", known)
	case !slices.Contains(verbs, rest[0]):
		return usagef("%q is unknown; known: %s", rest[0], known)
	case len(rest) == 1:
		return usagef("%s needs the name of a consumer", rest[0])
	case len(rest) > 2:
		return usagef("one consumer at a time, not %q", rest[1:])
	}
	return nil
}

// oneConsumer checks the arguments of a command that takes a consumer alone.
func oneConsumer(rest []string) (string, error) {
	switch len(rest) {
	case 0:
		return "", usagef("give the name of a consumer")
	case 1:
		return rest[0], nil
	}
	return "", usagef("one consumer at a time, not %q", rest)
}

func checkFormat(format string) error {
	if format != "text" && format != "json" {
		return usagef("-format %q is unknown; known: text, json", format)
	}
	return nil
}

// database is where an operator command works: PostgreSQL or Redis.
type database struct {
	dsn, schema, namespace string
	fs                     *flag.FlagSet
}

func (d *database) flags() {
	d.fs.StringVar(&d.dsn, "dsn", "", "database, Redis if it begins with redis:// or rediss://; default $LEASEGEN_DSN, $DATABASE_URL, the PG* variables or $REDIS_URL")
	d.fs.StringVar(&d.schema, "schema", "leasegen", "PostgreSQL: schema of the tables")
	d.fs.StringVar(&d.namespace, "namespace", "lg", "Redis: namespace of the keys")
}

// given reports whether a flag was given.
func (d *database) given(name string) (given bool) {
	d.fs.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}

// source returns the DSN and says where it comes from. It is empty if the PG* variables name
// the database.
func (d *database) source(e *env) (dsn, from string, err error) {
	if dsn, from = d.dsn, "-dsn"; dsn == "" && d.given("dsn") { // a variable that is not set: no other database is meant
		return "", "", usagef("-dsn is empty")
	}
	for _, name := range []string{"LEASEGEN_DSN", "DATABASE_URL"} {
		if dsn == "" {
			dsn, from = e.Getenv(name), "$"+name
		}
	}
	if dsn == "" && !slices.ContainsFunc([]string{"PGHOST", "PGHOSTADDR", "PGDATABASE", "PGSERVICE"}, func(v string) bool { return e.Getenv(v) != "" }) {
		if dsn, from = e.Getenv("REDIS_URL"), "$REDIS_URL"; dsn == "" {
			return "", "", errors.New("no database named: give -dsn, or set LEASEGEN_DSN, DATABASE_URL, PGHOST or REDIS_URL")
		}
	}
	if dsn == "" {
		from = "the PG* variables"
	}
	return dsn, from, nil
}

// schemaName is what the runtime allows.
var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// valid checks what can be checked before connecting.
func (d *database) valid() error {
	if d.given("namespace") {
		return usagef("-namespace goes with Redis; PostgreSQL has -schema")
	}
	if !schemaName.MatchString(d.schema) {
		return usagef("-schema %q: use lower-case letters, digits and underscores, at most 63, not beginning with a digit", d.schema)
	}
	return nil
}

// connect opens a PostgreSQL database. The caller closes the pool.
func (d *database) connect(ctx context.Context, e *env, dsn, from string) (*pgxpool.Pool, error) {
	if err := d.valid(); err != nil {
		return nil, err
	}
	if err := escaped(dsn); err != nil {
		return nil, fmt.Errorf("%s is not a usable DSN: %w", from, err)
	}
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		// The driver's error may quote the DSN; its cause does not.
		cause := errors.Unwrap(err)
		if cause == nil {
			cause = errors.New("want postgres://user@host:port/database, key=value words, or redis://user@host:port")
		}
		return nil, fmt.Errorf("%s is not a usable DSN: %s", from, redact(cause.Error(), dsn))
	}
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = 10 * time.Second
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "leasegen"
	}
	cfg.MaxConns, cfg.MinConns, cfg.MinIdleConns = min(cfg.MaxConns, 2), 0, 0
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := e.warnPool(ctx, pool); err != nil {
		closeSoon(pool)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, errors.New(redact(oneLine(err), cfg.ConnConfig.Password))
	}
	return pool, nil
}

// escaped refuses a URL that is cut in the wrong places because its password is not escaped. The error shows none
// of it: any part may be of the password.
func escaped(dsn string) error {
	scheme, rest, isURL := strings.Cut(dsn, "://")
	if !isURL || scheme != "postgres" && scheme != "postgresql" {
		return nil
	}
	authority := rest[:strings.IndexAny(rest+"/", "/?#")]
	u, err := url.Parse(dsn)
	if err != nil || strings.Count(authority, "@") > 1 || u.Fragment != "" || strings.Contains(u.EscapedPath(), "@") || strayAt(u.RawQuery) {
		return errors.New("want postgres://user:password@host:port/database, with what is special in the password percent-encoded")
	}
	return nil
}

// strayAt reports an @ in settings where none belongs.
func strayAt(settings string) bool {
	for setting := range strings.SplitSeq(settings, "&") {
		name, value, _ := strings.Cut(setting, "=")
		if strings.Contains(name, "@") || strings.Contains(value, "@") && !slices.Contains([]string{"user", "password", "application_name", "options"}, name) {
			return true
		}
	}
	return false
}

// redact makes sure that a secret given by the caller is not in a text.
func redact(text, secret string) string {
	if secret == "" {
		return text
	}
	return strings.ReplaceAll(text, secret, "xxxxx")
}

// oneLine joins the lines of an error, each once: the driver reports every address and
// way it tried.
func oneLine(err error) string {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.Join(strings.Fields(line), " "); line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, " ")
}

// withTarget runs do on the database.
func (d *database) withTarget(ctx context.Context, e *env, do func(target) error) error {
	dsn, from, err := d.source(e)
	if err != nil {
		return err
	}
	if isRedis(dsn) {
		return d.onRedis(ctx, e, dsn, from, do)
	}
	pool, err := d.connect(ctx, e, dsn, from)
	if err != nil {
		return err
	}
	defer closeSoon(pool)
	be := leasepg.New(pool, leasepg.WithSchema(d.schema))
	if err := be.CheckVersion(ctx); err != nil {
		return err
	}
	return do(target{be, d.where(pool), d.flagsAgain(from)})
}

// closeSoon closes a pool. It does not wait long for a server that does not answer.
func closeSoon(pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() { pool.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}

// where names a schema, its database and the server.
func (d *database) where(pool *pgxpool.Pool) string {
	c := pool.Config().ConnConfig
	hosts := []string{place(c.Host, c.Port)}
	for _, f := range c.Fallbacks { // of the ways to one host, and of other hosts
		if p := place(f.Host, f.Port); !slices.Contains(hosts, p) {
			hosts = append(hosts, p)
		}
	}
	return fmt.Sprintf("schema %s of database %s on %s", d.schema, printable(cmp.Or(c.Database, c.User), 100), printable(strings.Join(hosts, " or "), 300))
}

func place(host string, port uint16) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }

// usageError is a mistake in what the user asked for, not of the database.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

// known returns the status of a consumer, or an error that names those there are.
func known(ctx context.Context, op operate.Operator, consumer string) (operate.ConsumerStatus, error) {
	all, err := op.Status(ctx)
	if err != nil {
		return operate.ConsumerStatus{}, err
	}
	var names []string
	for _, s := range all {
		if s.Consumer == consumer {
			return s, nil
		}
		names = append(names, s.Consumer)
	}
	if len(names) == 0 {
		return operate.ConsumerStatus{}, usagef("there is no consumer %q: none has run on this database yet", consumer)
	}
	return operate.ConsumerStatus{}, usagef("there is no consumer %q; known: %s", consumer, strings.Join(names, ", "))
}
