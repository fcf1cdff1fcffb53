package redisproof

import (
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/redistest"
)

// found runs faults on a mutant until the history shows what is wrong with it.
func found(t *testing.T, s *site, n int, round func(*fleet), wrong func(verdict) bool) {
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
	printTable(t, row{"mutant: " + string(s.settings.Mode), done, f.count(takenOver), f.count(is("fenced")), time.Since(begin), v})
	if !wrong(v) {
		t.Errorf("%s: %d rounds did no harm: the checks cannot see what the mechanism prevents", s.settings.Mode, done)
	}
}

// M14: without the fence a former owner's commit succeeds.
func TestMutantFenceRemoved(t *testing.T) {
	t.Parallel()
	s := onServer(t, redistest.Shared(t), unfenced, 4, "")
	found(t, s, rounds(t, 15, 30), freezeRound, func(v verdict) bool { return v.stale > 0 })
}

// M39: with commits in two steps, the cursor before the dead letter, a crash between them loses messages.
func TestMutantCommitInTwoSteps(t *testing.T) {
	t.Parallel()
	s := onServer(t, redistest.Shared(t), splits, 4, "")
	found(t, s, 6, func(f *fleet) {
		time.Sleep(ttl / 2)
		for _, p := range f.replicas {
			if p.gone() {
				f.restart(p)
			}
		}
	}, func(v verdict) bool { return v.lost > 0 })
}

// M3, M9: a heartbeat that writes its session anew, whether it has expired or not, is found out.
func TestMutantExpiredSessionsRevived(t *testing.T) {
	t.Parallel()
	s := onServer(t, redistest.Shared(t), revives, 1, "")
	f := startFleet(t, names(s.settings, 2)...)
	for range 5 {
		if comesBack(t, s, f) != "" {
			return
		}
	}
	t.Error("a session that is revived was not noticed")
}

// M8: with one session for all replicas, nobody takes over from a replica that was killed.
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
	f.kill(f.replicas[0])
	for i := range topicCount {
		if err := s.publish(t.Context(), topicName(i), 1); err != nil {
			t.Fatal(err)
		}
	}
	done, ok := s.quiet(t, 2*ttl)
	if ok {
		t.Errorf("all %d messages were handled: what the killed replica owned was found by somebody", done)
	}
}

// M37: who looks for news only when told of some hears of nothing without notifications.
func TestMutantNotificationsTrusted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := onServer(t, server, notified, 1, "")
	opts := server.User(t, "unheard", unheard...).Options()
	s.settings.User, s.settings.Password = opts.Username, opts.Password
	f := startFleet(t, names(s.settings, 2)...)
	if err := s.publish(t.Context(), topicName(0), 1); err != nil {
		t.Fatal(err)
	}
	// Beyond the sweep for topics that nobody has heard of, it must not be handled.
	if _, ok := s.quiet(t, ttl); ok {
		if err := s.publish(t.Context(), topicName(0), 1); err != nil {
			t.Fatal(err)
		}
		if _, ok := s.quiet(t, ttl); ok {
			t.Error("messages were handled though nobody was told of them: the mutant does not trust notifications alone")
		}
	}
	f.alive(f.replicas[0])
}
