package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	publishers = 16
	accounts   = 8 // of each publisher
	closed     = "acct-closed"
)

// play publishes, kills the replica that drains, waits until all is accounted for, and
// repairs what could not be booked.
func (r *run) play(ctx context.Context) error {
	if err := r.Fleet.Start("replica-1", "replica-2", "replica-3"); err != nil {
		return err
	}
	_, err := r.Pool.Exec(ctx, `INSERT INTO account SELECT format('acct-%s-%s', p, a) FROM generate_series(0, $1) p, generate_series(0, $2) a`,
		publishers-1, accounts-1)
	if err != nil {
		return err
	}
	var owner string
	err = stage.Until(ctx, "a replica drains", func() (ok bool, err error) {
		owner, err = r.owner(ctx)
		return owner != "", err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "%d publishers at full speed; 3 replicas, of which %s drains and the others stand by\n", publishers, owner)

	naive := r.readNaively(ctx)
	fault, took, err := r.publish(ctx, owner)
	if err != nil {
		return err
	}
	total := r.payments + 1
	var c count
	err = stage.Until(ctx, "all payments are accounted for", func() (_ bool, err error) {
		c, err = r.count(ctx)
		return c.booked+c.dead >= total, err
	})
	if err != nil {
		return fmt.Errorf("%w: %+v of %d", err, c, total)
	}
	seen, err := naive()
	if err != nil {
		return err
	}
	next, gap, err := r.takeover(ctx, fault)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "published %d payments in %.1f s; half-way %s was killed with SIGKILL, and %s went on after %d ms\n\n",
		total, took.Seconds(), owner, next, gap.Milliseconds())
	fmt.Fprintf(r.Out, "%-28s %10s %8s %13s %6s %6s %13s\n", "reader", "published", "handled", "dead letters", "lost", "twice", "out of order")
	fmt.Fprintf(r.Out, "%-28s %10d %8d %13d %6d %6d %13d\n", "leasegen, per=group", total, c.booked, c.dead, total-c.booked-c.dead, c.twice, c.disorder)
	fmt.Fprintf(r.Out, "%-28s %10d %8d %13s %6d %6s %13s\n\n", "id > highest id seen so far", total, seen, "-", total-seen, "-", "-")

	if err := r.repair(ctx); err != nil {
		return err
	}
	after, err := r.count(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "published %d = booked %d + dead letters %d\n\n", total, after.booked, after.dead)
	fmt.Fprint(r.Out, "pyfly's PostgresEventBus reads as in the second line: what commits late is lost for good, and\n"+
		"a payment that fails is tried again for ever while all behind it wait.\n")
	if c.dead != 1 || c.twice+c.disorder > 0 || after != (count{booked: total}) {
		return fmt.Errorf("that does not add up: before the repair %+v, after it %+v, of %d", c, after, total)
	}
	return nil
}

// owner is the replica that drains, "" while there is none.
func (r *run) owner(ctx context.Context) (string, error) {
	owned, err := r.Owned(ctx, "ledger")
	for name, n := range owned {
		if n > 0 {
			return name, err
		}
	}
	return "", err
}

// publish publishes from many goroutines at once, and kills the owner half-way; the
// fault's time is by the server's clock.
func (r *run) publish(ctx context.Context, owner string) (fault time.Time, took time.Duration, err error) {
	began := time.Now()
	var published atomic.Int64
	err = stage.AtOnce(publishers, func(p int) error {
		for i := p; i < r.payments; i += publishers {
			pay := Payment{Account: fmt.Sprintf("acct-%d-%d", p, i/publishers%accounts), N: i, Cents: int64(i % 10_000)}
			if err := PublishPayment(ctx, r.Backend, "payments", pay); err != nil {
				return err
			}
			switch published.Add(1) {
			case int64(r.payments / 4):
				err := PublishPayment(ctx, r.Backend, "payments", Payment{Account: closed, N: 1, Cents: 100})
				if err != nil {
					return err
				}
			case int64(r.payments / 2):
				if err := r.Pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&fault); err != nil {
					return err
				}
				if err := r.Fleet.Kill(owner); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return fault, time.Since(began), err
}

// readNaively reads the log as many do, from the highest id seen so far, and as often as
// it can. The function it returns stops it and tells how many messages it has seen.
func (r *run) readNaively(ctx context.Context) (stop func() (int, error)) {
	var highest int64
	var seen int
	read := func() error {
		for n := -1; n != 0; {
			err := r.Pool.QueryRow(ctx, `SELECT count(*), coalesce(max(id), $1) FROM
				(SELECT id FROM leasegen.message WHERE id > $1 ORDER BY id LIMIT 500) m`, highest).Scan(&n, &highest)
			if err != nil {
				return err
			}
			seen += n
		}
		return nil
	}
	over, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		var err error
		for err == nil && over.Err() == nil {
			err = read()
			time.Sleep(time.Millisecond)
		}
		done <- errors.Join(err, read()) // and what came since
	}()
	return func() (int, error) {
		end()
		err := <-done
		return seen, err
	}
}

// count is what became of the payments.
type count struct{ booked, dead, twice, disorder int }

func (r *run) count(ctx context.Context) (c count, err error) {
	// A replayed payment comes late on purpose: it is the only one of its account.
	err = r.Pool.QueryRow(ctx, `
		SELECT count(*), count(*) - count(DISTINCT message), count(*) FILTER (WHERE n < before)
		FROM (SELECT message, n, lag(n) OVER (PARTITION BY account ORDER BY seq) AS before FROM booking) b`).
		Scan(&c.booked, &c.twice, &c.disorder)
	if err != nil {
		return c, err
	}
	dead, err := r.Backend.DeadLetters(ctx, operate.DeadLetterFilter{Consumer: "ledger"})
	c.dead = len(dead)
	return c, err
}

// takeover says who booked first under a new epoch after the fault, and how long after it.
func (r *run) takeover(ctx context.Context, fault time.Time) (by string, gap time.Duration, err error) {
	var at time.Time
	err = r.Pool.QueryRow(ctx, `
		SELECT replica, booked_at FROM booking
		WHERE epoch > (SELECT min(epoch) FROM booking) AND booked_at > $1 ORDER BY seq LIMIT 1`, fault).Scan(&by, &at)
	return by, at.Sub(fault), err
}

// repair shows the dead letter, removes its cause, and replays it.
func (r *run) repair(ctx context.Context) error {
	dead, err := r.Backend.DeadLetters(ctx, operate.DeadLetterFilter{Consumer: "ledger"})
	if err != nil {
		return err
	}
	if len(dead) != 1 {
		return errors.New("there should be one dead letter")
	}
	d := dead[0]
	fmt.Fprintf(r.Out, "dead letter: %s #%s of %s, %d attempts: %s\n", d.Kind, d.MessageID, d.Key, d.Attempts, d.Reason)
	if _, err := r.Pool.Exec(ctx, `INSERT INTO account VALUES ($1)`, closed); err != nil {
		return err
	}
	n, err := r.Backend.Replay(ctx, operate.DeadLetterFilter{Consumer: "ledger"}) // leasegen dlq replay ledger -yes
	if err != nil {
		return err
	}
	began := time.Now()
	err = stage.Until(ctx, "the replayed payment is booked", func() (bool, error) {
		c, err := r.count(ctx)
		return c.booked > r.payments, err
	})
	fmt.Fprintf(r.Out, "the account was opened, the dead letter replayed (%d), and the payment booked %d ms later\n", n, time.Since(began).Milliseconds())
	return err
}
