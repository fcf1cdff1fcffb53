package backend

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// LeaseView is a lease as an operate.Operator shows it.
type LeaseView struct {
	operate.LeaseStatus
	Position     string        // as in operate.CursorStatus
	Gone         string        // as there
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
			Lag: l.Lag, OldestUnread: l.OldestUnread, Gone: l.Gone})
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

// EncodePlace makes one text of the parts of a place, for operate.ParkedInfo.Place.
func EncodePlace(parts ...string) string {
	var b []byte
	for _, p := range parts {
		b = append(binary.AppendUvarint(b, uint64(len(p))), p...)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// NoPlace is the error that a text is no place.
func NoPlace(text string) error {
	return operate.Invalid("%q is not the place of a parked message; take one from a list of them", text)
}

// DecodePlace returns the n parts of a place that EncodePlace made.
func DecodePlace(place string, n int) ([]string, error) {
	b, err := base64.RawURLEncoding.DecodeString(place)
	parts := make([]string, n)
	for i := range parts {
		size, used := binary.Uvarint(b)
		if err != nil || used <= 0 || size > uint64(len(b)-used) {
			return nil, NoPlace(place)
		}
		parts[i], b = string(b[used:used+int(size)]), b[used+int(size):]
	}
	if len(b) > 0 {
		return nil, NoPlace(place)
	}
	return parts, nil
}
