package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// latency publishes now and then to an idle system and measures from the end of the
// commit to the handler's call.
func latency(ctx context.Context, b *bench, pool *pgxpool.Pool) {
	const n = 400
	type call struct {
		seq int
		at  time.Time
	}
	calls := make(chan call, n+10)
	spec := lease.Spec{Name: "latency", Per: lease.PerTopic, Topics: []string{"t.*"}, Handlers: []lease.Handler{
		lease.One("", func(_ context.Context, m lease.Message[[]byte]) error {
			at := time.Now()
			seq, err := strconv.Atoi(string(m.Payload))
			calls <- call{seq, at}
			return err
		})}}
	r := b.replica(ctx, pool.Config().ConnString(), spec)
	be := leasepg.New(pool)
	publish := func(seq int) time.Time {
		must.Do(be.Publish(ctx, []lease.Event{{Topic: "t." + strconv.Itoa((seq+10)%10), Kind: "tick", Payload: []byte(strconv.Itoa(seq))}}))
		return time.Now()
	}
	wait := func() (c call) {
		select {
		case c = <-calls:
		case <-time.After(30 * time.Second):
			must.Do(errors.New("a message was not handled within 30 s"))
		}
		return c
	}
	for seq := range 10 { // the topics become known and owned
		publish(-10 + seq)
		wait()
	}
	var took []time.Duration
	for seq := range n {
		// From just after the last message to long after it: awake, dozing and asleep.
		time.Sleep(time.Duration(seq%40) * 5 * time.Millisecond)
		committed := publish(seq)
		c := wait()
		if c.seq != seq {
			must.Do(fmt.Errorf("message %d was handled, want %d", c.seq, seq))
		}
		took = append(took, max(0, c.at.Sub(committed)))
	}
	slices.Sort(took)
	for _, p := range []struct {
		name  string
		at    int
		limit time.Duration
	}{{"p50", n / 2, 2 * time.Millisecond}, {"p99", n * 99 / 100, 10 * time.Millisecond}} {
		d := took[p.at]
		b.report(result{what: "commit to handler, " + p.name, got: float64(d.Microseconds()) / 1000, unit: "ms", want: p.limit.String(), holds: d <= p.limit})
	}
	r.stop()
}
