package redisproof

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// history is what the sink has written down, judged line by line in its order.
type history struct {
	site   *site
	read   int
	topics map[string]*topicHistory
	begun  map[string]int64          // commit and topic: the highest epoch heard of when it began
	marks  map[string]map[int64]bool // topic and message: the epochs of owners that marked it before they handled it

	effects, twice, undone, stale, disorder, doubled, refused, commits int64
	odd                                                                []string // the first lines that are wrong

	deadAt   time.Time       // when dead letters were looked at
	deadTook time.Duration   // to read them
	dead     map[string]bool // topic and number
	badly    []string        // dead letters that should not be
	blamed   int             // dead letters of messages that their owners died over
}

// topicHistory is how far the history of a topic has got.
type topicHistory struct {
	epoch     int64            // the highest heard of
	first     map[int64]string // by number: the id under which it was first delivered
	highest   int64            // number of all that were delivered
	firstLane map[int64]int64  // lane: the highest number first delivered
	nowLane   map[int64]int64  // lane: the last number delivered in this epoch
	now       map[int64]bool   // numbers delivered in this epoch
	nowEpoch  int64

	committed, committedBefore int64 // by the epoch below and by those before it: the highest id
	committedEpoch             int64
}

func newHistory(s *site) *history {
	return &history{site: s, topics: map[string]*topicHistory{}, begun: map[string]int64{}, marks: map[string]map[int64]bool{}, dead: map[string]bool{}}
}

// catchUp reads what is new.
func (h *history) catchUp(t *testing.T) {
	t.Helper()
	for {
		lines, err := h.site.sink.read(t.Context(), h.read)
		if err != nil {
			t.Fatalf("read the history: %v", err)
		}
		if len(lines) == 0 {
			return
		}
		for _, l := range lines {
			h.judge(t, l)
		}
		h.read += len(lines)
	}
}

func (h *history) topic(name string) *topicHistory {
	th := h.topics[name]
	if th == nil {
		th = &topicHistory{first: map[int64]string{}, firstLane: map[int64]int64{}, nowLane: map[int64]int64{}, now: map[int64]bool{}}
		h.topics[name] = th
	}
	return th
}

func (h *history) judge(t *testing.T, l string) {
	t.Helper()
	w := strings.Fields(l)
	number := func(i int) int64 {
		n, err := strconv.ParseInt(w[i], 10, 64)
		if err != nil {
			t.Fatalf("the history has a line that nobody writes: %q", l)
		}
		return n
	}
	wrong := func(count *int64, why string) {
		*count++
		if len(h.odd) < 20 {
			h.odd = append(h.odd, why+": "+l)
		}
	}
	switch w[0] {
	case "refused":
		h.refused++
	case "effect": // topic number epoch id replica
		h.effects++
		h.effect(w[1], number(2), number(3), w[4], wrong)
	case "begin": // commit topic epoch mark, if it has one
		h.begun[w[1]+" "+w[2]] = h.topic(w[2]).epoch
		if len(w) > 4 {
			key := w[2] + " " + w[4]
			if h.marks[key] == nil {
				h.marks[key] = map[int64]bool{}
			}
			h.marks[key][number(3)] = true
		}
	case "commit": // commit topic epoch cursor
		h.commits++
		th, epoch := h.topic(w[2]), number(3)
		if epoch < h.begun[w[1]+" "+w[2]] {
			wrong(&h.stale, "commit of a former owner")
			return
		}
		th.epoch = max(th.epoch, epoch)
		if epoch > th.committedEpoch {
			th.committedBefore, th.committed, th.committedEpoch = max(th.committedBefore, th.committed), 0, epoch
		}
		if w[4] != "-" && epoch == th.committedEpoch {
			th.committed = max(th.committed, number(4))
		}
	default:
		t.Fatalf("the history has a line that nobody writes: %q", l)
	}
}

func (h *history) effect(topic string, seq, epoch int64, id string, wrong func(*int64, string)) {
	th := h.topic(topic)
	if epoch < th.epoch {
		// The sink refuses what is older than an effect, so it is a commit that went before.
		h.undoneOrStale(th, epoch, wrong)
	}
	th.epoch = max(th.epoch, epoch)
	if epoch != th.nowEpoch {
		th.nowEpoch, th.nowLane, th.now = epoch, map[int64]int64{}, map[int64]bool{}
	}
	lane := int64(0)
	if h.site.lanes {
		lane = seq % lanes
	}
	before, known := th.first[seq]
	switch {
	case known && before != id:
		wrong(&h.doubled, "published twice")
	case th.now[seq]:
		wrong(&h.twice, "twice in one epoch")
	case h.site.isUnsure(topic, seq): // it may have been published late
	case seq < th.nowLane[lane]:
		wrong(&h.disorder, "out of order within an epoch")
	case !known && seq < th.firstLane[lane]:
		wrong(&h.disorder, "out of order")
	}
	if !h.site.isUnsure(topic, seq) {
		th.nowLane[lane] = max(th.nowLane[lane], seq)
		th.firstLane[lane] = max(th.firstLane[lane], seq)
	}
	if !known {
		th.first[seq] = id
	}
	th.now[seq] = true
	th.highest = max(th.highest, seq)
	// Parked messages are behind the cursor and come again, rightly.
	passed := th.committedBefore
	if epoch > th.committedEpoch {
		passed = max(passed, th.committed)
	}
	if at := position(id); known && !h.site.lanes && at <= passed {
		wrong(&h.undone, fmt.Sprintf("committed up to %d", passed))
	}
}

// undoneOrStale: an effect of an owner after a later one has committed. At a sink that
// had not heard of the later epoch that is allowed: its call was under way.
func (h *history) undoneOrStale(th *topicHistory, epoch int64, wrong func(*int64, string)) {
	if epoch < th.nowEpoch {
		wrong(&h.stale, "effect of a former owner")
	}
}

// position is the number in a message's id that cursors compare.
func position(id string) int64 {
	digits, _, _ := strings.Cut(id, "-")
	n, _ := strconv.ParseInt(digits, 10, 64)
	return n
}

// lookAtDead reads the dead letters, now and then: for a tenth of the time at most, however many there are.
func (h *history) lookAtDead(t *testing.T) {
	t.Helper()
	if time.Since(h.deadAt) >= max(300*time.Millisecond, 9*h.deadTook) {
		_ = h.readDead(t) // the server may be down; the next look will tell, or the last
	}
}

func (h *history) readDead(t *testing.T) error {
	t.Helper()
	began := time.Now()
	letters, err := h.site.be.DeadLetters(t.Context(), operate.DeadLetterFilter{Consumer: consumerName})
	if err != nil {
		return err
	}
	h.deadAt, h.deadTook = time.Now(), time.Since(began)
	h.catchUp(t) // marks come before the letters that they lead to
	h.judgeDead(letters)
	return nil
}

// deaths is how many owners die over a message, one after the other, before it is blamed.
const deaths = 3

// judgeDead checks every dead letter. A poisoned message becomes one after its last attempt, and has no effect. Any other message
// becomes one only when its owners died over it, and each of them had marked it before.
func (h *history) judgeDead(letters []operate.DeadLetterInfo) {
	h.dead, h.badly, h.blamed = map[string]bool{}, nil, 0
	seen := map[string]bool{}
	for _, l := range letters {
		seq, err := strconv.ParseInt(l.Headers["seq"], 10, 64)
		key := fmt.Sprint(l.Topic, " ", seq)
		handled := h.topics[l.Topic] != nil && h.topics[l.Topic].first[seq] != ""
		right, died := h.site.lanes && poison(seq) && l.Attempts == attempts && !handled, 0
		if n, _ := fmt.Sscanf(l.Reason, "the process died %d times", &died); n == 1 {
			h.blamed++
			right = died >= deaths && len(h.marks[l.Topic+" "+l.MessageID]) >= deaths // with an effect, if they died before the commit
		}
		if err != nil || !right || seen[key] {
			h.badly = append(h.badly, fmt.Sprintf("dead letter that should not be: %s %d after %d attempts (%s)", l.Topic, seq, l.Attempts, l.Reason))
		}
		seen[key] = true
		if !handled {
			h.dead[key] = true
		}
	}
}

// verdict is what the history shows.
type verdict struct {
	published, unsure, effects, dead, badly, lost, twice, again, undone, stale, disorder, doubled, refused int64
}

// violations counts what must not be.
func (v verdict) violations(s *site) int64 {
	n := v.twice + v.disorder + v.doubled + v.badly
	if !s.losesMessages {
		n += v.lost + v.stale
	}
	if !s.losesProgress && !s.losesMessages {
		n += v.undone
	}
	return n
}

func (h *history) verdict(t *testing.T) verdict {
	t.Helper()
	v := verdict{badly: int64(len(h.badly)), effects: h.effects, twice: h.twice, undone: h.undone, stale: h.stale, disorder: h.disorder, doubled: h.doubled, refused: h.refused}
	v.published, v.unsure = h.site.totals()
	last := h.site.lastOf()
	var handled, distinct int64
	for name, th := range h.topics {
		distinct += int64(len(th.first))
		for seq := range th.first {
			if seq < 1 || seq > last[name] {
				t.Fatalf("message %d of %s was handled, and nobody published it", seq, name)
			}
			if !h.site.isUnsure(name, seq) {
				handled++
			}
		}
	}
	for key := range h.dead {
		topic, digits, _ := strings.Cut(key, " ")
		if seq, _ := strconv.ParseInt(digits, 10, 64); !h.site.isUnsure(topic, seq) {
			v.dead++
		}
	}
	v.lost = v.published - handled - v.dead
	v.again = v.effects - distinct - v.twice
	return v
}

// examples shows the first lines, and the first dead letters, that are wrong.
func (h *history) examples() string {
	return strings.Join(slices.Concat(h.odd, h.badly[:min(len(h.badly), 20)]), "\n")
}

// row is one line of the closing table.
type row struct {
	fault            string
	rounds           int
	takeovers, fence int
	took             time.Duration
	verdict
}

func printTable(t *testing.T, rows ...row) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-34s %6s %6s %9s %6s %8s %5s %5s %5s %6s %6s %6s %6s %8s %8s %10s %8s\n", "fault", "rounds", "took", "published", "unsure", "effects",
		"dead", "badly", "lost", "twice", "again", "undone", "stale", "disorder", "doubled", "takeovers", "refused")
	for _, r := range rows {
		fmt.Fprintf(&b, "%-34s %6d %6s %9d %6d %8d %5d %5d %5d %6d %6d %6d %6d %8d %8d %10d %8d\n", r.fault, r.rounds, r.took.Round(time.Second),
			r.published, r.unsure, r.effects, r.dead, r.badly, r.lost, r.twice, r.again, r.undone, r.stale, r.disorder, r.doubled, r.takeovers, int64(r.fence)+r.refused)
	}
	t.Log(b.String())
}
