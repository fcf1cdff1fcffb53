package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// play lets the leadership change hands in three ways.
func (r *run) play(ctx context.Context) error {
	fmt.Fprintf(r.Out, "%-42s %10s   %s\n", "", "no leader", "jobs of each leader")
	var leaders map[string]int
	var err error
	for _, name := range []string{"replica-1", "replica-2", "replica-3"} {
		if err := r.Fleet.Start(name); err != nil {
			return err
		}
		if leaders, err = r.led(ctx, ""); err != nil { // replica-1 is to be first
			return err
		}
	}
	if err := r.tell(ctx, "three replicas start", "", leaders); err != nil {
		return err
	}
	sessions, locks, err := r.connections(ctx)
	if err != nil {
		return err
	}

	ended, err := r.pass(ctx, "gets SIGTERM", r.Fleet.Stop)
	if err != nil {
		return err
	}
	if err := r.Fleet.Start(ended); err != nil {
		return err
	}
	if ended, err = r.pass(ctx, "is killed (SIGKILL)", r.Fleet.Kill); err != nil {
		return err
	}
	if err := r.Fleet.Start(ended); err != nil {
		return err
	}
	frozen, err := r.pass(ctx, "is frozen (SIGSTOP)", r.Fleet.Freeze)
	if err != nil {
		return err
	}
	if err := r.Fleet.Thaw(frozen); err != nil {
		return err
	}
	refused, err := r.refused(ctx, frozen)
	if err != nil {
		return err
	}

	var accepted, late, steps, stale int
	err = r.Pool.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE accepted), count(*) FILTER (WHERE NOT accepted), (SELECT sum(steps) FROM outside),
		       count(*) FILTER (WHERE accepted AND epoch < newest)
		FROM (SELECT *, max(epoch) FILTER (WHERE accepted) OVER (PARTITION BY job ORDER BY seq) AS newest FROM step) s`).
		Scan(&accepted, &late, &steps, &stale)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "\n%s\n\n%d steps = accepted %d + refused %d; accepted of a leader of the past: %d\n", refused, accepted+late, accepted, late, stale)
	fmt.Fprintf(r.Out, "the first leader held its %d leaderships on %d connection\n\n", locks, sessions)
	fmt.Fprint(r.Out, "eskit, by its own documents: a connection for each leadership, on standbys too; no replica leads for 2 ms\n"+
		"when it is handed over and for about 30 s after a crash; no epoch to refuse late writes by.\n")
	if late == 0 || stale > 0 || steps != accepted || sessions != 1 || locks != jobs {
		return fmt.Errorf("that does not add up: %d steps done of %d accepted, %d refused, %d stale; %d leaderships on %d connections",
			steps, accepted, late, stale, locks, sessions)
	}
	return nil
}

// leaders is how many jobs each replica leads: jobs that it made steps of under their
// newest epoch, a few by now, the last of them a moment ago.
func (r *run) leaders(ctx context.Context) (map[string]int, error) {
	rows, err := r.Pool.Query(ctx, `
		SELECT replica, count(*) FROM (
			SELECT min(replica) AS replica FROM step JOIN outside USING (job, epoch)
			GROUP BY job HAVING count(*) >= 50 AND max(at) > clock_timestamp() - interval '500 ms') led
		GROUP BY replica`)
	if err != nil {
		return nil, err
	}
	leaders := map[string]int{}
	var replica string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&replica, &n}, func() error {
		leaders[replica] = n
		return nil
	})
	return leaders, err
}

// led waits until every job is led, and none by the replica that left, and returns the leaders.
func (r *run) led(ctx context.Context, left string) (leaders map[string]int, err error) {
	err = stage.Until(ctx, "every job is led", func() (_ bool, err error) {
		leaders, err = r.leaders(ctx)
		led := 0
		for _, n := range leaders {
			led += n
		}
		return led == jobs && leaders[left] == 0, err
	})
	return leaders, err
}

// pass takes the leader of the most jobs out with fault, and waits until others lead.
func (r *run) pass(ctx context.Context, what string, fault func(string) error) (name string, err error) {
	leaders, err := r.led(ctx, "")
	if err != nil {
		return "", err
	}
	for leader, n := range leaders {
		if n > leaders[name] {
			name = leader
		}
	}
	if err := fault(name); err != nil {
		return "", err
	}
	if leaders, err = r.led(ctx, name); err != nil {
		return "", err
	}
	return name, r.tell(ctx, name+" "+what, name, leaders)
}

// refused says which writes of the replica were refused when it went on.
func (r *run) refused(ctx context.Context, name string) (string, error) {
	var lines []string
	err := stage.Until(ctx, "late writes are refused", func() (bool, error) {
		rows, err := r.Pool.Query(ctx, `
			SELECT DISTINCT ON (job) format('refused: %s wrote for %s with epoch %s (now %s)', replica, job, s.epoch, o.epoch)
			FROM step s JOIN outside o USING (job) WHERE NOT accepted AND replica = $1 ORDER BY job, seq`, name)
		if err == nil {
			lines, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		return len(lines) > 0, err
	})
	return strings.Join(lines, "\n"), err
}

// tell prints who leads, and for how long no replica led after the last step of the replica
// that left: the longest of its jobs.
func (r *run) tell(ctx context.Context, what, left string, leaders map[string]int) error {
	gap := ""
	if left != "" {
		var d time.Duration
		err := r.Pool.QueryRow(ctx, `
			SELECT max(first - last) FROM (
				SELECT job, max(at) AS last, (SELECT min(at) FROM step n WHERE n.job = o.job AND n.epoch > max(o.epoch)) AS first
				FROM step o WHERE replica = $1 AND accepted GROUP BY job) gaps`, left).Scan(&d)
		if err != nil {
			return err
		}
		gap = fmt.Sprintf("%d ms", d.Milliseconds())
	}
	fmt.Fprintf(r.Out, "%-42s %10s   %s\n", what, gap, stage.Shares(leaders))
	return nil
}

// connections counts the connections of the replica that leads which hold its
// leaderships, and the leaderships.
func (r *run) connections(ctx context.Context) (sessions, leaderships int, err error) {
	keys := []int64{leasepg.LockKey("mailer"), leasepg.LockKey("sweeper"), leasepg.LockKey("exporter"), leasepg.LockKey("biller"), leasepg.LockKey("indexer")}
	err = r.Pool.QueryRow(ctx, `
		SELECT count(DISTINCT l.pid), count(*)
		FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE l.locktype = 'advisory' AND l.granted AND a.application_name = 'replica-1'
		AND (l.classid::bigint << 32 | l.objid::bigint) = ANY ($1)`, keys).Scan(&sessions, &leaderships)
	return sessions, leaderships, err
}
