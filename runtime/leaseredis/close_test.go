package leaseredis_test

import (
	"context"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// A tag that fails does not keep a stopping process from giving back what it holds under the others, be it
// more than one step gives back.
func TestCloseGivesBackWhatItCan(t *testing.T) {
	name := redistest.Namespace(t)
	c := redistest.Shared(t).Client(t)
	be := on(c, name, leaseredis.WithTags(2))
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(3000)))
	spec := backend.SessionSpec{ID: kit.ID(), TTL: time.Hour, Consumers: []string{"topical"}}
	s := kit.Must[backend.Session](t)(be.OpenSession(t.Context(), spec))
	kit.Equal(t, "acquired", len(kit.Acting(t, be, spec.ID, topical).Acquires(3000)), 3000)
	held := c.SCard(t.Context(), "{"+name+"1}:held:topical:"+spec.ID).Val()
	if held < 1200 {
		t.Fatalf("only %d leases are under the second tag", held)
	}
	sessions := "{" + name + "0}:sessions"
	kit.OK(t, c.Rename(t.Context(), sessions, sessions+"-away").Err())
	kit.OK(t, c.Set(t.Context(), sessions, "of another type", 0).Err())
	if err := s.Close(t.Context()); err == nil {
		t.Error("Close says that all is given back")
	}
	kit.Equal(t, "free under the second tag", c.ZCard(t.Context(), "{"+name+"1}:free:topical").Val(), held)
	kit.OK(t, c.Rename(t.Context(), sessions+"-away", sessions).Err())
}

// A process that is stopped while it opens its session leaves no member behind, which others would leave a share to.
func TestASessionThatIsGivenUpWhileItOpens(t *testing.T) {
	name := redistest.Namespace(t)
	be := on(redistest.Shared(t).Client(t), name, leaseredis.WithTags(3))
	kit.OK(t, be.Register(t.Context(), topical, kit.Topics(1)))
	for i := range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
		s, err := be.OpenSession(ctx, backend.SessionSpec{ID: kit.ID(), TTL: time.Hour, Consumers: []string{"topical"}})
		cancel()
		if err == nil {
			kit.OK(t, s.Close(t.Context()))
		}
	}
	kit.Eventually(t, "no member is left", func() bool { return len(survey(t, be, topical).Members) == 0 })
}
