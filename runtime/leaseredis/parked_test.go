package leaseredis

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

// When a shard is lost, parked messages that the others keep are retried, housekeeping is done there, and members are listed: also
// where another consumer's session in the same process still takes the shard for there.
func TestALostShardHoldsUpNoParkedMessagesElsewhere(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it starts six servers")
	}
	cluster := redistest.StartCluster(t, redistest.Config("cluster-require-full-coverage", "no"))
	const name = "lg"
	quiet := WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
	be := New(cluster.Client(t), WithNamespace(name), quiet)
	a := join(t, be, perTopic())
	sh, err := a.shape(t.Context())
	kit.OK(t, err)
	lost, replica := cluster.MasterOf(t, name+"0"), cluster.ReplicaOf(t, name+"0")
	topics := []string{}
	left := map[string]bool{} // topics that are not lost
	for i := range 24 {
		topic := fmt.Sprint("topic", i)
		topics = append(topics, topic)
		if cluster.MasterOf(t, fmt.Sprint(name, sh.tagOf(topic))) != lost {
			left[topic] = true
		}
	}
	if len(left) == 0 || len(left) == len(topics) {
		t.Fatalf("%d of %d topics are elsewhere", len(left), len(topics))
	}
	a.publishes(1, topics...)
	for _, g := range a.takes(len(topics), topics...) {
		got := a.reads(g, 1)
		a.Commits(a.next(g, backend.Progress{Cursor: got.Next, Park: []backend.Park{{ID: got.Messages[0].ID, Lane: "k", Attempt: 1}}}))
		kit.OK(t, a.Release(t.Context(), a.ID, "c", []backend.Ref{g.Ref}))
	}
	other := New(cluster.Client(t), WithNamespace(name), quiet)
	patient := backend.ConsumerInfo{Name: "patient", Per: backend.PerTopic, Topics: []string{"none"}}
	join(t, other, patient) // it runs already
	replica.Kill()
	lost.Kill()

	b := join(t, other, perTopic())
	parked := map[string]bool{}
	for deadline := time.Now().Add(time.Minute); len(parked) < len(left); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("parked messages of %d of %d topics were read: %v", len(parked), len(left), err)
		}
		if _, err = b.Acquire(t.Context(), backend.AcquireRequest{Session: b.ID, Consumer: b.Info, Max: 100, Attempt: kit.ID()}); err != nil {
			continue
		}
		var p backend.Parked
		p, err = b.FetchParked(t.Context(), backend.ParkedRequest{Session: b.ID, Consumer: b.Info, Limit: 100, MaxPayload: 1 << 20})
		for _, m := range p.Messages {
			if !left[m.Topic] {
				t.Fatalf("%s is lost, and a message of it was read", m.Topic)
			}
			parked[m.Topic] = true
		}
	}
	info, names := b.Info, []string{b.Info.Name}
	info.Keep = time.Hour
	if release, err := b.takeToken(t.Context(), sh, names, "maintaining", time.Minute); err != nil || release == nil {
		t.Errorf("the housekeeping is not begun: %v", err)
	}
	if _, err := b.expireDead(t.Context(), sh, info); err != nil {
		t.Error(err)
	}
	if _, err := b.forgetSessions(t.Context(), sh, names); err != nil {
		t.Error(err)
	}
	members, err := b.Members(t.Context(), info.Name)
	kit.OK(t, err)
	if !slices.ContainsFunc(members, func(m operate.MemberStatus) bool { return m.Session == b.ID }) {
		t.Errorf("members: %+v, want %s among them", members, b.ID)
	}
}
