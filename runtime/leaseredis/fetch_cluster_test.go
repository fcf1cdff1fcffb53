package leaseredis_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// A node that hangs holds up the topics that are kept there, and no others; their time comes when it answers again. The feed of their
// consumer names them, whatever the feed of another consumer did before.
func TestANodeThatHangsHoldsUpNoOtherTopics(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it starts six servers")
	}
	cluster := redistest.StartCluster(t, redistest.Config("cluster-require-full-coverage", "no"), redistest.Config("cluster-node-timeout", "60000"))
	be := on(cluster.Client(t), "lg", leaseredis.WithLogger(discard))
	kit.OK(t, be.Register(t.Context(), topical, []string{}))
	req := backend.FetchRequest{Consumer: topical, MaxPayload: 99}
	for i := range 32 {
		topic := fmt.Sprint("t", i)
		kit.OK(t, be.Publish(t.Context(), kit.Events(topic, 1)))
		req.Items = append(req.Items, backend.FetchItem{Resource: topic, Limit: 9})
	}
	open := func(info backend.ConsumerInfo) backend.Feed {
		feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), []backend.ConsumerInfo{info}))
		t.Cleanup(func() { feed.Close() })
		return feed
	}
	feed, other := open(topical), open(backend.ConsumerInfo{Name: "other", Per: backend.PerTopic, Topics: []string{"*"}})
	hung := cluster.MasterOf(t, "lg0")
	there := map[int]bool{} // tags
	for tag := range 8 {
		there[tag] = cluster.MasterOf(t, fmt.Sprint("lg", tag)) == hung
	}
	hung.Pause()
	began := time.Now()
	fs := kit.Must[[]backend.Fetched](t)(be.Fetch(t.Context(), req))
	if took := time.Since(began); took > time.Minute { // it hangs for longer
		t.Errorf("it took %v", took)
	}
	for i, f := range fs {
		want := 1
		if there[tagOf(req.Items[i].Resource, 8)] {
			want = 0
		}
		kit.Equal(t, "messages of "+f.Resource, len(f.Messages), want)
	}
	time.Sleep(time.Second) // longer than the topics rest
	kit.Must[backend.News](t)(other.Next(t.Context()))
	hung.Resume()
	missing := map[string]bool{}
	for _, f := range fs {
		if len(f.Messages) == 0 {
			missing[f.Resource] = true
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for len(missing) > 0 {
		for _, topic := range kit.Must[backend.News](t)(feed.Next(ctx)).Topics {
			if missing[topic] && len(kit.Fetch(t, be, topical, topic, nil, 9).Messages) == 1 {
				delete(missing, topic)
			}
		}
	}
}
