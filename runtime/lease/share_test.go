package lease

import (
	"fmt"
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
	"pgregory.net/rapid"
)

// For any number of leases of each member, shares add up to all resources, differ by at most one,
// and as few leases move as any even division allows.
func TestShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "members")
		s := backend.Survey{Resources: rapid.IntRange(0, 200).Draw(t, "resources")}
		left := s.Resources
		for i := range n {
			own := rapid.IntRange(0, left).Draw(t, "owned")
			left -= own
			s.Members = append(s.Members, backend.Member{Session: fmt.Sprintf("s%02d", i), Owned: own})
		}
		total, given := 0, 0
		for _, m := range s.Members {
			target := share(s, m.Session)
			if floor := s.Resources / n; target < floor || target > floor+1 {
				t.Fatalf("%s should own %d of %d over %d members", m.Session, target, s.Resources, n)
			}
			total += target
			given += max(m.Owned-target, 0)
		}
		if total != s.Resources {
			t.Fatalf("shares add up to %d, want %d", total, s.Resources)
		}
		if least := fewestMoves(s); given != least {
			t.Fatalf("%d leases are given away, %d would do: %+v", given, least, s)
		}
	})
}

// fewestMoves is what must move at least: all above the ceiling, and of those at the
// ceiling, one each from more members than may stay there.
func fewestMoves(s backend.Survey) int {
	floor, extra := s.Resources/len(s.Members), s.Resources%len(s.Members)
	moves, atCeiling := 0, 0
	for _, m := range s.Members {
		if m.Owned > floor {
			moves += m.Owned - floor - 1
			atCeiling++
		}
	}
	return moves + max(atCeiling-extra, 0)
}

func TestShareOfStranger(t *testing.T) {
	if got := share(backend.Survey{Resources: 5, Members: []backend.Member{{Session: "a"}}}, "b"); got != 0 {
		t.Errorf("a session that is no member should own %d, want 0", got)
	}
}
