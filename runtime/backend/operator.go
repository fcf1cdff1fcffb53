package backend

import (
	"cmp"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// LeaseView is a lease as an operate.Operator shows it.
type LeaseView struct {
	operate.LeaseStatus
	Position     string        // as in operate.CursorStatus
	OldestUnread time.Duration // of the unread messages that Lag counts; 0 when there are none
	Lanes        int           // of parked messages
}

// LeaseStatuses answers Operator.Leases: the furthest behind first, up to limit of them, or all when it is 0.
func LeaseStatuses(leases []LeaseView, limit int) []operate.LeaseStatus {
	all := make([]operate.LeaseStatus, 0, len(leases))
	for _, l := range furthestBehind(leases, limit) {
		all = append(all, l.LeaseStatus)
	}
	return all
}

// CursorStatuses answers Operator.Cursors, as LeaseStatuses does.
func CursorStatuses(leases []LeaseView, limit int) []operate.CursorStatus {
	all := make([]operate.CursorStatus, 0, len(leases))
	for _, l := range furthestBehind(leases, limit) {
		all = append(all, operate.CursorStatus{Resource: l.Resource, Session: l.Session, Epoch: l.Epoch, Position: l.Position,
			Lag: l.Lag, OldestUnread: l.OldestUnread})
	}
	return all
}

// furthestBehind sorts leases by their lag, then by resource, and returns the first limit of them, or all when it is 0.
func furthestBehind(leases []LeaseView, limit int) []LeaseView {
	slices.SortFunc(leases, func(a, b LeaseView) int {
		return cmp.Or(cmp.Compare(b.Lag, a.Lag), cmp.Compare(a.Resource, b.Resource))
	})
	return First(leases, limit)
}

// First returns the first limit of all, or all when it is 0.
func First[T any](all []T, limit int) []T {
	if limit > 0 && limit < len(all) {
		return all[:limit]
	}
	return all
}

// Selects reports whether a filter selects a dead letter. Limit is for the caller to keep.
func Selects(f operate.DeadLetterFilter, d *operate.DeadLetterInfo) bool {
	match := func(pattern, v string) bool { return pattern == "" || matchOne(pattern, v) }
	return (f.Consumer == "" || f.Consumer == d.Consumer) && (len(f.IDs) == 0 || slices.Contains(f.IDs, d.ID)) &&
		match(f.Topic, d.Topic) && (f.Key == "" || f.Key == d.Key) && match(f.Reason, d.Reason)
}
