package leaseredis_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// A view is filled with what topics hold while others publish, and several replicas fill it at
// once: each message is in it once, and in the order of its topic.
func TestAViewIsFilledWhileOthersPublish(t *testing.T) {
	for _, tags := range []int{1, 4} {
		t.Run(fmt.Sprint(tags, " tags"), func(t *testing.T) {
			t.Parallel()
			namespace := redistest.Namespace(t)
			connect := func() *leaseredis.Backend {
				return on(redistest.Shared(t).Client(t), namespace, leaseredis.WithTags(tags), leaseredis.WithLogger(discard))
			}
			be := connect()
			const topics, before = 12, 400
			counts := make([]int, topics) // some have most of it
			publish := func(from *leaseredis.Backend, topic, n int) error {
				return from.Publish(t.Context(), []backend.Event{{Topic: fmt.Sprint("t", topic), Key: fmt.Sprint("k", topic, n%5), Payload: fmt.Append(nil, n)}})
			}
			for topic := range topics {
				n := before
				if topic%4 == 0 {
					n = 4 * before
				}
				es := make([]backend.Event, n)
				for i := range es {
					es[i] = backend.Event{Topic: fmt.Sprint("t", topic), Key: fmt.Sprint("k", topic, i%5), Payload: fmt.Append(nil, i)}
				}
				kit.OK(t, be.Publish(t.Context(), es))
				counts[topic] = n
			}
			var wg sync.WaitGroup
			var mu sync.Mutex
			stop := make(chan struct{})
			for p := range 3 {
				from := connect()
				wg.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						topic := p + 3*(i%4)
						mu.Lock()
						n := counts[topic]
						counts[topic]++
						mu.Unlock()
						if err := publish(from, topic, n); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			infos := []backend.ConsumerInfo{
				{Name: "g", Per: backend.PerGroup, Topics: []string{"t*"}},
				{Name: "p", Per: backend.PerPartition, Topics: []string{"t1*", "t2"}},
				{Name: "s", Per: backend.PerStream, Topics: []string{"t*"}},
			}
			var registering sync.WaitGroup
			for range 3 {
				replica := connect()
				registering.Go(func() {
					for _, info := range infos {
						if err := replica.Register(t.Context(), info, nil); err != nil {
							t.Error(err)
						}
					}
				})
			}
			registering.Wait()
			close(stop)
			wg.Wait()
			for _, info := range infos {
				next := map[string]int{}
				read := func(resource string) {
					for _, m := range all(t, be, info, resource) {
						of := m.Topic
						if info.Per != backend.PerGroup {
							of = m.Key // order is kept per key
						}
						if h := fnv.New64a(); info.Per == backend.PerPartition {
							h.Write([]byte(m.Key))
							kit.Equal(t, "slot of "+m.Key, resource, fmt.Sprint(h.Sum64()%256))
						}
						n := 0
						fmt.Sscan(string(m.Payload), &n)
						if want, seen := next[of]; seen && n != want && info.Per == backend.PerGroup {
							t.Fatalf("%s: %s has %d, want %d", info.Name, of, n, want)
						} else if seen && n < want {
							t.Fatalf("%s: %s has %d after %d", info.Name, of, n, want-1)
						}
						next[of] = n + 1
						next["all of "+m.Topic]++
					}
				}
				switch info.Per {
				case backend.PerGroup:
					read(backend.Whole)
				case backend.PerPartition:
					for slot := range 256 {
						read(fmt.Sprint(slot))
					}
				case backend.PerStream:
					for topic := range topics {
						for k := range 5 {
							read(fmt.Sprint("k", topic, k))
						}
					}
				}
				for topic, n := range counts {
					name := fmt.Sprint("t", topic)
					if !backend.MatchTopic(info.Topics, name) {
						n = 0
					}
					kit.Equal(t, fmt.Sprintf("messages of %s in the view of %s", name, info.Name), next["all of "+name], n)
				}
			}
		})
	}
}

// Patterns that a later version adds count from then on; those of an older one stay. The owner of the
// resource reads them all: what it does not take is not for it to pass over.
func TestPatternsJoinAView(t *testing.T) {
	be := fresh(t, leaseredis.WithLogger(discard))
	older := backend.ConsumerInfo{Name: "g", Per: backend.PerGroup, Topics: []string{"a", "b"}}
	newer := backend.ConsumerInfo{Name: "g", Per: backend.PerGroup, Topics: []string{"b", "c"}}
	kit.OK(t, be.Register(t.Context(), older, nil))
	kit.OK(t, be.Register(t.Context(), newer, nil))
	for _, topic := range []string{"a", "b", "c", "d"} {
		kit.OK(t, be.Publish(t.Context(), kit.Events(topic, 1)))
	}
	topics := func(info backend.ConsumerInfo) (out string) {
		for _, m := range all(t, be, info, backend.Whole) {
			out += m.Topic
		}
		return out
	}
	kit.Equal(t, "read by the older version", topics(older), "abc")
	kit.Equal(t, "read by the newer version", topics(newer), "abc")
}

// A name stands for one kind of consumer.
func TestAConsumerStaysWhatItIs(t *testing.T) {
	namespace := redistest.Namespace(t)
	c := redistest.Shared(t).Client(t)
	be := on(c, namespace)
	kit.OK(t, be.Register(t.Context(), backend.ConsumerInfo{Name: "c", Per: backend.PerTopic, Topics: []string{"*"}}, nil))
	err := on(c, namespace).Register(t.Context(), backend.ConsumerInfo{Name: "c", Per: backend.PerGroup, Topics: []string{"*"}}, nil)
	refused(t, err, `"c"`, "per topic", "group", "another name")
	err = on(c, namespace).Register(t.Context(), backend.ConsumerInfo{Name: "c", Per: backend.PerTopic, Source: leaseredis.StreamSource{Names: []string{"s"}}}, nil)
	refused(t, err, `"c"`, "per topic", "streams")
}

// Publishers wait while a view is being filled that they would outrun, and for no other topics.
func TestPublishersWaitForAViewThatTheyOutrun(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	namespace := redistest.Namespace(t)
	be := on(client, namespace, leaseredis.WithLogger(discard))
	kit.OK(t, be.Register(t.Context(), topical, []string{}))
	hold := func(d time.Duration) {
		t.Helper()
		view := fmt.Sprintf(`{"k":"group","p":[["held.",""]],"at":"0","hold":"%d"}`, time.Now().Add(d).UnixMicro())
		kit.OK(t, client.HSet(t.Context(), "{"+namespace+"0}:views", "filling", view).Err())
	}
	hold(time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	kit.OK(t, be.Publish(ctx, kit.Events("free", 2)))
	const held = 700 * time.Millisecond
	began := time.Now()
	hold(held)
	kit.OK(t, be.Publish(t.Context(), kit.Events("held.x", 2)))
	if took := time.Since(began); took < held-50*time.Millisecond {
		t.Errorf("events of a held topic waited %v, want %v", took, held)
	}
	kit.Equal(t, "published", len(all(t, be, topical, "held.x")), 2)
}
