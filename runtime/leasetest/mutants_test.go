package leasetest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

// The suite is judged by the broken backends that it catches. Each mutant breaks one
// rule; the checks named with it must fail on it. They pass on the backend that is
// not broken.

// verdict is a testing.TB that fails without failing the test.
type verdict struct {
	testing.TB
	mu       sync.Mutex
	failed   bool
	said     []string
	cleanups []func()
}

func (v *verdict) Helper()                 {}
func (v *verdict) Patience() time.Duration { return 20 * time.Second }

func (v *verdict) Cleanup(f func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.cleanups = append(v.cleanups, f)
}

func (v *verdict) say(s string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failed = true
	v.said = append(v.said, s)
}

func (v *verdict) Failed() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.failed
}

func (v *verdict) Error(args ...any)                 { v.say(fmt.Sprint(args...)) }
func (v *verdict) Errorf(format string, args ...any) { v.say(fmt.Sprintf(format, args...)) }
func (v *verdict) Fatal(args ...any)                 { v.say(fmt.Sprint(args...)); runtime.Goexit() }
func (v *verdict) Fatalf(format string, args ...any) {
	v.say(fmt.Sprintf(format, args...))
	runtime.Goexit()
}
func (v *verdict) FailNow()            { v.say("FailNow"); runtime.Goexit() }
func (v *verdict) Log(...any)          {}
func (v *verdict) Logf(string, ...any) {}

// judge runs a check of the suite against a backend and returns what it complained of. Its time
// is a bubble's: patience is free, and the speed of the machine does not matter.
func judge(t *testing.T, name string, f Factory) (said []string) {
	t.Helper()
	all := checks()
	i := slices.IndexFunc(all, func(c check) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("there is no check %q", name)
	}
	kit.Bubble(t, func(t *testing.T) {
		said = try(t, func(t testing.TB) { all[i].run(t, f) })
	})
	return said
}

// try runs a test and returns what it complained of.
func try(t *testing.T, run func(t testing.TB)) []string {
	v := &verdict{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for i := len(v.cleanups) - 1; i >= 0; i-- {
				v.cleanups[i]()
			}
		}()
		run(v)
	}()
	<-done
	return v.said
}

// deaf is a session whose heartbeats never say that it is lost.
type deaf struct{ backend.Session }

func (d deaf) Heartbeat(ctx context.Context) error {
	d.Session.Heartbeat(ctx)
	return nil
}

// shortTTL is as if holders believed without a margin, and longer.
var shortTTL = mutation{
	openSession: func(m *mutant, ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
		spec.TTL /= 2
		return m.Backend.OpenSession(ctx, spec)
	},
}

var forgetParked = mutation{
	commit: func(m *mutant, ctx context.Context, session, consumer string, ps []backend.Progress) ([]string, error) {
		ps = slices.Clone(ps)
		for i := range ps {
			ps[i].Park = nil
		}
		return m.Backend.Commit(ctx, session, consumer, ps)
	},
}

// retireBlindly makes the backend believe that the application announces the streams, which
// have no messages then.
var retireBlindly = mutation{
	retire: func(m *mutant, ctx context.Context, session, consumer string, refs []backend.Ref) error {
		m.shared.mu.Lock()
		info := m.shared.infos[consumer]
		m.shared.mu.Unlock()
		blind := info
		blind.Announced = true
		if err := m.Backend.Register(ctx, blind, []string{}); err != nil {
			return err
		}
		defer m.Backend.Register(context.WithoutCancel(ctx), info, []string{})
		return m.Backend.Retire(ctx, session, consumer, refs)
	},
}

// registerOnce is without a sweep too.
var registerOnce = mutation{
	register: func(m *mutant, ctx context.Context, c backend.ConsumerInfo, resources []string) error {
		if c.Per == backend.PerStream {
			resources = slices.DeleteFunc(append([]string{}, resources...), func(r string) bool { _, by := m.shared.current(r); return by != "" })
		}
		return m.Backend.Register(ctx, c, resources)
	},
}

// shiftSlots is as if the feed hashed keys in another way than the log.
var shiftSlots = mutation{
	next: func(m *mutant, n backend.News) backend.News {
		for _, rs := range n.Resources {
			for i, r := range rs {
				if slot, err := strconv.Atoi(r); err == nil {
					rs[i] = strconv.Itoa(slot + 1)
				}
			}
		}
		return n
	},
}

var mutants = []struct {
	name   string
	mutate mutation
	caught []string
}{
	{"no fence: a commit counts whatever its epoch", mutation{
		commit: func(m *mutant, ctx context.Context, session, consumer string, ps []backend.Progress) ([]string, error) {
			for _, p := range ps {
				ref, by := m.shared.current(p.Resource)
				p.Ref = ref
				if _, err := m.Backend.Commit(ctx, by, consumer, []backend.Progress{p}); err != nil {
					return nil, err
				}
			}
			return nil, nil
		},
	}, []string{
		"Commit/Fenced_changes_nothing", "Commit/Fences_entry_by_entry", "Commit/Is_fenced_when_the_lease_was_lost_and_regained",
		"Commit/Is_fenced_after_a_takeover_from_a_crashed_session",
	}},
	{"the owner is fenced by its name, not by its epoch", mutation{
		commit: func(m *mutant, ctx context.Context, session, consumer string, ps []backend.Progress) ([]string, error) {
			ps = slices.Clone(ps)
			for i, p := range ps {
				if ref, by := m.shared.current(p.Resource); by == session {
					ps[i].Epoch = ref.Epoch
				}
			}
			return m.Backend.Commit(ctx, session, consumer, ps)
		},
	}, []string{"Commit/Is_fenced_when_the_lease_was_lost_and_regained"}},
	{"a heartbeat revives a dead session", mutation{
		openSession: func(m *mutant, ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
			s, err := m.Backend.OpenSession(ctx, spec)
			return deaf{s}, err
		},
	}, []string{"Session/Ends_terminally_when_it_expires"}},
	{"no margin: the server's TTL is shorter than the holder's belief", shortTTL, []string{"Acquire/Takes_over_after_the_TTL_and_not_before", "A_partitioned_handler_is_cancelled_before_the_TTL"}},
	{"a repeated attempt is a new one", mutation{
		acquire: func(m *mutant, ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
			req.Attempt = kit.ID()
			return m.Backend.Acquire(ctx, req)
		},
	}, []string{"Acquire/Repeated_attempt_returns_what_it_was_granted"}},
	{"release without comparing the owner", mutation{
		release: func(m *mutant, ctx context.Context, session, consumer string, refs []backend.Ref) error {
			for _, r := range refs {
				ref, by := m.shared.current(r.Resource)
				if err := m.Backend.Release(ctx, by, consumer, []backend.Ref{ref}); err != nil && by != "" {
					return err
				}
			}
			return nil
		},
	}, []string{"Release/Frees_at_once_and_can_be_repeated", "Release/Passes_over_what_is_not_held"}},
	{"leases that their owner does not know of are kept", mutation{
		owned: func(*mutant) ([]backend.Ref, error) { return nil, nil },
	}, []string{"Owned/Lists_what_a_session_owns", "A_lease_that_its_owner_does_not_know_of_is_given_back"}},
	{"epochs start again", mutation{
		acquire: func(m *mutant, ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
			gs, err := m.Backend.Acquire(ctx, req)
			for i := range gs {
				gs[i].Epoch = 1
			}
			return gs, err
		},
	}, []string{"Acquire/Epochs_rise_over_release_close_and_crash", "Epochs_rise_on_a_storage_that_lost_its_memory"}},
	{"Exclude is ignored", mutation{
		acquire: func(m *mutant, ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
			req.Exclude = nil
			return m.Backend.Acquire(ctx, req)
		},
	}, []string{"Acquire/Passes_over_Exclude"}},
	{"the cursor moves on without what was parked", forgetParked, []string{"Parked/Comes_lane_by_lane_in_order", "Dead_letter_after_exactly_Max_attempts_and_on_with_the_next"}},
	{"dead letters are dropped", mutation{
		commit: func(m *mutant, ctx context.Context, session, consumer string, ps []backend.Progress) ([]string, error) {
			ps = slices.Clone(ps)
			for i := range ps {
				ps[i].Dead = nil
			}
			return m.Backend.Commit(ctx, session, consumer, ps)
		},
	}, []string{"Dead/Keeps_what_is_needed_to_understand_it", "Bad_payloads_become_dead_letters_and_their_neighbours_are_handled"}},
	{"attempts are not stored", mutation{
		commit: func(m *mutant, ctx context.Context, session, consumer string, ps []backend.Progress) ([]string, error) {
			ps = slices.Clone(ps)
			for i := range ps {
				ps[i].Park = slices.Clone(ps[i].Park)
				for j := range ps[i].Park {
					ps[i].Park[j].Attempt = 0
				}
			}
			return m.Backend.Commit(ctx, session, consumer, ps)
		},
	}, []string{"Parked/Is_updated_in_its_place", "Backoff_and_attempts_survive_a_restart"}},
	{"a cut goes one message too far", mutation{
		fetch: func(m *mutant, ctx context.Context, req backend.FetchRequest) ([]backend.Fetched, error) {
			fs, err := m.Backend.Fetch(ctx, req)
			for i := range fs {
				cut, n := fs[i].Cut, len(fs[i].Messages)
				fs[i].Cut = func(k int) backend.Cursor { return cut(min(k+1, n)) }
			}
			return fs, err
		},
	}, []string{"Fetch/Reads_on_from_any_cut", "Commit/Moves_the_cursor_for_the_next_owner"}},
	{"the feed drops a topic now and then", mutation{
		next: func(m *mutant, n backend.News) backend.News {
			n.Topics = slices.DeleteFunc(n.Topics, func(t string) bool { return strings.HasSuffix(t, "7") })
			return n
		},
	}, []string{"Feed/Misses_nothing_under_load"}},
	{"the feed is silent about ownership", mutation{
		next: func(m *mutant, n backend.News) backend.News { n.Ownership = false; return n },
	}, []string{"Feed/Reports_changes_of_ownership"}},
	{"streams are retired without looking for unread messages", retireBlindly, []string{
		"Stream/Retired_with_unread_messages_stays_wanted", "Stream/Retired_with_parked_messages_stays_wanted",
		"Stream/No_message_is_forgotten_between_retiring_and_registering",
	}},
	{"retired streams stay wanted", mutation{
		retire: func(m *mutant, ctx context.Context, session, consumer string, refs []backend.Ref) error {
			return m.Backend.Release(ctx, session, consumer, refs)
		},
	}, []string{"Stream/Retired_without_work_is_gone_until_it_is_registered", "Streams_are_owned_while_they_have_messages_and_handled_in_order"}},
	{"registering a known stream does nothing", registerOnce, []string{"Stream/Retired_without_work_is_gone_until_it_is_registered", "A_stream_runs_again_when_it_is_announced_again"}},
	{"the feed names other slots than those that hold the messages", shiftSlots, []string{"Partition/The_feed_names_the_slots_that_hold_the_news"}},
	{"a renewal revives an expired lease", mutation{
		renew: func(m *mutant, ctx context.Context, session string, c backend.ConsumerInfo, refs []backend.Ref) ([]string, error) {
			m.Backend.Renew(ctx, session, c, refs)
			return nil, nil
		},
	}, []string{"Row/Renew_revives_nothing", "Row/Renew_names_what_is_not_held", "Row/A_dead_session_renews_nothing"}},
	{"renewals renew nothing", mutation{
		renew: func(m *mutant, ctx context.Context, session string, c backend.ConsumerInfo, refs []backend.Ref) ([]string, error) {
			return nil, nil
		},
	}, []string{"Row/Renew_keeps_leases_beyond_their_TTL"}},
	{"every replica begins in its own present", mutation{
		register: func(m *mutant, ctx context.Context, c backend.ConsumerInfo, resources []string) error {
			err := m.Backend.Register(ctx, c, resources)
			if err == nil && c.From == backend.FromNow {
				_, err = m.Backend.SetCursor(ctx, c.Name, "", operate.CursorTarget{Now: true})
			}
			return err
		},
	}, []string{"From/Now_passes_over_what_is_there", "From/Now_counts_for_the_first_time_only"}},
	{"progress counts in the order of its arrival", mutation{
		commit: func(m *mutant, ctx context.Context, session, consumer string, ps []backend.Progress) ([]string, error) {
			ps = slices.Clone(ps)
			for i := range ps {
				ps[i].Seq = 0
			}
			return m.Backend.Commit(ctx, session, consumer, ps)
		},
	}, []string{"Commit/Older_progress_changes_nothing_and_is_not_fenced"}},
	{"pages of dead letters begin anew", mutation{
		letters: func(f operate.DeadLetterFilter) operate.DeadLetterFilter { f.After = ""; return f },
	}, []string{"Dead/Pages_have_each_once_whatever_goes_and_comes", "Dead/Is_selected_by_every_field_of_the_filter"}},
	{"what died after it was listed is replayed, too", mutation{
		letters: func(f operate.DeadLetterFilter) operate.DeadLetterFilter { f.Through = ""; return f },
	}, []string{"Dead/Through_moves_what_was_listed_and_no_more"}},
	{"pages of parked messages begin anew", mutation{
		parked: func(f operate.ParkedFilter) operate.ParkedFilter { f.After = ""; return f },
	}, []string{"Operator/Parked_messages_are_listed_page_by_page", "Operator/Pages_of_parked_messages_go_on_where_one_was_handled"}},
	{"all parked messages of a key are tried again", mutation{
		parked: func(f operate.ParkedFilter) operate.ParkedFilter { f.IDs = nil; return f },
	}, []string{"Operator/RetryParked_makes_messages_due"}},
	{"an operator that has messages tried again takes the lease from its owner", mutation{
		retry: func(m *mutant, ctx context.Context, f operate.ParkedFilter) (int, error) {
			n, err := m.Backend.RetryParked(ctx, f)
			leases, _ := m.Backend.Leases(ctx, f.Consumer, 0)
			for _, l := range leases {
				if ref, by := m.shared.current(l.Resource); by != "" && l.Parked > 0 {
					_ = m.Backend.Release(ctx, by, f.Consumer, []backend.Ref{ref})
				}
			}
			return n, err
		},
	}, []string{"Operator/RetryParked_makes_messages_due", "Operator/RetryParked_loses_nothing_that_an_owner_stores_beside_it"}},
	{"an operator that has messages tried again writes back what it read", mutation{
		retry: func(m *mutant, ctx context.Context, f operate.ParkedFilter) (int, error) {
			read, err := m.Backend.Parked(ctx, f)
			time.Sleep(time.Millisecond)
			for _, p := range read {
				ref, by := m.shared.current(p.Resource)
				_, _ = m.Backend.Commit(ctx, by, f.Consumer, []backend.Progress{{Ref: ref, Park: []backend.Park{{ID: p.MessageID, Lane: p.Key, Attempt: p.Attempts}}}})
			}
			return len(read), err
		},
	}, []string{"Operator/RetryParked_loses_nothing_that_an_owner_stores_beside_it"}},
	{"feeds are not told of messages to be tried again", mutation{
		next: func(m *mutant, n backend.News) backend.News { n.Parked = false; return n },
	}, []string{"Operator/RetryParked_makes_messages_due", "Dead/Replay_puts_back_in_order_and_forgets_attempts"}},
	{"an operator's cursor leaves the owner's lease alone", mutation{
		setCursor: func(m *mutant, ctx context.Context, consumer, resource string, to operate.CursorTarget) (int, error) {
			n, err := m.Backend.SetCursor(ctx, consumer, resource, to)
			_, by := m.shared.current(resource)
			if err == nil && by != "" {
				_, err = m.Acquire(ctx, backend.AcquireRequest{Session: by, Consumer: m.shared.infos[consumer], Max: 1, Attempt: kit.ID()})
			}
			return n, err
		},
		commit: func(m *mutant, ctx context.Context, session, consumer string, ps []backend.Progress) ([]string, error) {
			ps = slices.Clone(ps)
			for i := range ps {
				ps[i].Ref, _ = m.shared.current(ps[i].Resource)
			}
			return m.Backend.Commit(ctx, session, consumer, ps)
		},
	}, []string{"Cursor/Set_to_the_beginning_fences_and_forgets_failures", "Cursor/Set_to_now_fences_and_keeps_failures", "Cursor/Set_after_a_message"}},
	{"the survey counts nothing as free", mutation{
		survey: func(m *mutant, s []backend.Survey) []backend.Survey {
			for i := range s {
				s[i].Free = 0
			}
			return s
		},
	}, []string{"Survey/Counts_resources_free_and_owned"}},
	{"leases are granted while the consumer is paused", grantPaused, []string{
		"Pause/Nothing_is_granted_until_the_consumer_is_resumed", "Pause/Leases_of_dead_sessions_wait_for_the_end_of_it", "Pause/No_lease_is_granted_after_it_returned",
	}},
	{"a repeated attempt is refused while the consumer is paused", mutation{
		acquire: func(m *mutant, ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
			if m.paused(ctx, req.Consumer.Name) {
				return nil, nil
			}
			return m.Backend.Acquire(ctx, req)
		},
	}, []string{"Pause/A_repeated_attempt_returns_what_it_was_granted"}},
	{"the survey does not say that a consumer is paused", mutation{
		survey: func(m *mutant, s []backend.Survey) []backend.Survey {
			for i := range s {
				s[i].Paused = false
			}
			return s
		},
	}, []string{"Pause/Is_of_one_consumer", "Pause_under_load_loses_nothing_per=topic_lock=session", "Pause_stops_a_singleton_and_resume_starts_it"}},
	{"registering a consumer again ends its pause", mutation{
		register: func(m *mutant, ctx context.Context, c backend.ConsumerInfo, resources []string) error {
			_ = m.Backend.Resume(ctx, c.Name) // an error when it is not known yet
			return m.Backend.Register(ctx, c, resources)
		},
	}, []string{"Pause/Nothing_is_granted_until_the_consumer_is_resumed", "Pause_under_load_loses_nothing_per=topic_lock=session"}},
}

var grantPaused = mutation{
	acquire: func(m *mutant, ctx context.Context, req backend.AcquireRequest) ([]backend.Grant, error) {
		if m.paused(ctx, req.Consumer.Name) {
			_ = m.Backend.Resume(ctx, req.Consumer.Name)
			defer m.Backend.Pause(context.WithoutCancel(ctx), req.Consumer.Name)
		}
		return m.Backend.Acquire(ctx, req)
	},
}

// paused reports whether a consumer is paused.
func (m *mutant) paused(ctx context.Context, consumer string) bool {
	s, err := m.Backend.Survey(ctx, []string{consumer})
	return err == nil && s[0].Paused
}

func TestMutantsAreCaught(t *testing.T) {
	for _, m := range mutants {
		for _, name := range m.caught {
			t.Run(m.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				began := time.Now()
				var said []string
				for tries := 0; tries < 20 && len(said) == 0; tries++ { // some checks meet a race in most runs, not in all
					said = judge(t, name, factoryOf(m.mutate))
				}
				if len(said) == 0 {
					t.Fatalf("%s does not notice: %s", name, m.name)
				}
				t.Logf("after %v: %s", time.Since(began).Round(time.Millisecond), said[0])
			})
		}
	}
}

// TestChecksPassWithoutMutation runs the same checks, with the same patience, on a
// backend that is not broken.
func TestChecksPassWithoutMutation(t *testing.T) {
	var names []string
	for _, m := range mutants {
		names = append(names, m.caught...)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if said := judge(t, name, factoryOf(mutation{})); len(said) > 0 {
				t.Errorf("complains of a backend without mutation: %s", said)
			}
		})
	}
}
