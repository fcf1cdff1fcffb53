package leaseweb

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// fake is an operator of what a test puts into it. It counts its calls.
type fake struct {
	mu       sync.Mutex
	calls    map[string]int
	all      []operate.ConsumerStatus
	members  []operate.MemberStatus
	leases   []operate.LeaseStatus
	letters  []operate.DeadLetterInfo // in the order in which they are listed
	parked   []operate.ParkedInfo
	cursors  []operate.CursorStatus
	err      error
	now      time.Time
	changed  []string // what was done
	counts   int      // dead letters that are grouped at most, the newest; 0 for all
	slowness time.Duration
	frozen   chan struct{} // if not nil, calls wait until it is closed, whatever their context
}

// freeze makes calls wait until the function that it returns is called.
func (f *fake) freeze() (thaw func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	frozen := make(chan struct{})
	f.frozen = frozen
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.frozen = nil
		close(frozen)
	}
}

func (f *fake) call(name string) error {
	f.mu.Lock()
	frozen := f.frozen
	f.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls = map[string]int{}
	}
	f.calls[name]++
	f.calls[""]++
	if f.slowness > 0 {
		time.Sleep(f.slowness)
	}
	return f.err
}

func (f *fake) called(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[name]
}

func (f *fake) did(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed = append(f.changed, what)
}

func (f *fake) Status(context.Context) ([]operate.ConsumerStatus, error) {
	return slices.Clone(f.all), f.call("Status")
}

func (f *fake) Members(context.Context, string) ([]operate.MemberStatus, error) {
	return slices.Clone(f.members), f.call("Members")
}

func (f *fake) Leases(_ context.Context, _ string, limit int) ([]operate.LeaseStatus, error) {
	return slices.Clone(f.leases[:min(limit, len(f.leases))]), f.call("Leases")
}

func (f *fake) selected(filter operate.DeadLetterFilter) (list []operate.DeadLetterInfo) {
	for _, l := range f.letters {
		if (filter.After == "" || compareIDs(l.ID, filter.After) > 0) && (filter.Through == "" || compareIDs(l.ID, filter.Through) <= 0) && backend.Selects(filter, &l, f.now) {
			list = append(list, l)
		}
		if filter.Limit > 0 && len(list) == filter.Limit {
			break
		}
	}
	return list
}

func (f *fake) DeadLetters(_ context.Context, filter operate.DeadLetterFilter) ([]operate.DeadLetterInfo, error) {
	list := f.selected(filter)
	for i := range list {
		if len(filter.IDs) != 1 {
			list[i].Payload = nil
		}
	}
	return list, f.call("DeadLetters")
}

func (f *fake) DeadLetterGroups(_ context.Context, filter operate.DeadLetterFilter) (all operate.DeadLetterGroups, err error) {
	list := f.selected(filter)
	if over := len(list) - f.counts; f.counts > 0 && filter.Limit == 0 && over > 0 {
		list, all.More = list[over:], true
	}
	for _, l := range list {
		all.Total++
		all.Last = l.ID
		i := slices.IndexFunc(all.Groups, func(g operate.DeadLetterGroup) bool { return g.Reason == l.Reason && g.Kind == l.Kind })
		if i < 0 {
			all.Groups = append(all.Groups, operate.DeadLetterGroup{Consumer: l.Consumer, Kind: l.Kind, Reason: l.Reason, Oldest: l.DeadAt})
			i = len(all.Groups) - 1
		}
		all.Groups[i].Count++
		all.Groups[i].Newest, all.Groups[i].Example = l.DeadAt, l.ID
	}
	slices.SortFunc(all.Groups, func(a, b operate.DeadLetterGroup) int { return cmp.Compare(b.Count, a.Count) })
	all.Groups = all.Groups[:min(100, len(all.Groups))]
	return all, f.call("DeadLetterGroups")
}

// take removes what a filter selects.
func (f *fake) take(what string, filter operate.DeadLetterFilter) (int, error) {
	if err := f.call(what); err != nil {
		return 0, err
	}
	list := f.selected(filter)
	for _, l := range list {
		f.did(what + " " + l.ID)
	}
	f.letters = slices.DeleteFunc(f.letters, func(l operate.DeadLetterInfo) bool {
		return slices.ContainsFunc(list, func(m operate.DeadLetterInfo) bool { return m.ID == l.ID })
	})
	return len(list), nil
}

func (f *fake) Replay(_ context.Context, filter operate.DeadLetterFilter) (int, error) {
	return f.take("replay", filter)
}

func (f *fake) Purge(_ context.Context, filter operate.DeadLetterFilter) (int, error) {
	return f.take("purge", filter)
}

func (f *fake) Parked(_ context.Context, filter operate.ParkedFilter) (list []operate.ParkedInfo, err error) {
	begun := filter.After == ""
	for _, m := range f.parked {
		if begun && (len(filter.IDs) == 0 || slices.Contains(filter.IDs, m.MessageID)) && (filter.Key == "" || filter.Key == m.Key) &&
			(filter.Resource == "" || filter.Resource == m.Resource) && (filter.Limit == 0 || len(list) < filter.Limit) {
			list = append(list, m)
		}
		begun = begun || m.Place == filter.After
	}
	return list, f.call("Parked")
}

func (f *fake) RetryParked(ctx context.Context, filter operate.ParkedFilter) (int, error) {
	if err := f.call("RetryParked"); err != nil {
		return 0, err
	}
	list, err := f.Parked(ctx, filter)
	for _, m := range list {
		f.did("retry " + m.MessageID)
	}
	return len(list), err
}

func (f *fake) Cursors(_ context.Context, _, resource string, limit int) (list []operate.CursorStatus, err error) {
	for _, c := range f.cursors {
		if (resource == "" || resource == c.Resource) && len(list) < limit {
			list = append(list, c)
		}
	}
	return list, f.call("Cursors")
}

func (f *fake) SetCursor(_ context.Context, consumer, resource string, to operate.CursorTarget) (int, error) {
	if err := errors.Join(f.call("SetCursor"), to.Check()); err != nil {
		return 0, err
	}
	f.did("move " + consumer + " " + resource)
	return max(1, len(f.cursors)), nil
}

func (f *fake) Pause(_ context.Context, consumer string) error {
	f.did("pause " + consumer)
	return f.call("Pause")
}

func (f *fake) Resume(_ context.Context, consumer string) error {
	f.did("resume " + consumer)
	return f.call("Resume")
}

func (f *fake) Forget(_ context.Context, consumer string) error {
	f.did("forget " + consumer)
	return f.call("Forget")
}

// compareIDs orders ids of dead letters as they are listed: numbers within them count as numbers.
func compareIDs(a, b string) int {
	as, bs := strings.Split(a, "-"), strings.Split(b, "-")
	return slices.CompareFunc(as, bs, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
}
