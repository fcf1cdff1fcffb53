package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/leaseredis"
	"github.com/leasegen/leasegen/runtime/operate"
)

// status is what leasegen status was asked for.
type status struct {
	consumer        string // "" for all
	members, leases bool
	limit           int
	format          string
	watch           bool
	interval        time.Duration
}

func (s *status) flags(fs *flag.FlagSet) {
	fs.BoolVar(&s.members, "members", false, "list the live sessions of the consumer")
	fs.BoolVar(&s.leases, "leases", false, "list the leases of the consumer, the furthest behind first")
	fs.IntVar(&s.limit, "limit", 50, "how many leases to list")
	fs.StringVar(&s.format, "format", "text", "text or json")
	fs.BoolVar(&s.watch, "watch", false, "show it again and again, until Ctrl-C: on a terminal in place, elsewhere one below the other")
	fs.DurationVar(&s.interval, "interval", 0, "with -watch: how often (default 2s)")
}

func (s *status) lasts() bool { return s.watch }

func (s *status) arguments(rest []string) error {
	switch {
	case len(rest) > 1:
		return usagef("one consumer at a time, not %q", rest)
	case len(rest) == 0 && (s.members || s.leases):
		return usagef("-members and -leases need the name of a consumer")
	case s.limit < 1:
		return usagef("-limit %d is below 1", s.limit)
	case !s.watch && s.interval != 0:
		return usagef("-interval goes with -watch")
	case s.watch && s.interval != 0 && s.interval < leastInterval:
		return usagef("-interval %s is below %s", s.interval, leastInterval)
	}
	if len(rest) == 1 {
		s.consumer = rest[0]
	}
	s.interval = cmp.Or(s.interval, 2*time.Second)
	return checkFormat(s.format)
}

// consumerJSON, memberJSON, leaseJSON and topicJSON are the output of -format json. Fields are
// only ever added; those of durations say that they are in seconds.
type consumerJSON struct {
	Consumer     string       `json:"consumer"`
	Per          string       `json:"per"`
	Lock         string       `json:"lock"`
	Paused       bool         `json:"paused"`
	PausedFor    float64      `json:"paused_seconds,omitempty"`
	Resources    int          `json:"resources"`
	Members      int          `json:"members"`
	Standbys     int          `json:"standbys"`
	Unowned      int          `json:"unowned"`
	LagMax       int64        `json:"lag_max"`
	LagTotal     int64        `json:"lag_total"`
	OldestUnread float64      `json:"oldest_unread_seconds"`
	ParkedKeys   int          `json:"parked_keys"`
	DeadLetters  int          `json:"dead_letters"`
	Note         string       `json:"note,omitempty"`
	Sessions     []memberJSON `json:"sessions,omitempty"`
	Leases       []leaseJSON  `json:"leases,omitempty"`
}

type memberJSON struct {
	Session   string  `json:"session"`
	Host      string  `json:"host"`
	PID       int     `json:"pid"`
	Since     float64 `json:"since_seconds"`
	SinceBeat float64 `json:"since_heartbeat_seconds"`
	TTLLeft   float64 `json:"ttl_remaining_seconds"`
	Owned     int     `json:"owned"`
	FairShare int     `json:"fair_share"`
	Detection string  `json:"detection,omitempty"`
}

type leaseJSON struct {
	Resource  string  `json:"resource"`
	Session   string  `json:"session"`
	Epoch     int64   `json:"epoch"`
	Since     float64 `json:"since_seconds"`
	Lag       int64   `json:"lag"`
	Parked    int     `json:"parked"`
	Suspicion int     `json:"suspicion"`
}

// topicJSON is a topic that no consumer takes messages of.
type topicJSON struct {
	Topic    string `json:"topic"`
	Messages int64  `json:"messages"`
	Key      string `json:"key"`
}

func (s *status) do(ctx context.Context, out *output, on target) error {
	if s.watch {
		return s.watching(ctx, out, on)
	}
	return s.once(ctx, out, on)
}

// once reads what was asked for and prints it.
func (s *status) once(ctx context.Context, w *output, on target) error {
	op := on.Operator
	var consumers []operate.ConsumerStatus
	var err error
	if s.consumer == "" {
		consumers, err = op.Status(ctx)
	} else {
		var one operate.ConsumerStatus
		one, err = known(ctx, op, s.consumer)
		consumers = []operate.ConsumerStatus{one}
	}
	if err != nil {
		return err
	}
	var members []operate.MemberStatus
	var leases []operate.LeaseStatus
	leader := s.consumer != "" && single(consumers[0])
	if s.members || s.leases || leader {
		if members, err = op.Members(ctx, s.consumer); err != nil {
			return err
		}
	}
	if s.leases || leader {
		if leases, err = op.Leases(ctx, s.consumer, s.limit); err != nil {
			return err
		}
	}
	var n notes
	if s.consumer == "" {
		if n, err = notesOf(ctx, op); err != nil {
			return err
		}
	}
	if s.format == "json" {
		return s.json(w, consumers, members, leases, n)
	}
	switch {
	case len(consumers) == 0:
		_, err = fmt.Fprintln(w, "no consumer has run on this database yet")
	case s.members && s.leases:
		if err = membersTable(members).print(w); err == nil {
			fmt.Fprintln(w)
			err = s.printLeases(w, consumers[0], members, leases)
		}
	case s.members:
		err = membersTable(members).print(w)
	case s.leases:
		err = s.printLeases(w, consumers[0], members, leases)
	default:
		if err = consumersTable(consumers).print(w); err == nil && leader {
			err = printLeader(w, members, leases)
		}
	}
	for _, c := range consumers {
		if err == nil && c.Paused {
			resume := on.command("resume %s", c.Consumer)
			err = w.alarm("%s: %s", named(c.Consumer), hint("PAUSED "+age(c.PausedFor)+" ago, its messages wait; let it go on", resume))
		}
		if err == nil && c.Note != "" {
			err = w.alarm("%s: %s", named(c.Consumer), printable(c.Note, 1000))
		}
	}
	if err == nil && !s.members && !s.leases {
		err = on.printNeeds(w, consumers)
	}
	if err == nil {
		err = n.print(w)
	}
	return err
}

// notes are what a server keeps that no consumer will free.
type notes struct {
	unmatched []leaseredis.UnmatchedTopic
	// transaction keeps the log from being shortened, since it has been open for so long.
	transaction string
	open        time.Duration
}

func notesOf(ctx context.Context, op operate.Operator) (n notes, err error) {
	switch be := op.(type) {
	case *leaseredis.Backend:
		n.unmatched, err = be.UnmatchedTopics(ctx)
	case *leasepg.Backend:
		n.transaction, n.open, err = be.HeldBack(ctx)
	}
	return n, err
}

func (n notes) print(w *output) error {
	if n.transaction != "" {
		return w.alarm("the log cannot be shortened: %s is open for %s; commit it or roll it back", printable(n.transaction, 300), age(n.open))
	}
	if len(n.unmatched) > 0 {
		return printUnmatched(w, n.unmatched)
	}
	return nil
}

// single reports that a consumer has one owner, its leader.
func single(c operate.ConsumerStatus) bool {
	return c.Per == lease.PerGroup.String() || c.Per == lease.PerCluster.String()
}

func consumersTable(consumers []operate.ConsumerStatus) *table {
	t := newTable("=consumer", "?per", "?lock", "?>resources", "?>members", "?>standbys", ">unowned", ">lag(max)", "oldest unread",
		">parked keys", ">dead letters")
	for _, c := range consumers {
		name := named(c.Consumer)
		if c.Paused {
			name += " PAUSED"
		}
		t.add(mark(name, c.Paused), printable(c.Per, 20), printable(c.Lock, 20), number(c.Resources), number(c.Members), number(c.Standbys),
			mark(number(c.Unowned), c.Unowned > 0), number(c.LagMax), ageOr(c.OldestUnread),
			mark(number(c.ParkedKeys), c.ParkedKeys > 0), mark(number(c.DeadLetters), c.DeadLetters > 0))
	}
	return t
}

// printLeader says who leads a consumer that has one owner.
func printLeader(w *output, members []operate.MemberStatus, leases []operate.LeaseStatus) error {
	if len(leases) == 0 || leases[0].Session == "" {
		return w.alarm("no leader")
	}
	l := leases[0]
	_, err := fmt.Fprintf(w, "leader %s for %s, epoch %d\n", w.paint(ownerAmong(members)(l.Session)), age(l.Since), l.Epoch)
	return err
}

// printUnmatched says what takes memory and waits for a consumer that may never come.
func printUnmatched(w *output, topics []leaseredis.UnmatchedTopic) error {
	const shown = 3
	var names []string
	n := int64(0)
	for _, t := range topics {
		n += t.Messages
		if len(names) < shown {
			names = append(names, fmt.Sprintf("%s (key %s)", printable(t.Topic, 80), printable(t.Key, 120)))
		}
	}
	more := ""
	if len(topics) > shown {
		more = ", …"
	}
	return w.alarm("no consumer takes %s of %s: %s%s", plural(n, "message"), plural(len(topics), "topic"), strings.Join(names, ", "), more)
}

// ownerAmong names the process of a session, if it is one of the members, which are alive.
func ownerAmong(members []operate.MemberStatus) func(session string) string {
	alive := map[string]string{"": "-"}
	for _, m := range members {
		alive[m.Session] = process(m)
	}
	return func(session string) string { return cmp.Or(alive[session], mark(short(session)+" (dead)", true)) }
}

// ageOr is for durations of which 0 means none.
func ageOr(d time.Duration) string {
	if d <= 0 {
		return "-"
	}
	return age(d)
}

func membersTable(members []operate.MemberStatus) *table {
	t := newTable("session", "host:pid", "?since", "heartbeat", ">owns", "?>target")
	tells := slices.ContainsFunc(members, func(m operate.MemberStatus) bool { return m.Detection != "" })
	if tells {
		t.titles = append(t.titles, "?end found by")
	}
	for _, m := range members {
		cells := []string{short(m.Session), process(m), age(m.Since), age(m.SinceBeat) + " ago", number(m.Owned), number(m.FairShare)}
		if tells {
			cells = append(cells, cmp.Or(m.Detection, "-"))
		}
		t.add(cells...)
	}
	return t
}

func (s *status) printLeases(w *output, c operate.ConsumerStatus, members []operate.MemberStatus, leases []operate.LeaseStatus) error {
	owner := ownerAmong(members)
	t := newTable("=resource", "owner", "?>epoch", "?since", ">lag", ">parked", "?>suspicion")
	for _, l := range leases {
		since := "-"
		if l.Session != "" {
			since = age(l.Since)
		}
		t.add(printable(l.Resource, 80), owner(l.Session), fmt.Sprint(l.Epoch), since, number(l.Lag), mark(number(l.Parked), l.Parked > 0), mark(number(l.Suspicion), l.Suspicion > 0))
	}
	if err := t.print(w); err != nil {
		return err
	}
	if more := c.Resources - len(leases); more > 0 && len(leases) == s.limit {
		_, err := fmt.Fprintf(w, "%s more; -limit n shows n\n", number(more))
		return err
	}
	return nil
}

func (s *status) json(w io.Writer, consumers []operate.ConsumerStatus, members []operate.MemberStatus, leases []operate.LeaseStatus, n notes) error {
	out := make([]consumerJSON, len(consumers))
	for i, c := range consumers {
		out[i] = consumerJSON{
			Consumer: c.Consumer, Per: c.Per, Lock: c.Lock, Paused: c.Paused, PausedFor: c.PausedFor.Seconds(), Resources: c.Resources, Members: c.Members, Standbys: c.Standbys,
			Unowned: c.Unowned, LagMax: c.LagMax, LagTotal: c.LagTotal, OldestUnread: c.OldestUnread.Seconds(),
			ParkedKeys: c.ParkedKeys, DeadLetters: c.DeadLetters, Note: c.Note,
		}
		for _, l := range leases {
			out[i].Leases = append(out[i].Leases, leaseJSON{
				Resource: l.Resource, Session: l.Session, Epoch: l.Epoch, Since: l.Since.Seconds(),
				Lag: l.Lag, Parked: l.Parked, Suspicion: l.Suspicion,
			})
		}
		if !s.members {
			continue
		}
		for _, m := range members {
			out[i].Sessions = append(out[i].Sessions, memberJSON{
				Session: m.Session, Host: m.Host, PID: m.PID, Since: m.Since.Seconds(), SinceBeat: m.SinceBeat.Seconds(),
				TTLLeft: m.TTLRemaining.Seconds(), Owned: m.Owned, FairShare: m.FairShare, Detection: m.Detection,
			})
		}
	}
	all := map[string]any{"consumers": out}
	if len(n.unmatched) > 0 {
		topics := make([]topicJSON, len(n.unmatched))
		for i, t := range n.unmatched {
			topics[i] = topicJSON(t)
		}
		all["unmatched_topics"] = topics
	}
	if n.transaction != "" {
		all["held_back"] = map[string]any{"transaction": n.transaction, "open_seconds": n.open.Seconds()}
	}
	return printJSON(w, all)
}

// short is the part of a session's id that is enough to tell it from others.
func short(session string) string { return printable(session, 8) }

func process(m operate.MemberStatus) string {
	return fmt.Sprintf("%s:%d", printable(m.Host, 60), m.PID)
}
