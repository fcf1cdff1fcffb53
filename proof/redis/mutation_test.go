package redisproof

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
)

// found runs faults on a mutant until the history shows what is wrong with it.
func found(t *testing.T, s *site, n int, round func(*fleet.Fleet), wrong func(verdict) bool) {
	t.Helper()
	begin := time.Now()
	stop := s.load(t, topicCount)
	f := startFleet(t, names(s.settings, 3)...)
	s.working(t, topicCount)
	var v verdict
	done := 0
	for done < n && !wrong(v) {
		round(f)
		done++
		s.history.catchUp(t)
		v = s.history.verdict(t)
		v.lost = 0 // it may only be late
	}
	stop()
	if !wrong(v) {
		s.quiet(t, 5*time.Second)
		v = s.history.verdict(t)
	}
	printTable(t, row{"mutant: " + string(s.settings.Mode), done, f.Count(fleet.TakenOver), f.Count(fleet.Is("fenced")), time.Since(begin), v})
	if !wrong(v) {
		t.Errorf("%s: %d rounds did no harm: the checks cannot see what the mechanism prevents", s.settings.Mode, done)
	}
}

// Without the fence a former owner's commit succeeds, or takes the cursor back over what others have committed.
func TestMutantFenceRemoved(t *testing.T) {
	t.Parallel()
	s := onServer(t, redistest.Shared(t), unfenced, 4, "")
	found(t, s, rounds(t, 15, 30), freezeRound, func(v verdict) bool { return v.stale+v.undone > 0 })
}

// With commits in two steps, the cursor before the dead letter, a crash between them loses messages.
func TestMutantCommitInTwoSteps(t *testing.T) {
	t.Parallel()
	s := onServer(t, redistest.Shared(t), splits, 4, "")
	begin := time.Now()
	stop := s.load(t, topicCount)
	f := startFleet(t, names(s.settings, 3)...)
	died := 0
	for died < 10 && time.Since(begin) < 5*time.Minute {
		for _, p := range f.Replicas {
			if p.Gone() {
				died++
				f.Restart(p)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	// Messages that the mutants leave behind are only late, unless they are lost.
	f.End()
	s.settings.Mode = failing
	f = startFleet(t, names(s.settings, 3)...)
	s.quiet(t, 5*time.Second)
	v := s.history.verdict(t)
	printTable(t, row{"mutant: " + string(splits), died, f.Count(fleet.TakenOver), f.Count(fleet.Is("fenced")), time.Since(begin), v})
	if v.lost+v.badly == 0 {
		t.Errorf("%d crashes between the two steps lost nothing: the checks cannot see what one step prevents", died)
	}
}

// A session that has expired is not extended, and not made again.
func TestExpiredSessionStaysSo(t *testing.T) {
	t.Parallel()
	if n, extended := extendExpired(t, whole); extended > 0 {
		t.Errorf("%d of %d sessions that had expired were extended", extended, n)
	}
}

// A heartbeat that writes its session anew, whether it has expired or not, is found out.
func TestMutantExpiredSessionsRevived(t *testing.T) {
	t.Parallel()
	if n, extended := extendExpired(t, revives); extended == 0 { // some may have expired again before they were counted
		t.Errorf("none of %d sessions that had expired were extended: the check cannot see it", n)
	}
}

// extendExpired lets sessions expire, sends a heartbeat of each and returns how many live again.
func extendExpired(t *testing.T, m mode) (n, extended int) {
	t.Helper()
	n = rounds(t, 20, 200)
	s := onServer(t, redistest.Shared(t), m, 4, "")
	be := s.settings.backend(s.client, s.sink, slog.New(slog.DiscardHandler))
	info := backend.ConsumerInfo{Name: consumerName, Per: lease.PerTopic, Topics: []string{"t.*"}}
	if err := be.Register(t.Context(), info, nil); err != nil {
		t.Fatal(err)
	}
	var sessions []backend.Session
	// A server that other work keeps busy may answer one request too late.
	for i := range n {
		var session backend.Session
		eventually(t, "a session opens", func() (opened bool) {
			var err error
			session, err = be.OpenSession(t.Context(), backend.SessionSpec{ID: fmt.Sprintf("%032x", i+1), TTL: 5 * time.Second, Consumers: []string{consumerName}})
			return err == nil
		})
		sessions = append(sessions, session)
	}
	members := func() int {
		all, err := s.be.Members(t.Context(), consumerName)
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	eventually(t, "all sessions have expired", func() bool { return members() == 0 })
	for _, session := range sessions {
		eventually(t, "the session's heartbeat is answered", func() bool {
			err := session.Heartbeat(t.Context())
			if err == nil && m == whole {
				t.Error("the heartbeat of an expired session succeeded, want backend.ErrSessionLost")
			}
			return err == nil || errors.Is(err, backend.ErrSessionLost)
		})
	}
	return n, members()
}

// With one session for all replicas, which lives as long as any of them, no process takes over from
// those that were killed.
func TestMutantSessionNamedAfterConsumer(t *testing.T) {
	t.Parallel()
	s := onServer(t, redistest.Shared(t), namesake, 1, "")
	for i := range topicCount {
		if err := s.publish(t.Context(), topicName(i), 1); err != nil {
			t.Fatal(err)
		}
	}
	f := startFleet(t, names(s.settings, 2)...)
	s.quiet(t, 10*time.Second)
	for _, p := range f.Replicas {
		f.Kill(p)
	}
	for i := range topicCount {
		if err := s.publish(t.Context(), topicName(i), 1); err != nil {
			t.Fatal(err)
		}
	}
	done, ok := s.quiet(t, 4*ttl)
	if ok {
		t.Errorf("all %d messages were handled: what the killed replicas owned was found by somebody", done)
	}
}

// A reader that looks for news on a hint alone hears of no news without notifications.
func TestMutantNotificationsTrusted(t *testing.T) {
	t.Parallel()
	for _, m := range []mode{whole, notified} {
		s := onServer(t, redistest.Shared(t), m, 1, "")
		s.settings.Deaf = true
		s.settings.TTL = 20 * ttl // a new session would look at everything
		f := startFleet(t, names(s.settings, 2)...)
		patience, rounds := time.Minute, 1
		if m == notified {
			patience, rounds = 2*ttl, 20 // an owner looks once when it begins, and on a busy machine some begin late
		}
		handled := true
		for n := 0; handled && n < rounds; n++ {
			for i := range topicCount {
				if err := s.publish(t.Context(), topicName(i), 1); err != nil {
					t.Fatal(err)
				}
			}
			_, handled = s.quiet(t, patience)
		}
		if handled != (m == whole) {
			t.Errorf("%s: all messages were handled without notifications: %v", m, handled)
		}
		f.Alive(f.Replicas[0])
	}
}
