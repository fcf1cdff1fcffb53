package rows

import (
	"cmp"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Operator answers for an operate.Operator whose backend keeps Rows.
type Operator struct{ rows *Rows }

// Operator returns what the rows answer to those who run the backend.
func (r *Rows) Operator() Operator { return Operator{r} }

// Status is Operator.Status, but for Delayed.
func (o Operator) Status() []operate.ConsumerStatus {
	var all []operate.ConsumerStatus
	for _, name := range slices.Sorted(maps.Keys(o.rows.Consumers)) {
		all = append(all, o.status(o.rows.Consumers[name].ConsumerInfo))
		if since := o.rows.Consumers[name].Paused; !since.IsZero() {
			st := &all[len(all)-1]
			st.Paused, st.PausedFor = true, max(o.rows.At.Sub(since), 0)
		}
	}
	return all
}

var errNoConsumer = errors.New("there is no such consumer; the status lists those there are")

func (o Operator) status(c backend.ConsumerInfo) operate.ConsumerStatus {
	st := operate.ConsumerStatus{Consumer: c.Name, Per: c.Per.String(), Lock: c.Lock.String()}
	for _, d := range o.rows.Dead {
		if d.Consumer == c.Name {
			st.DeadLetters++
		}
	}
	for _, v := range o.views(c, "") {
		st.AddLag(v.Lag, v.OldestUnread)
		st.ParkedKeys += v.Lanes
		if o.rows.Leases[c.Name][v.Resource].Idle {
			continue
		}
		if st.Resources++; v.Session == "" {
			st.Unowned++
		}
	}
	for _, m := range o.rows.survey(c.Name).Members {
		if st.Members++; m.Owned == 0 {
			st.Standbys++
		}
	}
	return st
}

// views describes the leases of a consumer, or the one of a resource.
func (o Operator) views(c backend.ConsumerInfo, resource string) (views []backend.LeaseView) {
	for _, l := range o.rows.Of(c.Name) {
		if resource != "" && l.Resource != resource {
			continue
		}
		v := backend.LeaseView{Lanes: len(l.Lanes()), LeaseStatus: operate.LeaseStatus{Resource: l.Resource, Epoch: l.Epoch,
			Parked: len(l.Parked), Suspicion: l.Suspicion}}
		if free, _ := o.rows.Free(l, c.Grace); !free && o.rows.Sessions[l.Session].Live(o.rows.At) {
			v.Session, v.Since = l.Session, o.rows.At.Sub(l.Since)
		}
		if l.Cursor > 0 {
			v.Position = strconv.FormatInt(int64(l.Cursor), 10)
		}
		v.Lag, v.OldestUnread = o.rows.Lag(c, l)
		views = append(views, v)
	}
	return views
}

// Members is Operator.Members.
func (o Operator) Members(consumer string) []operate.MemberStatus {
	survey := o.rows.survey(consumer)
	all := make([]operate.MemberStatus, len(survey.Members))
	for i, m := range survey.Members {
		s := o.rows.Sessions[m.Session]
		all[i] = operate.MemberStatus{Session: s.ID, Host: s.Host, PID: s.PID, Since: o.rows.At.Sub(s.Opened), SinceBeat: o.rows.At.Sub(s.Beat),
			TTLRemaining: s.Expires.Sub(o.rows.At), Owned: m.Owned, FairShare: (survey.Resources + len(all) - 1) / len(all)}
	}
	slices.SortStableFunc(all, func(a, b operate.MemberStatus) int { return cmp.Compare(b.Since, a.Since) })
	return all
}

// Leases is Operator.Leases.
func (o Operator) Leases(consumer string, limit int) []operate.LeaseStatus {
	return backend.LeaseStatuses(o.views(o.rows.info(consumer), ""), limit)
}

// Cursors is Operator.Cursors.
func (o Operator) Cursors(consumer, resource string, limit int) ([]operate.CursorStatus, error) {
	if o.rows.info(consumer).ReadsNothing() {
		return nil, operate.ErrNoCursor
	}
	return backend.CursorStatuses(o.views(o.rows.info(consumer), resource), limit), nil
}

// SetCursor is Operator.SetCursor, in a log whose last message is last. It returns the leases that were moved.
func (o Operator) SetCursor(consumer, resource string, target operate.CursorTarget, last Position) ([]*Lease, error) {
	c := o.rows.info(consumer)
	to, err := int64(0), target.Check()
	switch {
	case err != nil:
		return nil, err
	case o.rows.Consumers[consumer] == nil:
		return nil, errNoConsumer
	case c.ReadsNothing():
		return nil, operate.ErrNoCursor
	case target.Now:
		to = int64(last)
	case target.After != "":
		if to, err = strconv.ParseInt(target.After, 10, 64); err != nil || to < 1 || to > int64(last) {
			return nil, operate.Invalid("%q is not the id of a message; the last one has id %d", target.After, last)
		}
	}
	var moved []*Lease
	for _, l := range o.rows.Of(c.Name) {
		if resource != "" && l.Resource != resource {
			continue
		}
		l.Cursor, l.Mark, l.MarkCount, l.MarkEpoch = Position(to), "", 0, 0
		l.Epoch = max(l.Epoch+1, o.rows.At.UnixMicro())
		if target.Beginning {
			l.Parked = nil
			for id, d := range o.rows.Dead {
				if d.Consumer == c.Name && d.Resource == l.Resource {
					o.rows.saveDead(id, nil)
				}
			}
		}
		o.rows.Drop(c.Name, l)
		moved = append(moved, l)
	}
	return moved, nil
}

// RetryParked is Operator.RetryParked.
func (o Operator) RetryParked(f operate.ParkedFilter) (int, error) {
	all, err := o.parked(f)
	for _, at := range all {
		if at.parked.Due.After(o.rows.At) {
			at.parked.Due = o.rows.At
		}
		o.rows.Save(f.Consumer, at.lease)
		o.rows.Replays++
	}
	return len(all), err
}

// Parked is Operator.Parked.
func (o Operator) Parked(f operate.ParkedFilter) (all []operate.ParkedInfo, err error) {
	found, err := o.parked(f)
	for _, at := range found {
		p, m := at.parked, at.message
		all = append(all, operate.ParkedInfo{Place: at.place.encode(), Resource: at.lease.Resource, MessageID: p.ID, Topic: m.Topic, Key: m.Key,
			Kind: m.Kind, Size: m.Size, Attempts: p.Attempt, Due: p.Due, FirstFailed: p.FirstFailed, Behind: at.behind, Error: p.Error})
	}
	return all, err
}

// parkedAt is a parked message, and where it is.
type parkedAt struct {
	lease   *Lease
	parked  *Parked
	message backend.Raw
	behind  bool // another of its lane
	place   place
}

// place is where a parked message is listed.
type place struct {
	resource, lane string
	number         int64
}

func (p place) encode() string {
	return backend.EncodePlace(p.resource, p.lane, strconv.FormatInt(p.number, 10))
}

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p.resource, q.resource), cmp.Compare(p.lane, q.lane), cmp.Compare(p.number, q.number))
}

func decodePlace(text string) (place, error) {
	parts, err := backend.DecodePlace(text, 3)
	if err != nil {
		return place{}, err
	}
	number, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil {
		return place{}, backend.NoPlace(text)
	}
	return place{parts[0], parts[1], number}, nil
}

// parked returns what a filter selects, lane by lane.
func (o Operator) parked(f operate.ParkedFilter) (all []parkedAt, err error) {
	var after place
	if f.After != "" {
		if after, err = decodePlace(f.After); err != nil {
			return nil, err
		}
	}
	for _, l := range o.rows.Of(f.Consumer) {
		if f.Resource != "" && f.Resource != l.Resource {
			continue
		}
		for _, lane := range l.Lanes() {
			for i, p := range lane {
				at := parkedAt{l, p, o.rows.message(p.Message, p.ID).Raw(0), i > 0, place{l.Resource, p.Lane, p.Number}}
				if (f.Key == "" || f.Key == at.message.Key) && (len(f.IDs) == 0 || slices.Contains(f.IDs, p.ID)) && at.place.compare(after) > 0 {
					all = append(all, at)
				}
			}
		}
	}
	return backend.First(all, f.Limit), nil
}

// deadPlace is where a dead letter is listed. Its id tells it.
type deadPlace struct {
	at                int64 // when it died, Unix time in ns
	message, consumer string
}

func (p deadPlace) id() string {
	return strconv.FormatInt(p.at, 10) + "-" + p.message + "-" + p.consumer
}

func (p deadPlace) compare(q deadPlace) int {
	return cmp.Or(cmp.Compare(p.at, q.at), cmp.Compare(len(p.message), len(q.message)), cmp.Compare(p.message, q.message), cmp.Compare(p.consumer, q.consumer))
}

// parseDeadID returns the place of a dead letter.
func parseDeadID(id string) (p deadPlace, err error) {
	at, rest, _ := strings.Cut(id, "-")
	message, consumer, ok := strings.Cut(rest, "-")
	n, err := strconv.ParseInt(at, 10, 64)
	if !ok || err != nil {
		return p, operate.Invalid("%q is not the id of a dead letter; take one from a list of them", id)
	}
	return deadPlace{n, message, consumer}, nil
}

// letters returns the dead letters that a filter selects, the oldest first.
func (o Operator) letters(f operate.DeadLetterFilter) ([]*Dead, error) {
	after, through := deadPlace{at: math.MinInt64}, deadPlace{at: math.MaxInt64}
	var err error
	if f.After != "" {
		after, err = parseDeadID(f.After)
	}
	if f.Through != "" && err == nil {
		through, err = parseDeadID(f.Through)
	}
	if err != nil {
		return nil, err
	}
	var letters []*Dead
	for _, d := range o.rows.Dead {
		if backend.Selects(f, &d.DeadLetterInfo, o.rows.At) && d.place().compare(after) > 0 && d.place().compare(through) <= 0 {
			letters = append(letters, d)
		}
	}
	slices.SortFunc(letters, func(a, b *Dead) int { return a.place().compare(b.place()) })
	return backend.First(letters, f.Limit), nil
}

func (d *Dead) place() deadPlace { return deadPlace{d.DeadAt.UnixNano(), d.MessageID, d.Consumer} }

// DeadLetters is Operator.DeadLetters.
func (o Operator) DeadLetters(f operate.DeadLetterFilter) (all []operate.DeadLetterInfo, err error) {
	letters, err := o.letters(f)
	for _, d := range letters {
		m, info := o.rows.message(d.Message, d.MessageID), d.DeadLetterInfo
		info.Headers = m.Raw(0).Headers
		if len(f.IDs) == 1 {
			info.Payload = m.Raw(d.Size).Payload
		}
		all = append(all, info)
	}
	return all, err
}

// DeadLetterGroups is Operator.DeadLetterGroups.
func (o Operator) DeadLetterGroups(f operate.DeadLetterFilter) (operate.DeadLetterGroups, error) {
	letters, err := o.letters(f)
	over := max(len(letters)-backend.GroupedDeadLetters, 0)
	var groups backend.DeadLetterGrouping
	for _, d := range slices.Backward(letters[over:]) {
		groups.Add(operate.DeadLetterGroup{Consumer: d.Consumer, Kind: d.Kind, Reason: d.Reason, Count: 1, Oldest: d.DeadAt, Newest: d.DeadAt, Example: d.ID})
	}
	out := groups.Answer(over > 0)
	if len(letters) > 0 {
		out.Last = letters[len(letters)-1].ID
	}
	return out, err
}

// Purge is Operator.Purge.
func (o Operator) Purge(f operate.DeadLetterFilter) (int, error) {
	letters, err := o.letters(f)
	for _, d := range letters {
		o.rows.saveDead(deadName(d.Consumer, d.MessageID), nil)
	}
	return len(letters), err
}

// Replay is Operator.Replay, each message in the lane of its key. It returns the dead letters that there were.
func (o Operator) Replay(f operate.DeadLetterFilter) ([]*Dead, error) {
	letters, err := o.letters(f)
	for _, d := range letters {
		l := o.rows.Leases[d.Consumer][d.Resource]
		l.unpark(d.MessageID)
		l.park(&Parked{Park: backend.Park{ID: d.MessageID, Lane: d.Key}, Due: o.rows.At, Since: o.rows.At, Message: d.Message})
		l.Idle = false
		o.rows.Save(d.Consumer, l)
		o.rows.saveDead(deadName(d.Consumer, d.MessageID), nil)
		o.rows.Replays++
	}
	return letters, err
}

// retain drops the dead letters of a consumer that are older than Keep, and the oldest of those over Max.
func (o Operator) retain(c backend.ConsumerInfo, report *operate.MaintainReport) {
	letters, _ := o.letters(operate.DeadLetterFilter{Consumer: c.Name}) // without ids it cannot fail
	for i, d := range letters {
		switch {
		case c.Keep > 0 && o.rows.At.Sub(d.DeadAt) > c.Keep:
			report.DeadLettersExpired++
		case c.Max > 0 && len(letters)-i > c.Max:
			report.DeadLettersDropped++
		default:
			continue
		}
		o.rows.saveDead(deadName(c.Name, d.MessageID), nil)
	}
}
