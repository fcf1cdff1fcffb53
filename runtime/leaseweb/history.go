package leaseweb

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	kept         = 15 * time.Minute // of history
	gap          = 3 * pace         // without a look: the charts show that
	hues         = 8                // colours of owners
	mostShares   = 40               // members that a chart tells apart
	mostHandover = 30
)

// history is what was seen of a consumer while a page was open. It is guarded by the lock of shared.
type history struct {
	samples   []sample
	shares    []shares
	handovers []handover
	unowned   time.Time // since when there are resources without an owner; zero if there are none
	leases    map[string]operate.LeaseStatus
	leasesAt  time.Time
	names     map[string]string // of a session: its host and process
	colours   map[string]int    // of a session
}

// sample is one look at the status.
type sample struct {
	at     time.Time
	lag    int64
	oldest time.Duration
}

// shares is one look at who owned how much.
type shares struct {
	at    time.Time
	total int
	owned []owned
}

type owned struct {
	session string
	n       int
}

// handover is leases that went from one process to another between two looks.
type handover struct {
	At       time.Time
	From, To string // processes, "" for none
	N        int
	Resource string // one of them
	Epoch    int64
}

func (h *history) add(now time.Time, c operate.ConsumerStatus) {
	if n := len(h.samples); n > 0 && now.Sub(h.samples[n-1].at) < pace/2 {
		return
	}
	h.samples = append(recent(h.samples, now, func(s sample) time.Time { return s.at }), sample{now, c.LagTotal, c.OldestUnread})
	switch {
	case c.Unowned == 0 || c.Paused:
		h.unowned = time.Time{}
	case h.unowned.IsZero():
		h.unowned = now
	}
}

// frame is the time that charts of it show.
func (h *history) frame(now time.Time) time.Duration {
	if len(h.samples) == 0 {
		return frameOf(now, now)
	}
	return frameOf(now, h.samples[0].at)
}

// recent drops what is too old to be shown.
func recent[T any](list []T, now time.Time, at func(T) time.Time) []T {
	i := 0
	for i < len(list) && now.Sub(at(list[i])) > kept {
		i++
	}
	return slices.Delete(list, 0, i)
}

// observe adds who owned how much, and what went from hand to hand.
func (h *history) observe(now time.Time, d detail) {
	h.shares = recent(h.shares, now, func(s shares) time.Time { return s.at })
	h.handovers = recent(h.handovers, now, func(o handover) time.Time { return o.At })
	h.name(d)
	s := shares{at: now}
	for i, m := range d.members {
		if i < mostShares {
			s.owned = append(s.owned, owned{m.Session, m.Owned})
		}
		s.total = max(s.total, m.FairShare*len(d.members))
	}
	h.shares = append(h.shares, s)
	h.compare(now, d.leases)
}

// name gives every session a colour that it keeps, and forgets those that no chart shows any more.
func (h *history) name(d detail) {
	shown := map[string]bool{}
	for _, s := range h.shares {
		for _, o := range s.owned {
			shown[o.session] = true
		}
	}
	names, colours := map[string]string{}, map[string]int{}
	used := [hues]int{}
	for session, c := range h.colours {
		if shown[session] {
			names[session], colours[session] = h.names[session], c
			used[c]++
		}
	}
	for _, m := range d.members {
		names[m.Session] = process(m)
		if _, has := colours[m.Session]; !has {
			least := 0
			for i := range used {
				if used[i] < used[least] {
					least = i
				}
			}
			colours[m.Session] = least
			used[least]++
		}
	}
	h.names, h.colours = names, colours
}

func process(m operate.MemberStatus) string { return fmt.Sprintf("%s:%d", m.Host, m.PID) }

// owner is the process of a session, or the beginning of its id if it is not known any more.
func (h *history) owner(session string) string {
	return cmp.Or(h.names[session], session[:min(8, len(session))])
}

// compare finds leases that have another owner than at the look before, if that is not long ago.
func (h *history) compare(now time.Time, leases []operate.LeaseStatus) {
	before, fresh := h.leases, now.Sub(h.leasesAt) < time.Minute
	h.leases, h.leasesAt = make(map[string]operate.LeaseStatus, len(leases)), now
	type way struct{ from, to string }
	moved := map[way]*handover{}
	var order []way
	for _, l := range leases {
		h.leases[l.Resource] = l
		old, known := before[l.Resource]
		if !known || !fresh || old.Session == l.Session {
			continue
		}
		w := way{h.owner(old.Session), h.owner(l.Session)}
		if moved[w] == nil {
			moved[w] = &handover{At: now, From: w.from, To: w.to, Resource: l.Resource, Epoch: l.Epoch}
			order = append(order, w)
		}
		moved[w].N++
	}
	for _, w := range order {
		h.handovers = append(h.handovers, *moved[w])
	}
	if over := len(h.handovers) - mostHandover; over > 0 {
		h.handovers = slices.Delete(h.handovers, 0, over)
	}
}
