package leasepg

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
	"github.com/leasegen/leasegen/runtime/leasepg/pgtable"
)

// A cursor lists the transactions that may still bring it something. Most of them never wrote a
// message, and those that did wrote it to a few topics: what a transaction that has ended wrote is
// looked up once for all cursors of a process, and from then on it is only looked for where it is.
// So lateness costs what there is of late messages, whatever the number of topics is.

const (
	fewPairs  = 64   // of a resource and a transaction, that are looked for without asking first
	mostPairs = 2000 // in one read; resources beyond wait for the next one
	askedXids = 300  // transactions in one question
	readNames = 64   // messages of a transaction that the answer is made of
	keptXids  = 50_000

	// farApart is how many transactions may have begun between a cursor's snapshot and its xid, before
	// what was late is looked for among all messages up to the position. So many begin only
	// when the server stood still for long in the middle of a read.
	farApart = 20_000
)

// errFar: see farApart.
var errFar = errors.New("the server stood still in the middle of a read: more transactions than can be listed may have written late messages")

// wrote is what a transaction that has ended wrote.
type wrote struct {
	names    []string // topics, slots or keys
	complete bool
}

func (w *wrote) may(name string) bool { return !w.complete || slices.Contains(w.names, name) }

// ledger remembers, for one kind of resource or one table, what transactions wrote. It keeps two
// generations, so that it is bounded, and what is in use stays.
type ledger struct {
	mu          sync.Mutex
	history     string // an xid means something only in this one
	now, before map[uint64]*wrote
}

// known returns what is known of transactions.
func (l *ledger) known(history string, xids []uint64) map[uint64]*wrote {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[uint64]*wrote, len(xids))
	if l.history != history || history == "" {
		return out
	}
	for _, x := range xids {
		w, ok := l.now[x]
		if !ok {
			if w, ok = l.before[x]; ok {
				l.keep(x, w)
			}
		}
		if ok {
			out[x] = w
		}
	}
	return out
}

func (l *ledger) note(history string, found map[uint64]*wrote) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.history != history {
		l.history, l.now, l.before = history, nil, nil
	}
	for x, w := range found {
		l.keep(x, w)
	}
}

func (l *ledger) keep(x uint64, w *wrote) {
	if len(l.now) >= keptXids || l.now == nil {
		l.before, l.now = l.now, map[uint64]*wrote{}
	}
	l.now[x] = w
}

// ledgers are those of a backend, by lease.Per for the log, and by table.
type ledgers struct{ of sync.Map }

func (l *ledgers) get(of any) *ledger {
	v, ok := l.of.Load(of)
	if !ok {
		v, _ = l.of.LoadOrStore(of, &ledger{})
	}
	return v.(*ledger)
}

// forget drops what was learnt: the server may have lost it in a crash.
func (l *ledgers) forget() { l.of.Clear() }

// ask looks up what transactions wrote. Those that have not ended are not in the answer.
type ask func(ctx context.Context, xids []string) (found map[uint64]*wrote, history string, err error)

// question is one resource of a read, and the transactions that may have written late messages to it.
type question struct {
	name    string
	xids    []uint64
	running []uint64 // were when they were asked for
}

// narrow leaves of each question the transactions that may have written there. It asks when there
// is much in question, and then, with apart, tells those apart that are running: most of them will still
// be running when the question is put, and they are in question for nearly everything.
func (l *ledger) narrow(ctx context.Context, history string, questions []question, apart bool, ask ask) error {
	var all []uint64
	for _, q := range questions {
		all = append(all, q.xids...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	answers := l.known(history, all)
	unknown, pairs := sift(all, questions, answers)
	if pairs <= fewPairs {
		return nil
	}
	for some := range slices.Chunk(unknown, askedXids) {
		found, of, err := ask(ctx, xidTexts(some))
		if err != nil {
			return err
		}
		if of != history {
			return nil // the read will tell
		}
		l.note(history, found)
		maps.Copy(answers, found)
	}
	unknown, _ = sift(all, questions, answers)
	if !apart || len(unknown) == 0 {
		return nil
	}
	for i := range questions {
		q := &questions[i]
		q.xids = slices.DeleteFunc(q.xids, func(x uint64) bool {
			_, running := slices.BinarySearch(unknown, x)
			if running {
				q.running = append(q.running, x)
			}
			return running
		})
	}
	return nil
}

// sift drops from questions what is known to be in vain. It returns the transactions of which none
// is known, and how many pairs of a resource and a transaction are left.
func sift(all []uint64, questions []question, answers map[uint64]*wrote) (unknown []uint64, pairs int) {
	for i := range questions {
		q := &questions[i]
		q.xids = slices.DeleteFunc(q.xids, func(x uint64) bool {
			w, ok := answers[x]
			return ok && !w.may(q.name)
		})
		pairs += len(q.xids)
	}
	for _, x := range all {
		if _, ok := answers[x]; !ok {
			unknown = append(unknown, x)
		}
	}
	return unknown, pairs
}

// askLog looks transactions up in the log.
func (rd *reader) askLog(per backend.Per) ask {
	return func(ctx context.Context, xids []string) (map[uint64]*wrote, string, error) {
		var rows []leasedb.WroteRow
		var history string
		err := rd.pipeline(ctx, rd.pool, steady(ctx),
			func(q *leasedb.Queries) (err error) { history, err = q.History(ctx); return err },
			func(q *leasedb.Queries) (err error) {
				rows, err = q.Wrote(ctx, leasedb.WroteParams{Xids: xids, Per: per.String(), Most: readNames, LateFrom: xids[0]})
				return err
			})
		if err != nil {
			return nil, "", err
		}
		found := make(map[uint64]*wrote, len(rows))
		for _, r := range rows {
			x, err := strconv.ParseUint(r.Xid, 10, 64)
			if err != nil {
				return nil, "", err
			}
			found[x] = &wrote{names: r.Names, complete: r.Complete}
		}
		return found, history, nil
	}
}

// askTable looks transactions up in a table, some together: what they wrote counts for each of them.
func (rd *reader) askTable(t *tableSource) ask {
	const together = 30
	return func(ctx context.Context, xids []string) (map[uint64]*wrote, string, error) {
		var (
			now     horizon
			found   = map[uint64]*wrote{}
			queries = []func(pgtable.Querier) error{rd.horizon(ctx, t, &now)}
		)
		for some := range slices.Chunk(xids, together) {
			queries = append(queries, func(db pgtable.Querier) error {
				rows, err := t.News(ctx, db, pgtable.NewsParams{Position: math.MaxInt64, Max: 0, Late: some})
				if err != nil {
					return err
				}
				w, snap := &wrote{complete: true}, ""
				for _, r := range rows {
					if r.Snap != "" {
						snap = r.Snap
					} else if len(w.names) < readNames {
						w.names = append(w.names, r.Resource)
					} else {
						w.complete = false
					}
				}
				for _, text := range some {
					x, err := strconv.ParseUint(text, 10, 64)
					if err != nil {
						return err
					}
					if ended, err := endedIn(snap, text, x); err != nil {
						return err
					} else if ended {
						found[x] = w
					}
				}
				return nil
			})
		}
		err := rd.readTable(ctx, t, queries...)
		return found, now.history, err
	}
}

// endedIn reports whether a snapshot shows that a transaction has ended.
func endedIn(snap, text string, x uint64) (bool, error) {
	max, err := snapshotMax(snap)
	return err == nil && x < max && !slices.Contains(strings.Split(snap[strings.LastIndexByte(snap, ':')+1:], ","), text), err
}

func xidTexts(xids []uint64) []string {
	out := make([]string, len(xids))
	for i, x := range xids {
		out[i] = strconv.FormatUint(x, 10)
	}
	return out
}

// unread is the answer for a resource that was not read this time.
func unread(item backend.FetchItem) backend.Fetched {
	return backend.Fetched{Resource: item.Resource, Next: item.From, More: true, Cut: func(int) backend.Cursor { return item.From }}
}

// pages makes a cursor, for which too many transactions are in question, look for what was late
// among all messages up to its position: those that snap shows.
func (c *cursor) pages(snap string) *cursor {
	next := *c
	next.lateSnap, next.latePos = snap, 0
	return &next
}
