package leasetest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// Factory makes backends for the suite.
type Factory struct {
	// New returns a backend with an empty storage of its own. Its connections are closed,
	// or given back, with t.Cleanup.
	New func(t testing.TB) backend.Backend
	// Again returns another handle on the storage of be, as another process would have. It may be be itself when a
	// backend keeps no memory of its caller.
	Again func(t testing.TB, be backend.Backend) backend.Backend

	// Effect writes value through the transaction that handlers of the transaction form
	// get. Nil when the backend has no transactions.
	Effect func(ctx context.Context, be backend.Backend, tx any, value string) error
	// Effects returns what committed transactions wrote, in the order of writing.
	Effects func(t testing.TB, be backend.Backend) []string

	// Polls says that New's backends are not notified of changes (behind a transaction
	// pooler, for example) and find them by polling, which makes handovers up to a second slower.
	Polls bool

	// Simulated runs each test in simulated time (testing/synctest): at once, and exact on any machine. It is
	// for backends that live in the test's process alone. New is called within the bubble, where all timers, channels
	// and goroutines of the backend belong. Tests that are skipped are reported as passed; -v prints the reason.
	Simulated bool

	// SetBack remembers the storage of be as it is now. The function it returns brings it back to that
	// under all who use it, as the promotion of a standby does that lacks every write since. Nil when
	// the backend is not set back in this run, see RunHistory.
	SetBack func(t testing.TB, be backend.Backend) (restore func())

	// PublishLate writes events within a transaction that stays open until commit or
	// rollback is called. Nil when published events are visible in the order of their ids.
	PublishLate func(t testing.TB, be backend.Backend, events ...backend.Event) (commit, rollback func())
}

// check is one test of the suite. It gets a testing.TB so that mutants can be run
// against it without failing the test that does so.
type check struct {
	// name is "Subject/Rule" for rules of the contract, and begins with the ids of the
	// scenarios for scenarios.
	name string
	run  func(t testing.TB, f Factory)
}

// Run runs the whole suite, or, with go test -short, as much of it as RunVariant. Its parts run in parallel, each on a backend of its own.
func Run(t *testing.T, f Factory) {
	if testing.Short() {
		t.Log("-short: every rule of the contract, and one scenario of each kind")
		RunVariant(t, f)
		return
	}
	RunSome(t, f, "")
}

// RunVariant is Run for one more way to storage that Run has tested: over a pooler, on a cluster, with
// fewer rights. It has every rule of the contract, which calls each method over that way, and one scenario
// for each way in which a runtime uses them. Run on the variant shows the rest.
func RunVariant(t *testing.T, f Factory) {
	runAll(t, f, func(name string) bool {
		rule := strings.Contains(name, "/") && !strings.HasPrefix(name, "Misbehaving/")
		return rule || slices.ContainsFunc(ofVariants(), func(p string) bool { return strings.HasPrefix(name, p) })
	})
}

// ofVariants are the beginnings of the names of scenarios: crashes, handovers, transactions, streams, slots, small pools.
func ofVariants() []string {
	return []string{
		"A_crashed_process", "A_graceful_stop", "A_zombie", "A_stream_survives", "Concurrent_publishers_while", "Effects_of_the_transaction_form",
		"Lost_replies_lose_nothing", "Once_Effects", "Partitions_of_a_crashed_process", "Pause_under_load_loses_nothing_per=topic",
		"Pool_", "Rolling_deploy_that_widens_topics", "Streams_of_a_crashed_process",
	}
}

// RunSome is Run for those tests whose names begin with one of the prefixes.
func RunSome(t *testing.T, f Factory, prefixes ...string) {
	runAll(t, f, func(name string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
	})
}

func runAll(t *testing.T, f Factory, wanted func(name string) bool) {
	for _, c := range checks() {
		if !wanted(c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if f.Simulated {
				kit.Bubble(t, func(t *testing.T) { c.run(t, f) })
				return
			}
			c.run(t, f)
		})
	}
}

func checks() []check {
	var all []check
	for _, part := range [][]check{
		partitionChecks, streamChecks, rowChecks, cursorChecks,
		sessionChecks, replacesChecks, leaseChecks, versionChecks, logChecks, lateChecks, commitChecks, parkedChecks, deadChecks, feedChecks, txChecks, operatorChecks, publishChecks, onceChecks,
		partitionScenarios, streamScenarios, orderScenarios, retryScenarios, payloadScenarios, ownershipScenarios, faultScenarios, killScenarios, txScenarios, poolScenarios, onceScenarios, misbehaveScenarios, traceScenarios, rollingScenarios,
		pauseChecks, pauseScenarios,
		historyChecks, historyScenarios,
	} {
		all = append(all, part...)
	}
	return all
}
