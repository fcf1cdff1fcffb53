package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/stage"
)

// play lets the leadership change hands in three ways.
func (r *run) play(ctx context.Context) error {
	fmt.Fprintf(r.out, "%-42s %10s   %s\n", "", "nobody led", "who leads how many jobs")
	for _, name := range []string{"replica-1", "replica-2", "replica-3"} {
		if err := r.Fleet.Replica(name); err != nil {
			return err
		}
		if err := r.led(ctx, func(string) bool { return true }); err != nil { // replica-1 is to be first
			return err
		}
	}
	if err := r.tell(ctx, "three replicas start", ""); err != nil {
		return err
	}
	sessions, locks, err := r.connections(ctx)
	if err != nil {
		return err
	}

	if err := r.pass(ctx, "is told to stop (SIGTERM)", r.Fleet.Stop); err != nil {
		return err
	}
	if err := r.pass(ctx, "is killed (SIGKILL)", r.Fleet.Kill); err != nil {
		return err
	}
	refused, err := r.freeze(ctx)
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
	fmt.Fprintf(r.out, "\n%s\n\n%d steps = accepted %d + refused %d; accepted of a leader of the past: %d\n", refused, accepted+late, accepted, late, stale)
	fmt.Fprintf(r.out, "the first leader held its %d leaderships on %d connection\n\n", locks, sessions)
	fmt.Fprint(r.out, "eskit, by its own documents: a connection for each leadership, on standbys too; nobody leads for 2 ms\n"+
		"when it is handed over and for about 30 s after a crash; no epoch to refuse late writes by.\n")
	if late == 0 || stale > 0 || steps != accepted || sessions != 1 || locks != jobs {
		return fmt.Errorf("that does not add up: %d steps done of %d accepted, %d refused, %d stale; %d leaderships on %d connections",
			steps, accepted, late, stale, locks, sessions)
	}
	return nil
}

// leaders is who leads each job: who made steps under its newest epoch, a few by now, the
// last of them a moment ago.
func (r *run) leaders(ctx context.Context) (map[string]string, error) {
	leaders := map[string]string{}
	rows, err := r.Pool.Query(ctx, `
		SELECT job, min(replica) FROM step JOIN outside USING (job, epoch)
		GROUP BY job HAVING count(*) >= 50 AND max(at) > clock_timestamp() - interval '500 ms'`)
	if err != nil {
		return nil, err
	}
	var job, replica string
	_, err = pgx.ForEachRow(rows, []any{&job, &replica}, func() error {
		leaders[job] = replica
		return nil
	})
	return leaders, err
}

// led waits until every job is led by a replica that is fine with ok.
func (r *run) led(ctx context.Context, ok func(string) bool) error {
	return stage.Until(ctx, "every job is led", func() (bool, error) {
		leaders, err := r.leaders(ctx)
		for _, name := range leaders {
			if !ok(name) {
				return false, err
			}
		}
		return len(leaders) == jobs, err
	})
}

// foremost is the replica that leads the most jobs.
func (r *run) foremost(ctx context.Context) (string, error) {
	leaders, err := r.leaders(ctx)
	most, names := map[string]int{}, []string{}
	for _, name := range leaders {
		most[name]++
		names = append(names, name)
	}
	if len(names) == 0 {
		return "", errors.Join(err, errors.New("no job is led"))
	}
	return slices.MaxFunc(names, func(a, b string) int { return most[a] - most[b] }), err
}

// pass ends the foremost leader with fault, waits until others lead, and starts it again.
func (r *run) pass(ctx context.Context, what string, fault func(string) error) error {
	name, err := r.foremost(ctx)
	if err != nil {
		return err
	}
	if err := fault(name); err != nil {
		return err
	}
	if err := r.led(ctx, func(n string) bool { return n != name }); err != nil {
		return err
	}
	if err := r.tell(ctx, name+" "+what, name); err != nil {
		return err
	}
	return r.Fleet.Replica(name)
}

// freeze freezes the foremost leader until others lead, and says which of its writes
// were refused when it went on.
func (r *run) freeze(ctx context.Context) (string, error) {
	name, err := r.foremost(ctx)
	if err != nil {
		return "", err
	}
	if err := r.Fleet.Freeze(name); err != nil {
		return "", err
	}
	if err := r.led(ctx, func(n string) bool { return n != name }); err != nil {
		return "", err
	}
	if err := r.tell(ctx, name+" is frozen (SIGSTOP)", name); err != nil {
		return "", err
	}
	if err := r.Fleet.Thaw(name); err != nil {
		return "", err
	}
	var lines []string
	err = stage.Until(ctx, "late writes are refused", func() (bool, error) {
		lines = nil
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

// tell prints who leads, and for how long nobody did after the last step of the replica
// that left: the longest of its jobs.
func (r *run) tell(ctx context.Context, what, left string) error {
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
	leaders, err := r.leaders(ctx)
	if err != nil {
		return err
	}
	led := map[string]int{}
	for _, name := range leaders {
		led[name]++
	}
	var who []string
	for name, n := range led {
		who = append(who, fmt.Sprintf("%s %d", name, n))
	}
	slices.Sort(who)
	fmt.Fprintf(r.out, "%-42s %10s   %s\n", what, gap, strings.Join(who, ", "))
	return nil
}

// connections counts the connections of the replica that leads which hold its
// leaderships, and the leaderships.
func (r *run) connections(ctx context.Context) (sessions, leaderships int, err error) {
	err = r.Pool.QueryRow(ctx, `
		SELECT count(DISTINCT l.pid), count(*)
		FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE l.locktype = 'advisory' AND l.granted AND a.application_name = 'replica-1'
		AND (l.classid::bigint << 32 | l.objid::bigint) = ANY ($1)`, r.keys()).Scan(&sessions, &leaderships)
	return sessions, leaderships, err
}
