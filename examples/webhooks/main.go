// Webhooks: two consumers of real GitHub webhook deliveries on PostgreSQL.
//
//	go run ./examples/webhooks                              publish a few deliveries and handle them
//	go run ./examples/webhooks -deliveries DIR -kill 1s     those of a folder, while replicas are killed with SIGKILL
//
// Without -dsn it starts a private PostgreSQL server and stops it at the end.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

func main() {
	var r run
	flag.StringVar(&r.DSN, "dsn", os.Getenv("DATABASE_URL"), "PostgreSQL database; without one, a private server is started")
	flag.StringVar(&r.deliveries, "deliveries", "examples/webhooks/sample", "folder of deliveries, one folder per kind, one JSON file each")
	flag.IntVar(&r.replicas, "replicas", 3, "how many replicas to run, each a process")
	flag.DurationVar(&r.kill, "kill", 0, "kill a replica with SIGKILL and start it again so often; 0 = never")
	flag.DurationVar(&r.pace, "pace", 0, "time between two publications; with -kill 40ms unless given")
	flag.DurationVar(&r.work, "handle", 0, "how long a delivery takes to handle; with -kill 10ms unless given")
	r.Main("webhooks", tables, func(ctx context.Context, pool *pgxpool.Pool, name string) error {
		return replica(ctx, pool, name, r.work)
	}, r.play)
}

// replica is all that a service does: it works for both consumers.
func replica(ctx context.Context, pool *pgxpool.Pool, name string, work time.Duration) error {
	g := lease.NewGroup()
	err := RegisterLeasegen(g, leasepg.New(pool), LeasegenHandlers{
		Activity: &Activity{Replica: name, Work: work},
		Archive:  &Archive{Replica: name},
	})
	if err != nil {
		return err
	}
	return g.Run(ctx)
}

// run is one run of the example.
type run struct {
	stage.Set
	deliveries string
	replicas   int
	kill       time.Duration
	pace, work time.Duration

	killed atomic.Int64
}

// play starts the replicas, publishes, and counts.
func (r *run) play(ctx context.Context) error {
	if r.kill > 0 {
		r.pace, r.work = cmp.Or(r.pace, 40*time.Millisecond), cmp.Or(r.work, 10*time.Millisecond)
	}
	deliveries, err := read(r.deliveries)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "%d deliveries, %d replicas", len(deliveries), r.replicas)
	if r.kill > 0 {
		fmt.Fprintf(r.Out, ", one killed with SIGKILL every %v", r.kill)
	}
	fmt.Fprintln(r.Out)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() {
		// A replica that was started a moment ago may not end well; that is no fault of the run.
		if err := r.Fleet.Close(); err != nil {
			log.Printf("webhooks: %v", err)
		}
	}()
	r.Fleet.Args = []string{"-handle", r.work.String()}
	for i := range r.replicas {
		if err := r.Fleet.Start(replicaName(i)); err != nil {
			return err
		}
	}
	if r.kill > 0 {
		go r.killReplicas(ctx)
	}
	began := time.Now()
	for _, d := range deliveries {
		if err := r.Backend.Publish(ctx, []lease.Event{d.event()}); err != nil {
			return fmt.Errorf("publish %s: %w", d.name, err)
		}
		time.Sleep(r.pace)
	}
	counts, err := r.await(ctx, len(deliveries))
	if err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "done in %v, %d kills\n\n", time.Since(began).Round(time.Millisecond), r.killed.Load())
	return report(r.Out, counts, len(deliveries))
}

func replicaName(i int) string { return fmt.Sprintf("replica-%d", i+1) }

// killReplicas kills a replica and starts it again, over and over, until ctx ends.
func (r *run) killReplicas(ctx context.Context) {
	for ticker := time.NewTicker(r.kill); ; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		name := replicaName(rand.IntN(r.replicas))
		err := r.Fleet.Kill(name)
		if err == nil {
			r.killed.Add(1)
			err = r.Fleet.Start(name)
		}
		if err != nil {
			log.Printf("webhooks: %v", err)
		}
	}
}
