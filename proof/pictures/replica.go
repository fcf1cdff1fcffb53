package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	envReplica = "PICTURES_REPLICA" // the name of the picture
	envName    = "PICTURES_NAME"
	envDSN     = "PICTURES_DSN"
	envFreezes = "PICTURES_FREEZES"

	consumer = "pictured"
	kind     = "tick"
	ttl      = 2 * time.Second
)

func specs() map[string]lease.Spec {
	return map[string]lease.Spec{
		"fence":     {Per: lease.PerTopic, Batch: 1},
		"rebalance": {Per: lease.PerPartition},
	}
}

// replicaMain is a replica process.
func replicaMain() int {
	return fleet.Main(func(ctx context.Context) error {
		pool, err := pgxpool.New(ctx, os.Getenv(envDSN))
		if err != nil {
			return err
		}
		defer pool.Close()
		log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})).With("replica", os.Getenv(envName))
		spec := specs()[os.Getenv(envReplica)]
		spec.Name, spec.Topics, spec.TTL = consumer, []string{"orders"}, ttl
		spec.Handlers = []lease.Handler{lease.One(kind, func(context.Context, lease.Message[[]byte]) error { return nil })}
		be := &telling{leasepg.New(pool, leasepg.WithLogger(log)), os.Getenv(envFreezes) != ""}
		c, err := lease.NewConsumer(be, spec, lease.WithLogger(log), lease.WithObserver(operate.ObserverFunc(observe)))
		if err != nil {
			return err
		}
		return c.Run(ctx)
	})
}

// tell prints what becomes an event.
func tell(what, resource string, epoch int64) {
	fmt.Printf("%s %s %d %d\n", what, resource, epoch, time.Now().UnixNano())
}

func observe(o operate.Observation) {
	switch o := o.(type) {
	case operate.ObservedAcquire:
		tell("acquired", o.Resource, o.Epoch)
	case operate.ObservedLoss:
		tell("lost", o.Resource, o.Epoch)
	case operate.ObservedSession:
		if o.Open {
			tell("session", o.Session, 0)
		}
	}
}

// telling is the backend with the moments at which leases are about to be released and progress is about to be stored.
type telling struct {
	*leasepg.Backend
	freezes bool // in the picture of the fence
}

func (b *telling) Release(ctx context.Context, session, consumer string, leases []backend.Ref) error {
	for _, l := range leases {
		tell("released", l.Resource, l.Epoch)
	}
	return b.Backend.Release(ctx, session, consumer, leases)
}

func (b *telling) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	s, err := b.Backend.OpenSession(ctx, spec)
	if err != nil {
		return nil, err
	}
	return tellingSession{s}, nil
}

// tellingSession tells when all its leases are about to be released.
type tellingSession struct{ backend.Session }

func (s tellingSession) Close(ctx context.Context) error {
	tell("closing", "-", 0)
	return s.Session.Close(ctx)
}

// Commit leaves one that freezes a moment to do so, and does not let it hear that it has lost its lease: the fence has to
// stop it alone.
func (b *telling) Commit(ctx context.Context, session, consumer string, progress []backend.Progress) ([]string, error) {
	if b.freezes {
		tell("committing", progress[0].Resource, progress[0].Epoch)
		time.Sleep(100 * time.Millisecond)
		ctx = context.WithoutCancel(ctx)
	}
	fenced, err := b.Backend.Commit(ctx, session, consumer, progress)
	if err == nil {
		for _, p := range progress {
			what := "committed"
			if slices.Contains(fenced, p.Resource) {
				what = "refused"
			}
			tell(what, p.Resource, p.Epoch)
		}
	}
	return fenced, err
}
