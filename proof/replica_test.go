package proof

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	envMode = "PROOF_MODE"
	envDSN  = "PROOF_DSN"
	envName = "PROOF_REPLICA"
	envHold = "PROOF_HOLD" // a file: the replica that renames it waits before its commit until the test removes it

	consumerName = "proof"
	ttl          = 2 * time.Second
)

// mode is how much protection a replica has.
type mode string

const (
	// whole is leasegen as users have it.
	whole mode = "whole"
	// fenceOnly ignores cancelled contexts and lets transactions idle for ever: a frozen
	// replica goes on exactly where it was.
	fenceOnly mode = "fence only"
	// failing is whole with a handler that often fails: see fails.
	failing mode = "failing"
	// slots is whole with per=partition: see rebalance_test.go.
	slots mode = "slots"
	// soak runs four consumers, see soak_test.go; busy none, and takes the machine away.
	soak mode = "soak"
	busy mode = "busy"
	// unfenced is fenceOnly without the fence: the control, which must fail.
	unfenced mode = "fence removed"
)

// numbered is what is published: Seq counts from 1 in each topic.
type numbered struct{ Seq int64 }

const (
	lanes    = 4  // keys in each topic
	poisonAt = 50 // every so many messages one fails for ever
	attempts = 3  // before it becomes a dead letter
)

// key is the ordering key of a message.
func (n *numbered) key() string { return fmt.Sprint(n.Seq % lanes) }

// poison says that a failing replica never gets past the message.
func (n *numbered) poison() bool { return n.Seq%poisonAt == 0 }

// fails says how a failing replica fails: at some messages once, at others always, and
// always after it has written, so that a transaction that is not rolled back shows.
func fails(m lease.Message[numbered]) error {
	if m.Payload.poison() || m.Payload.Seq%7 == 0 && m.Attempt == 1 {
		return errors.New("as it was told")
	}
	return nil
}

// replicaMain is a replica process.
func replicaMain() int {
	return fleet.Main(func(ctx context.Context) error {
		m := mode(os.Getenv(envMode))
		if m == busy {
			fleet.Spin(ctx)
			return nil
		}
		return replica(ctx, m, os.Getenv(envDSN), os.Getenv(envName))
	})
}

func replica(ctx context.Context, m mode, dsn, name string) error {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return err
	}
	if !strings.Contains(dsn, "pool_max_conns") {
		cfg.MaxConns = 20
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})).With("replica", name)
	pg := leasepg.New(pool, leasepg.WithLogger(log))
	if m == soak {
		g, err := soakGroup(pg, log)
		if err != nil {
			return err
		}
		go tellMemory(ctx)
		return g.Run(ctx)
	}
	var be lease.Backend = pg
	if m == fenceOnly || m == unfenced {
		be = &careless{Backend: pg, fence: m == fenceOnly}
	}
	observe := operate.ObserverFunc(fleet.Tell)
	if m == slots {
		watched := &timed{Backend: pg}
		be, observe = watched, watched.tell
	}
	c, err := newConsumer(be, name, m, lease.WithLogger(log), lease.WithObserver(observe))
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// newConsumer is what generated code would make of a handler in the transaction form
// that writes one row for each message.
func newConsumer(be lease.Backend, name string, m mode, opts ...lease.Option) (*lease.Consumer, error) {
	var retry lease.Retry
	if m == failing {
		retry = lease.Retry{Max: attempts, Min: 20 * time.Millisecond, Cap: 100 * time.Millisecond}
	}
	per, ttl := lease.PerTopic, ttl
	if m == slots {
		per, ttl = lease.PerPartition, calm // no replica is lost there
	}
	return lease.NewConsumer(be, lease.Spec{
		Name: consumerName, Per: per, Topics: []string{"t.*"}, TTL: ttl, Batch: 20, Drain: 2 * time.Second, Retry: retry,
		Handlers: []lease.Handler{
			lease.OneTx("numbered", func(ctx context.Context, tx pgx.Tx, msg lease.Message[numbered]) error {
				if m == fenceOnly || m == unfenced {
					ctx = context.WithoutCancel(ctx)
				}
				topic := msg.Topic
				if m == slots {
					topic = msg.Key
				} else {
					// Most of the time somebody is in the middle of a transaction.
					time.Sleep(rand.N(3 * time.Millisecond))
				}
				_, err := tx.Exec(ctx, `INSERT INTO effect (message_id, topic, seq, epoch, replica) VALUES ($1, $2, $3, $4, $5)`,
					msg.ID, topic, msg.Payload.Seq, msg.Epoch, name)
				if err == nil && m == failing {
					err = fails(msg)
				}
				return err
			}),
		},
	}, opts...)
}

// careless is the backend without what stands beside the fence, and, if fence is
// false, without the fence: every commit then claims to come from the present owner.
type careless struct {
	*leasepg.Backend
	fence bool
}

func (b *careless) Capabilities() backend.Capabilities {
	caps := b.Backend.Capabilities()
	caps.Tx = b
	return caps
}

func (b *careless) Begin(ctx context.Context, session string) (backend.Tx, error) {
	tx, err := b.Backend.Begin(context.WithoutCancel(ctx), session)
	if err != nil {
		return nil, err
	}
	_, err = tx.Handle().(pgx.Tx).Exec(ctx, `SET LOCAL idle_in_transaction_session_timeout = 0`)
	if err != nil {
		_ = tx.Rollback(context.WithoutCancel(ctx))
		return nil, err
	}
	return carelessTx{tx, b.fence}, nil
}

type carelessTx struct {
	backend.Tx
	fence bool
}

func (tx carelessTx) Commit(ctx context.Context, session, consumer string, p backend.Progress) error {
	ctx = context.WithoutCancel(ctx)
	if file := os.Getenv(envHold); file == "" {
		time.Sleep(30 * time.Millisecond) // here a frozen replica is mostly caught
	} else if hold(file, p) {
		defer fmt.Printf("answered %s %d\n", p.Resource, p.Epoch)
	}
	if !tx.fence {
		err := tx.Handle().(pgx.Tx).QueryRow(ctx, `SELECT coalesce(session, ''), epoch FROM leasegen.lease WHERE consumer = $1 AND resource = $2`,
			consumer, p.Resource).Scan(&session, &p.Epoch)
		if err != nil {
			return err
		}
	}
	return tx.Tx.Commit(ctx, session, consumer, p)
}

// hold waits before a commit, and reports it, if this replica is the first to come that far since the test made the file.
func hold(file string, p backend.Progress) bool {
	held := heldFile(file)
	if os.Rename(file, held) != nil {
		return false // it is not there: none is to wait, or another does
	}
	fmt.Printf("committing %s %d\n", p.Resource, p.Epoch)
	for _, err := os.Stat(held); err == nil; _, err = os.Stat(held) {
		time.Sleep(time.Millisecond)
	}
	return true
}

// heldFile is the name that a file has while a replica waits.
func heldFile(file string) string { return file + ".held" }
