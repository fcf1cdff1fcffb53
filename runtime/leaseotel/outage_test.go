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

// silent is a backend that answers nothing.
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
		began := time.Now()
		var got metricdata.ResourceMetrics
		ok(t, x.reader.Collect(t.Context(), &got)) // an error would make periodic readers export none of it
		if took := time.Since(began); took > 9*time.Second {
			t.Errorf("collecting took %v", took)
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
