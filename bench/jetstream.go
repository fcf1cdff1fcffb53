package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/childproc"
)

// How often a JetStream server syncs its files: sync_interval of its configuration.
const (
	natsDefault = "2m"
	natsAlways  = "always"
)

const (
	envNATSPort = "BENCH_NATS_PORT"
	envNATSDir  = "BENCH_NATS_DIR"
	envNATSSync = "BENCH_NATS_SYNC"
)

// launchNATS starts a JetStream server, embedded in a process of its own as PostgreSQL and Redis are processes of their own.
func launchNATS(sync string) (*childproc.Server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var s *childproc.Server
	s, err = childproc.NewServer(childproc.Spec{
		Name: "NATS", Prefix: "leasegen-nats-", AtEnd: syscall.SIGKILL,
		Command: func() (*exec.Cmd, error) {
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), envChild+"=nats", envNATSPort+"="+strconv.Itoa(s.Port), envNATSDir+"="+s.Dir, envNATSSync+"="+sync)
			return cmd, nil
		},
		Ready: func(int) bool {
			c, err := nats.Connect("nats://" + s.Addr())
			if err == nil {
				c.Close()
			}
			return err == nil
		},
	})
	if err != nil {
		return nil, err
	}
	if err := s.Launch(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// natsMain is the server's process.
func natsMain() int {
	port, err := strconv.Atoi(os.Getenv(envNATSPort))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: os.Getenv(envNATSDir), NoSigs: true,
		SyncAlways: os.Getenv(envNATSSync) == natsAlways,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s.Start()
	s.WaitForShutdown()
	return 0
}

// jetStreamBest asks for more messages at once and lets more of them be unacknowledged than by default: PullMaxMessages, of
// which 500 are buffered by default, and ConsumerConfig.MaxAckPending, 1,000 by default.
const (
	pullBest       = 5000
	ackPendingBest = 20_000
)

func jetStreamOrdered() contender {
	return contender{
		Contender: report.Contender{ID: "jetstream-ordered", Name: "JetStream, ordered consumer", Backend: "JetStream",
			Settings: "file storage, synced each 2 minutes (default), PullMaxMessages 5,000",
			Keeps:    "one order; the server stores no position, and each process gets all messages"},
		cannot: onJetStream(map[string]string{"publish": "as the work queue", "crash": noFailover, "handover": noFailover}),
		open:   openJetStream(natsDefault, jetstream.LimitsPolicy, pullBest, 0),
	}
}

const queueKeeps = "no order when redelivered, no fencing, at least once"

func jetStreamQueue() contender {
	return contender{
		Contender: report.Contender{ID: report.JetStream, Name: "JetStream, work queue", Backend: "JetStream", Keeps: queueKeeps,
			Settings: "file storage, synced each 2 minutes (default), PullMaxMessages 5,000, MaxAckPending 20,000, AckWait 2 s"},
		cannot: onJetStream(nil),
		notes:  map[string]string{"crash": afterDelivery},
		open:   openJetStream(natsDefault, jetstream.WorkQueuePolicy, pullBest, ackPendingBest),
	}
}

func jetStreamDefaults() contender {
	return contender{
		variant: true,
		Contender: report.Contender{ID: "jetstream-defaults", Name: "JetStream, work queue, defaults", Backend: "JetStream", Keeps: queueKeeps,
			Settings: "file storage, PullMaxMessages 500, MaxAckPending 1,000, AckWait 30 s"},
		cannot: onJetStream(map[string]string{"publish": "as the work queue", "crash": "30 s: AckWait"}),
		open:   openJetStream(natsDefault, jetstream.WorkQueuePolicy, 0, 0),
	}
}

func jetStreamSynced() contender {
	const why = "not run: a backlog takes minutes to fill with a sync for each message"
	return contender{
		Contender: report.Contender{ID: "jetstream-synced", Name: "JetStream, work queue, synced always", Backend: "JetStream", Keeps: queueKeeps,
			Settings: "as the work queue, sync_interval: always, which is what PostgreSQL does here"},
		cannot: onJetStream(map[string]string{"drain": why, "crash": "as the work queue", "handover": "as the work queue", "idle": "as the work queue"}),
		open:   openJetStream(natsAlways, jetstream.WorkQueuePolicy, pullBest, ackPendingBest),
	}
}

func onJetStream(cannot map[string]string) map[string]string {
	all := map[string]string{
		"publish-tx": "no transaction of PostgreSQL to join", "rows": "JetStream and the database share no transaction: rows at least once",
		"leases": "no leases: any process that asks gets messages of a consumer",
	}
	for w, why := range cannot {
		all[w] = why
	}
	return all
}

const (
	streamName   = "BENCH"
	streamTopics = "bench.>"
)

func openJetStream(sync string, keep jetstream.RetentionPolicy, pull, pending int) func(context.Context, *site) (system, error) {
	return func(ctx context.Context, s *site) (system, error) {
		conn, err := nats.Connect("nats://" + s.natsAt[sync])
		if err != nil {
			return nil, err
		}
		js, err := jetstream.New(conn)
		if err != nil {
			return nil, err
		}
		j := &jetStreamSystem{conn: conn, js: js, pull: pull, pending: pending, queue: keep == jetstream.WorkQueuePolicy}
		if s.replica {
			return j, nil
		}
		if err := js.DeleteStream(ctx, streamName); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil, err
		}
		_, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name: streamName, Subjects: []string{streamTopics}, Retention: keep, Storage: jetstream.FileStorage,
		})
		return j, err
	}
}

type jetStreamSystem struct {
	conn          *nats.Conn
	js            jetstream.JetStream
	pull, pending int
	queue         bool
}

func (s *jetStreamSystem) Close() { s.conn.Close() }

func (s *jetStreamSystem) Fill(ctx context.Context, n, topics int) error {
	return chunks(n, 2000, func(from, to int) error {
		return s.publish(ctx, func(i int) int { return (from + i) % topics }, payloads(from, to))
	})
}

// publish has many messages on their way at once, and waits until all are acknowledged.
func (s *jetStreamSystem) publish(ctx context.Context, topic func(i int) int, payloads [][]byte) error {
	acks := make([]jetstream.PubAckFuture, len(payloads))
	for i, p := range payloads {
		var err error
		if acks[i], err = s.js.PublishAsync(topicName(topic(i)), p); err != nil {
			return err
		}
	}
	for _, a := range acks {
		select {
		case <-a.Ok():
		case err := <-a.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (s *jetStreamSystem) Publish(ctx context.Context, topic int, payloads [][]byte) error {
	if len(payloads) == 1 {
		_, err := s.js.Publish(ctx, topicName(topic), payloads[0])
		return err
	}
	return s.publish(ctx, func(int) int { return topic }, payloads)
}

func (s *jetStreamSystem) consumer(ctx context.Context) (jetstream.Consumer, error) {
	if !s.queue {
		return s.js.OrderedConsumer(ctx, streamName, jetstream.OrderedConsumerConfig{})
	}
	cfg := jetstream.ConsumerConfig{Durable: "bench", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: s.pending}
	if s.pending > 0 {
		cfg.AckWait = 2 * time.Second
	}
	return s.js.CreateOrUpdateConsumer(ctx, streamName, cfg)
}

func (s *jetStreamSystem) Consume(ctx context.Context, j job) (func() error, error) {
	c, err := s.consumer(ctx)
	if err != nil {
		return nil, err
	}
	var opts []jetstream.PullConsumeOpt
	if s.pull > 0 {
		opts = append(opts, jetstream.PullMaxMessages(s.pull))
	}
	running, err := c.Consume(func(m jetstream.Msg) {
		j.begin()
		if j.call != nil {
			j.call(m.Data())
		}
		if s.queue {
			if m.Ack() != nil {
				return // redelivered, and counted then
			}
		}
		if j.done != nil {
			j.done(1)
		}
	}, opts...)
	if err != nil {
		return nil, err
	}
	return func() error {
		running.Stop()
		<-running.Closed()
		return s.conn.FlushTimeout(10 * time.Second)
	}, nil
}
