package leaseredis

import (
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// Messages that no consumer takes are found, and are gone with their key; messages with a consumer are not among them.
func TestUnmatchedTopics(t *testing.T) {
	eachSpread(t, func(t *testing.T, a *actor) {
		for _, info := range []backend.ConsumerInfo{
			{Name: "orders", Per: backend.PerTopic, Topics: []string{"orders.*"}},
			{Name: "parts", Per: backend.PerPartition, Topics: []string{"parts"}},
			{Name: "odd", Per: backend.PerTopic, Topics: []string{"odd:stream"}, Source: StreamSource{Names: []string{"odd:stream"}}},
		} {
			kit.OK(t, a.Register(t.Context(), info, nil))
		}
		a.publishes(3, "orders.eu", "parts", "orders")
		a.publishes(4, "odd:stream")
		find := func(want ...UnmatchedTopic) {
			t.Helper()
			got, err := a.UnmatchedTopics(t.Context())
			kit.OK(t, err)
			kit.Equal(t, "topics without a consumer", len(got), len(want))
			for i := range got {
				if n := a.client.XLen(t.Context(), got[i].Key).Val(); n != got[i].Messages {
					t.Errorf("%+v, but its key has %d messages", got[i], n)
				}
				got[i].Key = ""
				kit.Equal(t, "a topic", got[i], want[i])
			}
		}
		find(UnmatchedTopic{Topic: "odd:stream", Messages: 4}, UnmatchedTopic{Topic: "orders", Messages: 3})
		got, err := a.UnmatchedTopics(t.Context())
		kit.OK(t, err)
		kit.OK(t, a.client.Del(t.Context(), got[0].Key).Err())
		find(UnmatchedTopic{Topic: "orders", Messages: 3})
		kit.OK(t, a.Register(t.Context(), backend.ConsumerInfo{Name: "late", Per: backend.PerGroup, Topics: []string{"ord*"}}, nil))
		find()
	})
}
