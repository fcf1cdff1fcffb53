package leaseotel

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasegen/leasegen/runtime/leaseotel/internal/metrics"
)

// attrs are the attributes of a measurement, as counters, histograms and gauges take them. Made once, they cost a
// measurement no allocation.
type attrs struct {
	all     []attribute.KeyValue
	add     []metric.AddOption
	record  []metric.RecordOption
	observe []metric.ObserveOption
}

func attrsOf(all ...attribute.KeyValue) attrs {
	set := metric.WithAttributeSet(attribute.NewSet(slices.Clone(all)...)) // which sorts what it is given
	return attrs{all, []metric.AddOption{set}, []metric.RecordOption{set}, []metric.ObserveOption{set}}
}

// and has more attributes.
func (a attrs) and(more ...attribute.KeyValue) attrs { return attrsOf(slices.Concat(a.all, more)...) }

// made is what is made once for each key, of which there are few.
type made[K comparable, V any] struct {
	mu  sync.RWMutex
	all map[K]*V
}

func (m *made[K, V]) get(k K) *V {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.all[k]
}

// put keeps v, unless there is one already, and returns what is kept and whether that is v.
func (m *made[K, V]) put(k K, v *V) (kept *V, first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if there := m.all[k]; there != nil {
		return there, false
	}
	if m.all == nil {
		m.all = map[K]*V{}
	}
	m.all[k] = v
	return v, true
}

func (m *made[K, V]) each(f func(*V)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, v := range m.all {
		f(v)
	}
}

// consumer is what measurements of a consumer have in common.
type consumer struct {
	about, commit, crashed, free attrs
}

// consumer returns what is kept of a consumer. Its counters begin at zero when it is seen first: of a counter that appears
// with its first event, Prometheus would not see that event.
func (ins *instruments) consumer(name string) *consumer {
	if c := ins.consumers.get(name); c != nil {
		return c
	}
	about := attrsOf(system, semconv.MessagingConsumerGroupName(name))
	c := &consumer{
		about: about, commit: about.and(semconv.MessagingOperationName("commit"), semconv.MessagingOperationTypeSettle),
		crashed: about.and(metrics.Crashed.Bool(true)), free: about.and(metrics.Crashed.Bool(false)),
	}
	c, first := ins.consumers.put(name, c)
	if first {
		ctx := context.Background()
		for _, counter := range []metric.Int64Counter{ins.released, ins.lost, ins.fenced, ins.stalled, ins.notWritten, ins.missed, ins.setBack} {
			counter.Add(ctx, 0, c.about.add...)
		}
		ins.acquired.Add(ctx, 0, c.crashed.add...)
		ins.acquired.Add(ctx, 0, c.free.add...)
	}
	return c
}

// calls is what calls of a consumer for messages of a kind have in common. Their spans begin with the attributes that a
// sampler cannot read from the name, and get the others when they are recorded.
type calls struct {
	name           string
	options        []trace.SpanStartOption
	recorded       []attribute.KeyValue
	about, process attrs
	outcomes       [4]attrs     // handled, parked, dead, skipped
	given          atomic.Int64 // messages
}

// callsOf has a label of a kind, so that there are few.
type callsOf struct{ consumer, kind string }

// callsOf returns what is kept of calls; their counters begin at zero as those of a consumer.
func (ins *instruments) callsOf(consumer, kind string) *calls {
	if c := ins.calls.get(callsOf{consumer, kind}); c != nil {
		return c
	}
	of := callsOf{consumer, ins.kinds.label(kind)}
	if c := ins.calls.get(of); c != nil {
		return c
	}
	about := attrsOf(system, semconv.MessagingConsumerGroupName(consumer), kindKey.String(of.kind))
	fresh := &calls{
		name:     name("process", of.kind),
		options:  []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(about.all[1:]...)},
		recorded: []attribute.KeyValue{system, semconv.MessagingOperationName("process"), semconv.MessagingOperationTypeProcess},
		about:    about, process: about.and(semconv.MessagingOperationName("process")),
	}
	for i, outcome := range [...]string{"handled", "parked", "dead", "skipped"} {
		fresh.outcomes[i] = about.and(metrics.Outcome.String(outcome))
	}
	c, first := ins.calls.put(of, fresh)
	if first {
		for _, counter := range []metric.Int64Counter{ins.retries, ins.dead, ins.stuck} {
			counter.Add(context.Background(), 0, c.about.add...)
		}
		for _, o := range c.outcomes {
			ins.messages.Add(context.Background(), 0, o.add...)
		}
	}
	return c
}
