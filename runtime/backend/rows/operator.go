package rows

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

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
	st := operate.ConsumerStatus{Consumer: c.Name, Per: c.Per.String(), Lock: c.Lock.String(),
		DeadLetters: len(o.letters(operate.DeadLetterFilter{Consumer: c.Name}))}
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
			return nil, fmt.Errorf("%q is not the id of a message; the last one has id %d", target.After, last)
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

// Parked is Operator.Parked.
func (o Operator) Parked(f operate.ParkedFilter) (all []operate.ParkedInfo) {
	for _, l := range o.rows.Of(f.Consumer) {
		for _, lane := range l.Lanes() {
			for i, p := range lane {
				m := o.rows.message(p.Message, p.ID).Raw(0)
				if (f.Resource == "" || f.Resource == l.Resource) && (f.Key == "" || f.Key == m.Key) {
					all = append(all, operate.ParkedInfo{Resource: l.Resource, MessageID: p.ID, Topic: m.Topic, Key: m.Key, Kind: m.Kind,
						Size: m.Size, Attempts: p.Attempt, Due: p.Due, FirstFailed: p.FirstFailed, Behind: i > 0, Error: p.Error})
				}
			}
		}
	}
	return backend.First(all, f.Limit)
}

// letters returns the dead letters that a filter selects, the oldest first.
func (o Operator) letters(f operate.DeadLetterFilter) []*Dead {
	var letters []*Dead
	for _, d := range o.rows.Dead {
		if backend.Selects(f, &d.DeadLetterInfo) {
			letters = append(letters, d)
		}
	}
	slices.SortFunc(letters, func(a, b *Dead) int {
		return cmp.Or(a.DeadAt.Compare(b.DeadAt), cmp.Compare(len(a.MessageID), len(b.MessageID)), cmp.Compare(a.MessageID, b.MessageID))
	})
	return backend.First(letters, f.Limit)
}

// DeadLetters is Operator.DeadLetters.
func (o Operator) DeadLetters(f operate.DeadLetterFilter) (all []operate.DeadLetterInfo) {
	for _, d := range o.letters(f) {
		m, info := o.rows.message(d.Message, d.MessageID), d.DeadLetterInfo
		info.Headers = m.Raw(0).Headers
		if len(f.IDs) == 1 {
			info.Payload = m.Raw(d.Size).Payload
		}
		all = append(all, info)
	}
	return all
}

// Purge is Operator.Purge.
func (o Operator) Purge(f operate.DeadLetterFilter) int {
	letters := o.letters(f)
	for _, d := range letters {
		o.rows.saveDead(d.ID, nil)
	}
	return len(letters)
}

// Replay is Operator.Replay, each message in the lane of its key. It returns the dead letters that there were.
func (o Operator) Replay(f operate.DeadLetterFilter) []*Dead {
	letters := o.letters(f)
	for _, d := range letters {
		l := o.rows.Leases[d.Consumer][d.Resource]
		l.unpark(d.MessageID)
		l.Parked = append(l.Parked, &Parked{Park: backend.Park{ID: d.MessageID, Lane: d.Key}, Due: o.rows.At, Since: o.rows.At, Message: d.Message})
		l.Idle = false
		o.rows.Save(d.Consumer, l)
		o.rows.saveDead(d.ID, nil)
		o.rows.Replays++
	}
	return letters
}

// retain drops the dead letters of a consumer that are older than Keep, and the oldest of those over Max.
func (o Operator) retain(c backend.ConsumerInfo, report *operate.MaintainReport) {
	letters := o.letters(operate.DeadLetterFilter{Consumer: c.Name})
	for i, d := range letters {
		switch {
		case c.Keep > 0 && o.rows.At.Sub(d.DeadAt) > c.Keep:
			report.DeadLettersExpired++
		case c.Max > 0 && len(letters)-i > c.Max:
			report.DeadLettersDropped++
		default:
			continue
		}
		o.rows.saveDead(d.ID, nil)
	}
}
