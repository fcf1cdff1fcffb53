package leasepg

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

// Versions of a consumer with other patterns may run side by side while it is deployed. The
// owner of a resource moves the cursor for all of them, so it reads by the patterns of all members:
// those in leasegen.consumer, where Register adds and housekeeping drops them.
//
// A statement that reads the log names in its first row the patterns that count in its snapshot,
// and its answer is only used if it was asked with these. A message that was published after a
// member had registered can only be seen by a snapshot that shows that member's patterns too; so
// no cursor passes it for want of them, whichever requests were under way in between.

// patternsKept is how long a pattern counts beyond the last session that had it: a process that
// crashed has come back by then. It is less than sessions are kept (forgetAfter).
const patternsKept = 10 * time.Minute

// patternTries is how often a read is repeated because the patterns changed under it.
const patternTries = 10

var errPatterns = errors.New("the patterns of the consumer's members change faster than its messages can be read; trying again")

// patterns are the topics that a consumer was last seen to read, by its name.
type patterns struct{ byConsumer sync.Map }

// reading is what a consumer reads.
type reading struct {
	stored string // as the database said it
	topics []string
	likes  []string
	every  bool
}

// of returns what to read for a consumer: as far as is known, and what the request asks for.
func (p *patterns) of(c backend.ConsumerInfo) *reading {
	if v, ok := p.byConsumer.Load(c.Name); ok {
		r := v.(*reading)
		if !slices.ContainsFunc(c.Topics, func(t string) bool { return !slices.Contains(r.topics, t) }) {
			return r
		}
	}
	own := sorted(c.Topics)
	return newReading(asStored(own), own)
}

func newReading(stored string, topics []string) *reading {
	return &reading{stored: stored, topics: topics, likes: likes(topics), every: slices.Contains(topics, "*")}
}

// sorted returns patterns as they are stored.
func sorted(patterns []string) []string {
	return append([]string{}, slices.Compact(slices.Sorted(slices.Values(patterns)))...)
}

// asStored is how the database writes patterns, mostly: if not, a read is made twice.
func asStored(patterns []string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(patterns) != nil {
		return ""
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// holds reports that an answer which was asked for with r leaves no message out that counts,
// which stored says; that is empty when no process has registered.
func (r *reading) holds(stored string) bool { return r.every || stored == "" || stored == r.stored }

// learn remembers for the next try what a consumer reads.
func (p *patterns) learn(c backend.ConsumerInfo, stored string) error {
	var topics []string
	if err := json.Unmarshal([]byte(stored), &topics); err != nil {
		return err
	}
	p.byConsumer.Store(c.Name, newReading(stored, sorted(append(topics, c.Topics...))))
	return nil
}

// reads repeats a read until it was made with the patterns that count in its snapshot.
func (p *patterns) reads(c backend.ConsumerInfo, read func(*reading) (stored string, err error)) error {
	for range patternTries {
		r := p.of(c)
		stored, err := read(r)
		if err != nil || r.holds(stored) {
			return err
		}
		if err := p.learn(c, stored); err != nil {
			return err
		}
	}
	return errPatterns
}

// narrow drops the patterns that no member of a consumer has had for a while.
func (k *keeper) narrow(ctx context.Context, c backend.ConsumerInfo) error {
	if len(c.Topics) == 0 || c.Source != nil {
		return nil
	}
	p := leasedb.UnwantedTopicsParams{Consumer: c.Name, Kept: patternsKept}
	if unwanted, err := k.queries(k.pool).UnwantedTopics(ctx, p); err != nil || len(unwanted) == 0 {
		return err
	}
	return pgx.BeginFunc(ctx, k.pool, func(tx pgx.Tx) error {
		q := k.queries(tx)
		if closed, err := q.TryCloseTopics(ctx, c.Name); err != nil || !closed {
			return err
		}
		unwanted, err := q.UnwantedTopics(ctx, p) // by now
		if err != nil || len(unwanted) == 0 {
			return err
		}
		k.log.Info("leasepg: no process has had these topic patterns for a while: the consumer reads them no more",
			"consumer", c.Name, "patterns", unwanted, "for", patternsKept)
		return q.NarrowConsumer(ctx, leasedb.NarrowConsumerParams{Consumer: c.Name, Topics: unwanted, Likes: likes(unwanted)})
	})
}
