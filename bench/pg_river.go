package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/leasegen/leasegen/bench/report"
	"github.com/leasegen/leasegen/internal/must"
)

const riverKeeps = "no order (order by key is its paid form), no fencing; effects exactly once if the handler completes its job in its transaction"

// river has the settings of River's own benchmark (cmd/river/riverbench, riverqueue.com/docs/benchmarks): 2,000 workers, a
// fetch each 2 ms at most, a poll each 20 ms, jobs inserted by InsertManyFast, which is a COPY.
func riverBest() contender {
	return contender{
		Contender: report.Contender{ID: report.River, Name: "River", Backend: "PostgreSQL", Keeps: riverKeeps,
			Settings: "those of its benchmark: 2,000 workers, FetchCooldown 2 ms, FetchPollInterval 20 ms; InsertManyFast"},
		cannot: riverCannot(),
		open: func(ctx context.Context, s *site) (system, error) {
			return openRiver(ctx, s, river.Config{FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond}, 2000)
		},
	}
}

func riverDefaults() contender {
	return contender{
		variant: true,
		Contender: report.Contender{ID: "river-defaults", Name: "River, defaults", Backend: "PostgreSQL", Keeps: riverKeeps,
			Settings: "100 workers, as in its README; FetchCooldown 100 ms, FetchPollInterval 1 s"},
		cannot: riverCannot(),
		open: func(ctx context.Context, s *site) (system, error) {
			return openRiver(ctx, s, river.Config{}, 100)
		},
	}
}

func riverCannot() map[string]string {
	const noTopics = "a queue has no topics: as 1 topic; order by key is its paid form"
	return map[string]string{
		"drain-100":   noTopics,
		"drain-10000": noTopics,
		"rows-batch":  "jobs are worked one by one",
		"leases":      "no leases: any worker takes any job; one leader for maintenance alone",
		"crash": "1 hour (RescueStuckJobsAfter); it has to be set higher than the longest time that a job may take, " +
			"and the rescuer looks each 30 s",
	}
}

// riverJob is a job whose arguments are the payload, as it is.
type riverJob struct{ body []byte }

func (riverJob) Kind() string                    { return kind }
func (j riverJob) MarshalJSON() ([]byte, error)  { return j.body, nil }
func (j *riverJob) UnmarshalJSON(b []byte) error { j.body = append([]byte(nil), b...); return nil }

func openRiver(ctx context.Context, s *site, cfg river.Config, workers int) (_ system, err error) {
	defer must.Catch(&err)
	p := pool(ctx, s.dsn)
	driver := riverpgxv5.New(p)
	m := must.Get(rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet()}))
	must.Get(m.Migrate(ctx, rivermigrate.DirectionUp, nil))
	cfg.Logger = quiet()
	insert := must.Get(river.NewClient(driver, &river.Config{Logger: quiet()}))
	return &riverSystem{p, cfg, workers, insert}, nil
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

type riverSystem struct {
	pool    *pgxpool.Pool
	cfg     river.Config
	workers int
	insert  *river.Client[pgx.Tx]
}

func (r *riverSystem) Close() { r.pool.Close() }

func riverParams(payloads [][]byte) []river.InsertManyParams {
	params := make([]river.InsertManyParams, len(payloads))
	for i, p := range payloads {
		params[i].Args = riverJob{p}
	}
	return params
}

func (r *riverSystem) Fill(ctx context.Context, n, _ int) error {
	err := chunks(n, 10_000, func(from, to int) error {
		_, err := r.insert.InsertManyFast(ctx, riverParams(payloads(from, to)))
		return err
	})
	if err != nil {
		return err
	}
	return analyzed(ctx, r.pool, "river_job")
}

func (r *riverSystem) Publish(ctx context.Context, _ int, payloads [][]byte) (err error) {
	if len(payloads) == 1 {
		_, err = r.insert.Insert(ctx, riverJob{payloads[0]}, nil)
	} else {
		_, err = r.insert.InsertManyFast(ctx, riverParams(payloads))
	}
	return err
}

func (r *riverSystem) PublishTx(ctx context.Context, tx pgx.Tx, _ int, payloads [][]byte) (err error) {
	if len(payloads) == 1 {
		_, err = r.insert.InsertTx(ctx, tx, riverJob{payloads[0]}, nil)
	} else {
		_, err = r.insert.InsertManyFastTx(ctx, tx, riverParams(payloads))
	}
	return err
}

// riverWorker handles jobs. With an effect it completes its job in the transaction that writes the row.
type riverWorker struct {
	river.WorkerDefaults[riverJob]
	pool *pgxpool.Pool
	job  job
}

func (w *riverWorker) Work(ctx context.Context, j *river.Job[riverJob]) error {
	w.job.begin()
	if w.job.call != nil {
		w.job.call(j.Args.body)
	}
	if w.job.effect == noEffect {
		return nil
	}
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, effectOne, itoa(j.ID), topicName(0), j.Args.body); err != nil {
			return err
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, j)
		return err
	})
}

func (r *riverSystem) Consume(ctx context.Context, j job) (_ func() error, err error) {
	defer must.Catch(&err)
	cfg := r.cfg
	cfg.Workers = river.NewWorkers()
	river.AddWorker(cfg.Workers, &riverWorker{pool: r.pool, job: j})
	cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: r.workers}}
	client := must.Get(river.NewClient(riverpgxv5.New(r.pool), &cfg))
	// Completed means stored; its own benchmark counts so, too.
	completed, unsubscribe := client.SubscribeConfig(&river.SubscribeConfig{ChanSize: 1_000_000, Kinds: []river.EventKind{river.EventKindJobCompleted}})
	counted := make(chan struct{})
	go func() {
		defer close(counted)
		for range completed {
			if j.done != nil {
				j.done(1)
			}
		}
	}()
	must.Do(client.Start(context.WithoutCancel(ctx)))
	return func() error {
		// Jobs that run are waited for.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err := client.Stop(ctx)
		unsubscribe()
		<-counted
		return err
	}, nil
}
