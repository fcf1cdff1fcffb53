package leasepg_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Data under names that are refused by now can be seen, paused and forgotten.
func TestNamesThatAreRefusedCanBeForgotten(t *testing.T) {
	be, pool := migrated(t)
	kit.OK(t, be.Register(t.Context(), backend.ConsumerInfo{Name: "c", Per: backend.PerTopic, Topics: []string{"*"}}, []string{"x"}))
	names := []string{"", "a\u202eb", "a\nb", strings.Repeat("n", 300)}
	for _, name := range names {
		as, _ := json.Marshal(map[string]string{"name": name, "consumer": name})
		for table, column := range map[string]string{"consumer": "name", "lease": "consumer"} {
			_, err := pool.Exec(t.Context(), "INSERT INTO leasegen."+table+" SELECT (jsonb_populate_record(c, $1)).* FROM leasegen."+table+" c WHERE "+column+" = 'c'", string(as))
			kit.OK(t, err)
		}
	}
	consumers := func() int {
		return len(kit.Must[[]operate.ConsumerStatus](t)(be.Status(t.Context())))
	}
	kit.Equal(t, "consumers", consumers(), 1+len(names))
	for i, name := range names {
		kit.Equal(t, "leases", len(kit.Must[[]operate.LeaseStatus](t)(be.Leases(t.Context(), name, 9))), 1)
		kit.OK(t, be.Pause(t.Context(), name))
		kit.OK(t, be.Resume(t.Context(), name))
		kit.OK(t, be.Forget(t.Context(), name))
		kit.Equal(t, "consumers", consumers(), len(names)-i)
	}
}
