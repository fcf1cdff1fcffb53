package redisproof

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	envReplica   = "PROOF_REDIS_REPLICA" // a replica's settings, as JSON
	consumerName = "proof"
	readTimeout  = time.Second // of clients of a cluster
)

// settings are the orders for a replica.
type settings struct {
	Name      string
	Addrs     []string // of the server, or of the cluster's nodes
	Cluster   bool
	User      string
	Password  string
	Namespace string
	Tags      int
	Sink      string
	TTL       time.Duration
	Slow      time.Duration // how long a handler takes
	Pool      int           // connections of the client; 0 is as many as go-redis likes
	Deaf      bool          // what subscriptions would bring never arrives
	Mode      mode
}

// mode is how much protection a replica has, and how its handlers behave.
type mode string

const (
	// whole is leasegen as users have it.
	whole mode = "whole"
	// failing is whole with a handler that often fails: see fails.
	failing mode = "failing"
	// fenceOnly ignores cancelled contexts: a frozen replica goes on exactly where it was.
	fenceOnly mode = "fence only"
	// The others are mutants, see mutants_test.go.
)

// numbered is what is published: Seq counts from 1 in each topic.
type numbered struct{ Seq int64 }

const (
	lanes    = 4  // keys in each topic
	poisonAt = 50 // every so many messages one fails for ever
	attempts = 3  // before it becomes a dead letter
)

func (n *numbered) key() string { return fmt.Sprint(n.Seq % lanes) }

func poison(seq int64) bool { return seq%poisonAt == 0 }

// fails says how a failing replica fails: at some messages once, at others always.
func fails(m lease.Message[numbered]) error {
	if poison(m.Payload.Seq) || m.Payload.Seq%7 == 0 && m.Attempt == 1 {
		return errors.New("as it was told")
	}
	return nil
}

// replicaMain is a replica process.
func replicaMain() int {
	return fleet.Main(func(ctx context.Context) error {
		var s settings
		if err := json.Unmarshal([]byte(os.Getenv(envReplica)), &s); err != nil {
			return err
		}
		return replica(ctx, s)
	})
}

func replica(ctx context.Context, s settings) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})).With("replica", s.Name)
	client := s.client()
	defer client.Close()
	sink := newSink(s.Sink, s.Namespace)
	defer sink.client.Close()
	be := s.backend(client, sink, log)
	// A server that is down for a moment is no reason to give up.
	for {
		c, err := s.consumer(be, sink, lease.WithLogger(log), lease.WithObserver(operate.ObserverFunc(fleet.Tell)))
		if err != nil {
			return err
		}
		if err = c.Run(ctx); err == nil || ctx.Err() != nil {
			return err
		}
		log.Warn("the consumer ended; once more", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// client is a client as an application has it, unchanged.
func (s settings) client() redis.UniversalClient {
	if s.Cluster {
		// As docs/redis.md advises: a node that hangs is not waited for as long as go-redis would.
		options := &redis.ClusterOptions{Addrs: s.Addrs, Username: s.User, Password: s.Password,
			ReadTimeout: readTimeout, DialTimeout: readTimeout, PoolSize: s.Pool}
		if s.Mode == neverReloads {
			options.ClusterSlots = onceAMinute(s)
		}
		return redis.NewClusterClient(options)
	}
	o := &redis.Options{Addr: s.Addrs[0], Username: s.User, Password: s.Password, PoolSize: s.Pool}
	if s.Deaf {
		o.Dialer = dialDeaf
	}
	return redis.NewClient(o)
}

// dialDeaf makes connections on which no notification arrives.
func dialDeaf(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	return deafConn{c}, err
}

type deafConn struct{ net.Conn }

func (c deafConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !notification.Match(b[:n]) {
			return n, err
		}
	}
}

// notification is what Redis pushes to those who have subscribed.
var notification = regexp.MustCompile(`^[>*][34]\r\n\$\d\r\np?message\r\n`)

// options are those of all backends of a site. Every dead letter is judged, so none is dropped: on a slow machine a proof goes on until
// there are more than are kept by default.
func (s settings) options() []leaseredis.Option {
	opts := []leaseredis.Option{leaseredis.WithNamespace(s.Namespace), leaseredis.WithMaxDeadLetters(0)}
	if s.Tags > 0 {
		opts = append(opts, leaseredis.WithTags(s.Tags))
	}
	return opts
}

// backend is leaseredis with a recorder around its commits, and, for a mutant, with something missing.
func (s settings) backend(client redis.UniversalClient, sink *sink, log *slog.Logger) lease.Backend {
	b := leaseredis.New(client, append(s.options(), leaseredis.WithLogger(log))...)
	return &recorder{Backend: b, mutant: mutant{mode: s.Mode, client: client, namespace: s.Namespace}, sink: sink}
}

// consumer is what generated code would make of a handler of the one form that tells the sink.
func (s settings) consumer(be lease.Backend, sink *sink, opts ...lease.Option) (*lease.Consumer, error) {
	retry := lease.Retry{}
	if s.Mode.fails() {
		retry = lease.Retry{Max: attempts, Min: 20 * time.Millisecond, Cap: 100 * time.Millisecond}
	}
	return lease.NewConsumer(be, lease.Spec{
		Name: consumerName, Per: lease.PerTopic, Topics: []string{"t.*"}, TTL: s.TTL, Batch: 20, Drain: 2 * time.Second, Retry: retry,
		Handlers: []lease.Handler{
			lease.One("numbered", func(ctx context.Context, m lease.Message[numbered]) error {
				if s.Mode.ignoresCancel() {
					ctx = context.WithoutCancel(ctx)
				}
				if s.Mode.fails() {
					if err := fails(m); err != nil {
						return err
					}
				}
				if s.Slow > 0 {
					fmt.Printf("handling %s %d\n", m.Topic, m.Epoch)
					select {
					case <-time.After(s.Slow):
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				} else {
					time.Sleep(rand.N(2 * time.Millisecond)) // mostly somebody is in the middle of something
				}
				return sink.effect(ctx, s.Name, m)
			}),
		},
	}, append(opts, lease.WithConcurrency(256))...)
}

// recorder writes down which commits began and which succeeded.
type recorder struct {
	*leaseredis.Backend
	mutant mutant
	sink   *sink
}

func (r *recorder) Commit(ctx context.Context, session, consumer string, progress []backend.Progress) ([]string, error) {
	if r.mutant.mode.ignoresCancel() {
		ctx = context.WithoutCancel(ctx)
		time.Sleep(30 * time.Millisecond) // here a frozen replica is mostly caught
	}
	token := fmt.Sprintf("%016x", rand.Uint64())
	lines := make([]any, len(progress))
	for i, p := range progress {
		lines[i] = line("begin", token, p.Resource, p.Epoch, p.Mark)
	}
	// Written even when the session is over: these lines tell the truth, and have no effect.
	if err := r.sink.append(lines...); err != nil {
		return nil, err
	}
	fenced, err := r.mutant.commit(ctx, r.Backend, session, consumer, progress)
	if err != nil {
		return fenced, err
	}
	refused := map[string]bool{}
	for _, f := range fenced {
		refused[f] = true
	}
	lines = lines[:0]
	for _, p := range progress {
		if refused[p.Resource] {
			continue
		}
		cursor := "-"
		if p.Cursor != nil {
			cursor = fmt.Sprint(p.Cursor)
		}
		lines = append(lines, line("commit", token, p.Resource, p.Epoch, cursor))
	}
	if len(lines) > 0 {
		err = r.sink.append(lines...)
	}
	return fenced, err
}

func (r *recorder) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	return r.mutant.openSession(ctx, r.Backend, spec)
}

func (r *recorder) OpenFeed(ctx context.Context, consumers []backend.ConsumerInfo) (backend.Feed, error) {
	return r.mutant.openFeed(ctx, r.Backend, consumers)
}

// line is one line of the history.
func line(words ...any) string { return strings.TrimSuffix(fmt.Sprintln(words...), "\n") }
