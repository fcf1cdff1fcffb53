// Package leasehealth answers the probes of an orchestrator with the state of a process's consumers:
//
//	g := lease.NewGroup()
//	…
//	mux.Handle("/livez", leasehealth.Live(g))
//	mux.Handle("/readyz", leasehealth.Ready(g))
//
// Both answer 200 or 503 with a JSON document that has an entry for each consumer. Neither asks a server: an outage of
// PostgreSQL or Redis makes processes not ready, and restarts none.
package leasehealth

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
)

// Source is what probes ask: a *lease.Group.
type Source interface{ Health() []lease.Health }

// Live answers 503 when a consumer's Run has returned, so that the process works no more. It answers 200 before Run and
// while the process drains: restarting it then would not help.
func Live(s Source) http.Handler {
	return handler(s, func(c lease.Health) bool { return !c.Ended })
}

// Ready answers 503 unless every consumer has a session that it believes in and gets on with its work, see
// lease.Consumer.Ready; one that an operator has paused is ready, and its entry says "paused". It is for rolling updates,
// which wait for it; a process that is not ready is sent no less work.
func Ready(s Source) http.Handler {
	return handler(s, func(c lease.Health) bool { return c.Trouble == "" })
}

func handler(s Source, ok func(lease.Health) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "use GET", http.StatusMethodNotAllowed)
			return
		}
		answer := document{OK: true, Consumers: []consumer{}}
		for _, c := range s.Health() {
			answer.OK = answer.OK && ok(c)
			answer.Consumers = append(answer.Consumers, describe(c))
		}
		answer.OK = answer.OK && len(answer.Consumers) > 0
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if !answer.OK {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(answer) // who asked may be gone
	})
}

type document struct {
	OK        bool       `json:"ok"`
	Consumers []consumer `json:"consumers"`
}

type consumer struct {
	Consumer  string     `json:"consumer"`
	Ended     bool       `json:"ended,omitempty"`
	Trouble   string     `json:"trouble,omitempty"`
	Paused    bool       `json:"paused,omitempty"`
	Session   string     `json:"session,omitempty"`
	BeliefMS  int64      `json:"belief_ms"`
	Leases    int        `json:"leases"`
	Progress  *time.Time `json:"progress,omitempty"`
	Stuck     int        `json:"stuck"`
	StuckCall []stuck    `json:"stuck_calls,omitempty"` // the longest
}

// mostCalls bounds the calls that an answer has of a consumer.
const mostCalls = 20

type stuck struct {
	Resource  string `json:"resource"`
	Kind      string `json:"kind"`
	ID        string `json:"id"`
	RunningMS int64  `json:"running_ms"`
}

func describe(h lease.Health) consumer {
	c := consumer{Consumer: h.Consumer, Ended: h.Ended, Trouble: h.Trouble, Paused: h.Paused, Session: h.Session,
		BeliefMS: h.Belief.Milliseconds(), Leases: h.Leases, Stuck: len(h.Stuck)}
	if !h.Progress.IsZero() {
		c.Progress = &h.Progress
	}
	for _, s := range h.Stuck[:min(len(h.Stuck), mostCalls)] {
		c.StuckCall = append(c.StuckCall, stuck{s.Resource, s.Kind, s.ID, s.Running.Milliseconds()})
	}
	return c
}
