package leaseredis_test

import (
	"strings"
	"testing"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Data under names that are refused by now can be seen, paused and forgotten.
func TestNamesThatAreRefusedCanBeForgotten(t *testing.T) {
	client, namespace := redistest.Shared(t).Client(t), redistest.Namespace(t)
	be := on(client, namespace)
	kit.OK(t, be.Register(t.Context(), topical, []string{"x"}))
	key := "{" + namespace + "0}:consumers"
	record := kit.Must[string](t)(client.HGet(t.Context(), key, topical.Name).Result())
	names := []string{"a\u202eb", "a\tb", strings.Repeat("n", 300)}
	for _, name := range names {
		kit.OK(t, client.HSet(t.Context(), key, name, record).Err())
	}
	consumers := func() int {
		return len(kit.Must[[]operate.ConsumerStatus](t)(be.Status(t.Context())))
	}
	kit.Equal(t, "consumers", consumers(), 1+len(names))
	for i, name := range names {
		kit.OK(t, be.Pause(t.Context(), name))
		kit.OK(t, be.Resume(t.Context(), name))
		kit.OK(t, be.Forget(t.Context(), name))
		kit.Equal(t, "consumers", consumers(), len(names)-i)
	}
}
