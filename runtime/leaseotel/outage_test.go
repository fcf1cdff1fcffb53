package leaseotel_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// silent is a backend that never answers.
type silent struct{ operate.Operator }

func (silent) Status(ctx context.Context) ([]operate.ConsumerStatus, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

type healthy struct{}

func (healthy) Health() []lease.Health { return []lease.Health{{Consumer: "c"}} }

// Metrics of the process come in time while the backend does not answer.
func TestTheBackendDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTraced(t)
		_, err := x.WatchStatus(silent{})
		ok(t, err)
		_, err = x.WatchHealth(healthy{})
		ok(t, err)
		var got metricdata.ResourceMetrics
		for _, within := range []time.Duration{9 * time.Second, 0} { // the second takes the first one's word
			began := time.Now()
			ok(t, x.reader.Collect(t.Context(), &got))
			if took := time.Since(began); took > within {
				t.Errorf("collecting took %v", took)
			}
		}
		for _, scope := range got.ScopeMetrics {
			for _, m := range scope.Metrics {
				if m.Name == "leasegen.consumer.ready" {
					return
				}
			}
		}
		t.Error("metrics of the process are missing, too")
	})
}
