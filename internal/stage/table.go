package stage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// Owned is how many of a consumer's resources each replica owns. A replica
// that was killed has no name any more.
func (s *Show) Owned(ctx context.Context, consumer string) (map[string]int, error) {
	members, err := s.operator.Members(ctx, consumer)
	owned := map[string]int{}
	for _, m := range members {
		owned[s.Fleet.Name(m.PID)] += m.Owned
	}
	return owned, err
}

// Shares tells how many each replica has, like "replica-1 3, replica-2 2".
func Shares(of map[string]int) string {
	var shares []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		shares = append(shares, fmt.Sprintf("%s %d", name, of[name]))
	}
	return strings.Join(shares, ", ")
}

// Status is what the backend knows of a consumer.
func (s *Show) Status(ctx context.Context, consumer string) (operate.ConsumerStatus, error) {
	all, err := s.operator.Status(ctx)
	for _, status := range all {
		if status.Consumer == consumer {
			return status, err
		}
	}
	return operate.ConsumerStatus{}, err
}

// Table has a line for each event of a run: how long it took, and how the consumer's
// resources are shared out by then.
type Table struct {
	*Show
	Consumer string
	Replicas []string                               // a column for each
	Width    int                                    // of the column that names the events
	Done     string                                 // heading of the last column
	Count    func(ctx context.Context) (int, error) // its figure
}

// Head prints the headings.
func (t *Table) Head() {
	fmt.Fprintf(t.Out, "%8s  %-*s", "took", t.Width, "until")
	for _, name := range t.Replicas {
		fmt.Fprintf(t.Out, " %9s", name)
	}
	fmt.Fprintf(t.Out, " %9s  %s\n", "not owned", t.Done)
}

// Until waits until done says so, and prints the line of an event that began then.
func (t *Table) Until(ctx context.Context, began time.Time, event string, done func() (bool, error)) error {
	if err := Until(ctx, event, done); err != nil {
		return err
	}
	took := time.Since(began)
	owned, err := t.Owned(ctx, t.Consumer)
	if err != nil {
		return err
	}
	status, err := t.Status(ctx, t.Consumer)
	if err != nil {
		return err
	}
	n, err := t.Count(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.Out, "%5d ms  %-*s", took.Milliseconds(), t.Width, event)
	running := t.Fleet.Running()
	for _, name := range t.Replicas {
		cell := "-"
		if slices.Contains(running, name) {
			cell = fmt.Sprint(owned[name])
		}
		fmt.Fprintf(t.Out, " %9s", cell)
	}
	fmt.Fprintf(t.Out, " %9d  %*d\n", status.Unowned, len(t.Done), n)
	return nil
}
