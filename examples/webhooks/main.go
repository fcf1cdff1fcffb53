// Webhooks: two consumers of real GitHub webhook deliveries on PostgreSQL.
//
//	go run ./examples/webhooks                              publish a few deliveries and handle them
//	go run ./examples/webhooks -deliveries DIR -kill 1s     those of a folder, while replicas are killed with SIGKILL
//
// Without -dsn it starts a private PostgreSQL server and stops it at the end.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

func main() {
	log.SetFlags(0)
	r := run{out: os.Stdout}
	work := flag.String("replica", "", "be the replica of this name, until SIGTERM")
	flag.StringVar(&r.dsn, "dsn", os.Getenv("DATABASE_URL"), "PostgreSQL database; without one, a private server is started")
	flag.StringVar(&r.deliveries, "deliveries", "examples/webhooks/sample", "folder of deliveries, one folder per kind, one JSON file each")
	flag.IntVar(&r.replicas, "replicas", 3, "how many replicas to run, each a process")
	flag.DurationVar(&r.kill, "kill", 0, "kill a replica with SIGKILL and start it again so often; 0 = never")
	flag.DurationVar(&r.pace, "pace", 0, "time between two publications; with -kill 40ms unless given")
	flag.DurationVar(&r.work, "handle", 0, "how long a delivery takes to handle; with -kill 10ms unless given")
	flag.Parse()

	ctx, stop := stage.Context(*work != "")
	defer stop()
	if *work != "" {
		if err := replica(ctx, r.dsn, *work, r.work); err != nil {
			log.Fatal(err)
		}
		return
	}
	if r.kill > 0 && r.pace == 0 {
		r.pace = 40 * time.Millisecond
	}
	if r.kill > 0 && r.work == 0 {
		r.work = 10 * time.Millisecond
	}
	if err := r.main(ctx); err != nil {
		log.Fatal("webhooks: ", err)
	}
}

// replica works for both consumers until ctx ends.
func replica(ctx context.Context, dsn, name string, work time.Duration) error {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})).With("replica", name)
	g := lease.NewGroup()
	err = RegisterLeasegen(g, leasepg.New(pool), LeasegenHandlers{
		Activity: &Activity{Replica: name, Work: work},
		Archive:  &Archive{Replica: name},
	}, lease.WithLogger(logger))
	if err != nil {
		return err
	}
	return g.Run(ctx)
}

// main prepares the database, runs the replicas, publishes, and counts.
func (r *run) main(ctx context.Context) error {
	dsn, end, err := stage.Database(r.dsn)
	if err != nil {
		return err
	}
	defer end()
	r.dsn = dsn
	pool, err := stage.Prepare(ctx, dsn, tables)
	if err != nil {
		return err
	}
	defer pool.Close()
	be := leasepg.New(pool)
	deliveries, err := read(r.deliveries)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.out, "%d deliveries, %d replicas", len(deliveries), r.replicas)
	if r.kill > 0 {
		fmt.Fprintf(r.out, ", one killed with SIGKILL every %v", r.kill)
	}
	fmt.Fprintln(r.out)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fleet := newFleet(r)
	defer fleet.stop()
	if err := fleet.start(); err != nil {
		return err
	}
	if r.kill > 0 {
		go fleet.killEvery(ctx, r.kill)
	}
	began := time.Now()
	for _, d := range deliveries {
		if err := be.Publish(ctx, []lease.Event{d.event()}); err != nil {
			return fmt.Errorf("publish %s: %w", d.name, err)
		}
		time.Sleep(r.pace)
	}
	counts, err := await(ctx, pool, be, len(deliveries))
	if err != nil {
		return err
	}
	fmt.Fprintf(r.out, "done in %v, %d kills\n\n", time.Since(began).Round(time.Millisecond), fleet.killed.Load())
	return report(r.out, counts, len(deliveries))
}
