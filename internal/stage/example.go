package stage

import (
	"context"
	"errors"
	"flag"
	"log"
	"log/slog"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/runtime/leasepg"
)

// Main is the main function of an example. It parses the command line. With -replica NAME
// it is the replica of that name: it calls replica with the database of the fleet, until it
// is told to stop. Without, it calls play. An error ends the program.
func Main(example string, replica func(ctx context.Context, pool *pgxpool.Pool, name string) error, play func(ctx context.Context) error) {
	start(example, func(ctx context.Context, name string) error { return work(ctx, name, replica) }, play)
}

// start is the replica of the name that the command line gives, or plays.
func start(example string, replica func(ctx context.Context, name string) error, play func(ctx context.Context) error) {
	log.SetFlags(0)
	name := flag.String("replica", "", "be the replica of this name, until SIGTERM")
	flag.Parse()
	ctx, stop := Context(*name != "")
	defer stop()
	var err error
	if *name != "" {
		err = replica(ctx, *name)
	} else {
		err = play(ctx)
	}
	if err != nil {
		log.Fatal(example, ": ", err)
	}
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

// Quiet logs errors only: what happens to the replicas here is done on purpose.
func Quiet(name string) *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})).With("replica", name)
}

// Set is what an example plays on.
type Set struct {
	Pool    *pgxpool.Pool
	Backend *leasepg.Backend // to publish and to look
	Fleet   *Fleet           // empty at first
}

// Play starts a PostgreSQL server with the schema leasegen and the example's own ddl, and
// calls play. Then it stops the replicas and the server; how the replicas end counts.
func Play(ctx context.Context, ddl string, play func(Set) error) (err error) {
	dsn, end, err := Database("")
	if err != nil {
		return err
	}
	defer end()
	pool, err := Prepare(ctx, dsn+"&pool_max_conns=24", ddl)
	if err != nil {
		return err
	}
	defer pool.Close()
	fleet := New(dsn)
	defer func() { err = errors.Join(err, fleet.Close()) }()
	return play(Set{pool, leasepg.New(pool, leasepg.WithLogger(Quiet("example"))), fleet})
}

// Replica starts the replica of that name of an example that begins with Main, with args
// besides.
func (f *Fleet) Replica(name string, args ...string) error {
	return f.Start(name, append([]string{"-replica", name}, args...)...)
}
