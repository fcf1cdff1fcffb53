package lease

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// A message that this process cannot handle another one may: while a consumer is deployed, its newer
// version publishes and takes kinds and topics that the older one does not know. Such messages
// are set aside without an attempt, for an owner that knows them; for Spec.UnknownWait, as the
// backend measures it, so that handovers and restarts do not begin it anew.

// unknownLooks bound the time between two looks at a message that waits: it is as long as the
// message has waited, so that one owner after the other soon sees what it can handle, and what
// no process can handle costs little.
const (
	unknownLookSoon = time.Second
	unknownLookLate = 15 * time.Second
)

// waitsForVersion is the Park.Error of messages that wait for another version. It is always the same:
// another one would begin their time anew.
const waitsForVersion = "waits for a version of the consumer that takes it"

// foreign reports that a message is of a topic that only another version of the consumer
// reads. The owner of a topic handles it, whatever the patterns.
func (r *runner) foreign(m *backend.Raw) bool {
	return r.info.Per != PerTopic && r.info.Source == nil && len(r.info.Topics) > 0 && !backend.MatchTopic(r.info.Topics, m.Topic)
}

// unknown is what becomes of ms[i], which this process has no handler for.
func (q *sequence) unknown(i int) outcome {
	m, c := &q.ms[i], q.r.c
	var waited time.Duration
	if q.p.parked != nil {
		// Time behind a message that failed, or until a retry, is not a wait for another version. Behind
		// one that no version took in time, it is: a lane of such messages does not wait for each in turn.
		switch m := &q.p.parked[q.at(i)]; {
		case m.Error == waitsForVersion, m.Error == "" && q.afterLate(m.Lane):
			waited = m.Waited
		}
	}
	what := fmt.Sprintf("has no handler for kind %q", m.Kind)
	topic := q.r.foreign(m)
	if topic {
		what = fmt.Sprintf("does not read topic %q", m.Topic)
	}
	left := c.spec.UnknownWait - waited
	if left <= 0 {
		reason := "consumer " + q.r.info.Name + " " + what
		if c.spec.UnknownWait > 0 {
			reason += fmt.Sprintf(", and no replica that does has taken it within %v", c.spec.UnknownWait)
		}
		return outcome{verdict: dead, attempt: m.Attempt, reason: oneLine(reason), late: true}
	}
	o := operate.ObservedUnknown{Consumer: q.r.info.Name, Kind: m.Kind, Wait: c.spec.UnknownWait}
	if topic {
		o.Topic = m.Topic
	}
	if c.strangers.first(o) {
		q.r.log.Warn("messages wait for another version of the consumer: this one "+oneLine(what), "resource", q.h.Resource, "id", m.ID,
			"kind", m.Kind, "dead_letters_after", c.spec.UnknownWait)
		c.observe(o)
	}
	return outcome{
		verdict: parked, lane: q.lane(i), attempt: m.Attempt,
		after:  min(max(waited, unknownLookSoon), unknownLookLate, left),
		reason: waitsForVersion,
	}
}

// afterLate reports that the message before in a parked lane became a dead letter because no
// version took it in time.
func (q *sequence) afterLate(lane string) bool {
	if before, ok := q.late[lane]; ok {
		return before
	}
	_, ok := q.h.late[lane]
	return ok
}

// noteLate notes what became of ms[i] for what comes after it in its parked lane.
func (q *sequence) noteLate(i int) {
	if q.p.parked == nil || !q.out[i].late && len(q.late) == 0 && len(q.h.late) == 0 {
		return
	}
	if q.late == nil {
		q.late = map[string]bool{}
	}
	q.late[q.lane(i)] = q.out[i].late
}

// strangersKept bounds how many kinds and topics are remembered as told of; beyond, the oldest
// are reported again.
const strangersKept = 1000

// strangers are the kinds and topics that messages were reported to wait with.
type strangers struct {
	mu   sync.Mutex
	told []operate.ObservedUnknown
}

// first reports whether o was not reported yet.
func (s *strangers) first(o operate.ObservedUnknown) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.told, o) {
		return false
	}
	if len(s.told) == strangersKept {
		s.told = s.told[1:]
	}
	s.told = append(s.told, o)
	return true
}
