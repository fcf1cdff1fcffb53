package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	envReplica = "FAILOVER_REPLICA" // the name of the consumer, its topic and its schema
	envKind    = "FAILOVER_KIND"    // index in locks
	envDSN     = "FAILOVER_DSN"
	envTTL     = "FAILOVER_TTL"
)

// replicaMain is a replica process.
func replicaMain() int {
	return fleet.Main(func(ctx context.Context) (err error) {
		defer must.Catch(&err)
		n := must.Get(strconv.Atoi(os.Getenv(envKind)))
		ttl := must.Get(time.ParseDuration(os.Getenv(envTTL)))
		return replica(ctx, locks()[n], ttl, os.Getenv(envReplica), os.Getenv(envDSN))
	})
}

func replica(ctx context.Context, k lockKind, ttl time.Duration, name, dsn string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})).With("consumer", name, "pid", os.Getpid())
	spec := lease.Spec{Name: name, Per: k.asPer, Lock: k.asLock, TTL: ttl, Batch: 20, Drain: 2 * time.Second}
	if k.asPer == lease.PerCluster {
		spec.Handlers = []lease.Handler{lease.Run(func(ctx context.Context, l lease.Lease) error {
			for ctx.Err() == nil {
				effect(l.Epoch)
			}
			return nil
		})}
	} else {
		spec.Topics = []string{name}
		spec.Handlers = []lease.Handler{lease.One("tick", func(_ context.Context, m lease.Message[[]byte]) error {
			effect(m.Epoch)
			return nil
		})}
	}
	tell := operate.ObserverFunc(func(o operate.Observation) {
		switch o := o.(type) {
		case operate.ObservedSession:
			if o.Open {
				fmt.Println("session")
			} else {
				fmt.Println("ended")
			}
		case operate.ObservedLoss:
			fmt.Println("loss")
		}
	})
	be, end, err := connect(ctx, dsn, name, log)
	must.Do(err)
	defer end()
	c := must.Get(lease.NewConsumer(be, spec, lease.WithLogger(log), lease.WithObserver(tell)))
	return c.Run(ctx)
}

// effect is what an owner does: something that takes 2 ms, told with its epoch and when it
// began and ended.
func effect(epoch int64) {
	began := time.Now()
	time.Sleep(2 * time.Millisecond)
	fmt.Printf("effect %d %d %d\n", epoch, began.UnixNano(), time.Now().UnixNano())
}
