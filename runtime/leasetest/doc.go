// Package leasetest is the conformance suite of leasegen's backends, and has help for
// users' own tests.
//
// # For users
//
// [Drain] runs a consumer until everything published before is dealt with. With the
// memory backend, a test of a consumer needs nothing else.
//
// # For backends
//
// [Run] runs the suite on a backend. It has two layers:
//
//   - the contract: every method and every rule of package backend, called
//     directly. These tests are named Subject/Rule.
//   - scenarios: several simulated processes, each a consumer of the real runtime with
//     its own handle on the backend, that fail, retry, crash, are cut off, join and
//     leave. These are named after the scenarios below, where they have a number.
//
// What needs a role that the backend's Capabilities lack, or a function that the [Factory] lacks, is skipped. Most scenarios, and [Drain],
// need Capabilities.Operator. The backend's log has 64 slots or more.
//
// Most of the time the tests wait, so run many at once: see [Parallel].
//
// That the suite is able to fail is tested too: mutants_test.go breaks a backend in one
// way at a time and wants the suite to notice. sim_test.go runs the runtime in
// simulated time under faults that a seed chooses (go test -run Simulation -seeds 10000).
//
// Misbehaving/... makes one kind of call of a backend hang, fail, answer late, twice or
// wrongly; TestMisbehaviour goes through all of these cells in simulated time.
//
// # Scenarios
//
// T000 and T003 are the scenarios that two existing systems test; X are those that no
// such system was found to test. "Rule" means the contract test of that name.
//
//	T000-01 -02 -16       Acquire/Takes_what_is_unheld_..., Acquire/Grants_each_resource_once_...
//	T000-03               Acquire/Epochs_rise_over_release_close_and_crash
//	T000-04               T000-04_T003-63_X-15_A_crashed_process_is_taken_over_from_...
//	T000-05 -17           Session/Heartbeat_keeps_it_beyond_its_TTL
//	T000-06 -21           Session/Ends_terminally_when_it_expires
//	T000-07 -08 -18 -22   Release/...
//	T000-09 -10 -19 -23   Session/Close_...
//	T000-15               Acquire/Takes_over_after_the_TTL_and_not_before; an owner does not acquire again what it holds
//	T000-20               T000-20_Stopping_over_a_broken_link_...
//	T000-24               T000-24_Loss_is_told_once_...
//	T000-25 -31           T000-25_T000-31_Streams_are_owned_while_...; Stream/Is_granted_when_it_was_registered
//	T000-26 -28 -30       T000-26_Capacity_caps_a_process, T000-26_T000-28_T000-30_Capacity_caps_streams_..., T000-28_Idle_streams_...
//	T000-27               T000-27_A_stream_is_kept_while_there_is_work
//	T000-32 -35 -36       T000-32_T000-35_T000-36_A_stream_owned_elsewhere_does_not_run
//	T000-37               T000-37_Concurrent_announcements_share_one_acquire
//	T000-38               T000-38_A_stream_runs_again_...; Stream/Announced_ones_are_wanted_until_retired
//	T000-29 -38           T000-07_T000-38_T003-33_A_stopped_consumer_leaves_nothing_behind
//	T000-30               T000-30_An_observer_sees_what_happened
//	T000-32               T000-32_A_cluster_consumer_runs_on_one_process_and_moves
//	T000-39 -40 -41 -42 -43  named scenarios, for order=key, block and none
//	T000-44               sim_test.go instead of properties of a state machine
//	T003-01 -07           Acquire/Takes_what_is_unheld_and_refuses_what_is_held
//	T003-02               Register/Before_there_are_messages; T000-39_T003-45_... has a topic that appears later
//	T003-03               Session/Heartbeat_keeps_it_beyond_its_TTL
//	T003-04 -08           Acquire/Takes_over_after_the_TTL_and_not_before
//	T003-05 -61 -62       Feed/...
//	T003-06 -13 -24       Commit/Fenced_..., Commit/Is_fenced_...
//	T003-10 -12           Release/...
//	T003-14 -25           T003-14_T003-25_X-25_A_stopping_process_finishes_its_call_...
//	T003-16 -17 -18       Commit/Is_fenced_when_the_lease_was_lost_and_regained; T003-17_T003-18_...
//	T003-19               reversed: Session/Must_be_open_to_acquire, for nothing revives a session
//	T003-21 -23 -26 -28   X-02_T003-21_..., T000-24_..., X-17_...
//	T003-29 -30 -31 -34 -36  Dead/Maintain_keeps_to_the_bounds_... (what expires here is dead letters)
//	T003-33 -38           T000-07_..., X-21_T003-38_...
//	T003-41               Maintain/Forgets_dead_sessions_but_never_revives_them
//	T003-45 -46 -50 -59   T000-39_..., T003-46_..., T003-50_...
//	T003-47 -56 -57       Tx/..., T003-56_...
//	T003-49               Retry_... and Dead_letter_... scenarios
//	T003-58               X-11_T003-58_Bad_payloads_...
//	T003-63 -64           T000-04_..., X-02_... (it comes back)
//	T003-65               T003-65_Unknown_kinds_...
//	X-01 X-14             Commit/Is_fenced_after_a_takeover_..., X-01_X-14_A_zombie_commits_nothing, X-01_X-13_X-14_Effects_...
//	X-02                  X-02_T003-21_...
//	X-03                  sim_test.go steps the server's clock; clients' clocks are never sent to a backend
//	X-04                  X-04_Epochs_rise_on_a_storage_that_lost_its_memory
//	X-05                  X-05_Heartbeats_alone_fail
//	X-08                  Acquire/Is_bulk_and_bounded_by_Max, for 2,000
//	X-09                  X-09_... (two)
//	X-11                  X-11_T003-58_...
//	X-12                  X-12_Restarts_and_handovers_consume_no_attempts
//	X-13                  X-13_A8_Lost_replies_lose_nothing, X-01_X-13_X-14_Effects_...
//	X-15                  T000-04_T003-63_X-15_...
//	X-16                  X-16_... (two)
//	X-17 X-21 X-25        named scenarios
//
// These are not in the suite:
//
//	T000-11 -12 -13 -14 -33  a backend is chosen by a constructor that is called; there is no factory to ask
//	T000-34               margins and TTLs are checked in runtime/lease
//	T000-45               there is no state machine to put in error by hand
//	T003-09 -11 -32 -37 -43 -44  there are no shared subscriptions, dormancy or activity marks
//	T003-15 X-07          counting a database's writes: with the backend that has a database
//	T003-20 -40 -42       there are no leases of an older form
//	T003-22 -27           watchers are not a concept here
//	T003-35 -39           dead letters have no default TTL; maintenance takes no leases
//	T003-48 -60 -66 -67   Go channels and flushers are not a concept here
//	T003-51 to -55        migrations and schemas: with the backend that has them
//	X-06 X-10 X-18        pools, vacuum and LISTEN: with the backend that has them
package leasetest
