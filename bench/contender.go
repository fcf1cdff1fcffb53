package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/bench/report"
)

// contender is a system in one configuration.
type contender struct {
	report.Contender
	// cannot says in words what it has no means for, by workload. It takes part in the others.
	cannot map[string]string
	// notes stand beside its figures, by workload.
	notes map[string]string
	open  func(ctx context.Context, s *site) (system, error)
	// variant: another setting of a contender that takes part, too.
	variant bool
}

func (c contender) named(name string) bool { return c.ID == name }

// system is a contender that is ready for one turn.
type system interface {
	// Fill makes a backlog of n messages, spread over topics, as fast as the system can.
	Fill(ctx context.Context, n, topics int) error
	// Publish makes one call with some messages, and returns when they are as durable as the system makes them.
	Publish(ctx context.Context, topic int, payloads [][]byte) error
	// Consume starts to handle what is there and what comes, and returns at once. stop ends it and waits.
	Consume(ctx context.Context, j job) (stop func() error, err error)
	Close()
}

// transactional is a system that publishes in the transaction of its caller.
type transactional interface {
	PublishTx(ctx context.Context, tx pgx.Tx, topic int, payloads [][]byte) error
}

// job is what a consumer does.
type job struct {
	topics int
	effect effect
	// call is made in the handler of each message. Nil: no call.
	call func(payload []byte)
	// begun is called each time when a handler begins with a message or a batch. It may be nil.
	begun func()
	// done is called with the number of messages more that are handled, where the system lets it be known: stored.
	done func(n int)
}

// begin tells that a handler begins.
func (j job) begin() {
	if j.begun != nil {
		j.begun()
	}
}

// effect is what a handler writes to table effect, once for each message.
type effect int

const (
	noEffect   effect = iota
	oneByOne          // a statement for each message
	manyAtOnce        // a statement for each batch
)

const (
	effectTable = `CREATE TABLE effect (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id text, topic text, payload bytea)`
	effectOne   = `INSERT INTO effect (message_id, topic, payload) VALUES ($1, $2, $3)`
	effectMany  = `INSERT INTO effect (message_id, topic, payload) SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[])`
)

func contenders() []contender {
	return []contender{
		leasegenPostgres(), barePostgres(), barePostgresByID(), riverBest(), riverDefaults(), watermillSQL(), watermillSQLDefaults(), pgoutbox(),
		leasegenRedis(), bareRedis(), watermillRedis(), watermillRedisDefaults(), asynqBest(), asynqDefaults(),
		jetStreamOrdered(), jetStreamQueue(), jetStreamDefaults(), jetStreamSynced(),
	}
}

// payload is what every system carries in each message.
func payload(i int) []byte { return fmt.Appendf(nil, `{"n":"%012d","text":"%0100d"}`, i, i) }

// number reads a payload's number, also where a server has written its JSON anew.
func number(payload []byte) int {
	from := 0
	for from < len(payload) && (payload[from] < '0' || payload[from] > '9') {
		from++
	}
	to := from
	for to < len(payload) && payload[to] >= '0' && payload[to] <= '9' {
		to++
	}
	n, err := strconv.Atoi(string(payload[from:to]))
	if err != nil {
		return -1
	}
	return n
}

func topicName(i int) string { return fmt.Sprintf("bench.%d", i) }

// inChunks makes a backlog by calls of publish, each for one topic in turn or for all of them.
func chunks(n, size int, each func(from, to int) error) error {
	for at := 0; at < n; at += size {
		if err := each(at, min(at+size, n)); err != nil {
			return err
		}
	}
	return nil
}

// analyzed brings statistics up to date: a backlog has grown without any.
func analyzed(ctx context.Context, pool *pgxpool.Pool, tables ...string) error {
	for _, t := range tables {
		if _, err := pool.Exec(ctx, "VACUUM ANALYZE "+t); err != nil {
			return err
		}
	}
	return nil
}

// payloads are those of some numbers.
func payloads(from, to int) [][]byte {
	ps := make([][]byte, to-from)
	for i := range ps {
		ps[i] = payload(from + i)
	}
	return ps
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// pause waits a millisecond, as a loop does that found no message.
func pause(ctx context.Context) {
	select {
	case <-time.After(time.Millisecond):
	case <-ctx.Done():
	}
}
