package stage

import (
	"context"
	"errors"
	"flag"
	"io"
	"log"
	"log/slog"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Set is what an example on PostgreSQL plays on. Main and Play fill it in.
type Set struct {
	Show
	DSN     string // of the database; without one, Play starts a server
	Pool    *pgxpool.Pool
	Backend *leasepg.Backend // to publish and to look
}

// Main is the main function of an example. It parses the command line. With -replica NAME
// it is the replica of that name: it calls replica with the database of the fleet, until its
// Context is cancelled. Without, it plays. An error ends the program.
func (s *Set) Main(example, ddl string, replica func(ctx context.Context, pool *pgxpool.Pool, name string) error, play func(ctx context.Context) error) {
	start(example,
		func(ctx context.Context, name string) error { return work(ctx, name, replica) },
		func(ctx context.Context) error { return s.Play(ctx, ddl, play) })
}

// Play prepares a database with the schema leasegen and the example's own ddl, and calls
// play. Then it stops the replicas and the server; how the replicas end counts.
func (s *Set) Play(ctx context.Context, ddl string, play func(ctx context.Context) error) error {
	dsn, end, err := Database(s.DSN)
	if err != nil {
		return err
	}
	defer end()
	if s.Pool, err = Prepare(ctx, dsn, ddl); err != nil {
		return err
	}
	defer s.Pool.Close()
	s.Backend = leasepg.New(s.Pool, leasepg.WithLogger(quiet("example")))
	return s.play(ctx, dsn, s.Backend, play)
}

func work(ctx context.Context, name string, replica func(context.Context, *pgxpool.Pool, string) error) error {
	cfg, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	cfg.ConnConfig.RuntimeParams["application_name"] = name // to be told apart in pg_stat_activity
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	return replica(ctx, pool, name)
}

// start is the replica of the name that the command line gives, or plays.
func start(example string, replica func(ctx context.Context, name string) error, play func(ctx context.Context) error) {
	log.SetFlags(0)
	fatal := log.New(os.Stderr, example+": ", 0) // the standard one goes where slog does, for a replica
	name := flag.String("replica", "", "be the replica of this name, until SIGTERM")
	flag.Parse()
	ctx, stop := Context(*name != "")
	defer stop()
	var err error
	if *name != "" {
		slog.SetDefault(quiet(*name))
		err = replica(ctx, *name)
	} else {
		err = play(ctx)
	}
	if err != nil {
		fatal.Fatal(err)
	}
}

// quiet logs errors only: what happens to the replicas here is done on purpose.
func quiet(name string) *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})).With("replica", name)
}

// Show is what an example plays with, whatever its backend.
type Show struct {
	Out      io.Writer // standard output, unless it is set
	Fleet    *Fleet    // empty at first
	operator operate.Operator
}

func (s *Show) play(ctx context.Context, dsn string, operator operate.Operator, play func(ctx context.Context) error) (err error) {
	if s.Out == nil {
		s.Out = os.Stdout
	}
	s.Fleet, s.operator = New(dsn), operator
	defer func() { err = errors.Join(err, s.Fleet.Close()) }()
	return play(ctx)
}
