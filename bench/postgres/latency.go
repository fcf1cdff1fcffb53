package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// latency publishes now and then to an idle system and measures from the end of the
// commit to the handler's call.
func latency(ctx context.Context, b *bench, pool *pgxpool.Pool) error {
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
	r, err := b.replica(ctx, pool.Config().ConnString(), spec)
	if err != nil {
		return err
	}
	be := leasepg.New(pool)
	publish := func(seq int) (time.Time, error) {
		err := be.Publish(ctx, []lease.Event{{Topic: "t." + strconv.Itoa((seq+10)%10), Kind: "tick", Payload: []byte(strconv.Itoa(seq))}})
		return time.Now(), err
	}
	wait := func() (call, error) {
		select {
		case c := <-calls:
			return c, nil
		case <-time.After(30 * time.Second):
			return call{}, fmt.Errorf("a message was not handled within 30 s")
		}
	}
	for seq := range 10 { // the topics become known and owned
		if _, err := publish(-10 + seq); err != nil {
			return err
		}
		if _, err := wait(); err != nil {
			return err
		}
	}
	var took []time.Duration
	for seq := range n {
		// From just after the last message to long after it: awake, dozing and asleep.
		time.Sleep(time.Duration(seq%40) * 5 * time.Millisecond)
		committed, err := publish(seq)
		if err != nil {
			return err
		}
		c, err := wait()
		if err != nil {
			return err
		}
		if c.seq != seq {
			return fmt.Errorf("message %d was handled, want %d", c.seq, seq)
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
	return r.stop()
}
