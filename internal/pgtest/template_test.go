package pgtest_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/leasegen/leasegen/internal/pgtest"
)

// Servers that start at once and later ones have copies of one data directory, and change none but their own.
func TestTemplate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made when it is missing")
	t.Setenv("LEASEGEN_PG_TEMPLATES", dir)
	var first sync.WaitGroup
	for range 2 {
		first.Go(func() {
			s, err := pgtest.Launch()
			if err != nil {
				t.Error(err)
				return
			}
			s.Close()
		})
	}
	first.Wait()
	a, b := pgtest.Start(t), pgtest.Start(t)
	exec1(t, a.DSN("template1"), "CREATE TABLE only_here (id int)")
	const identifier = "SELECT system_identifier::text FROM pg_control_system()"
	if x, y := query(t, a.DSN("postgres"), identifier), query(t, b.DSN("postgres"), identifier); x != y {
		t.Errorf("two servers of one template: %s and %s", x, y)
	}
	for _, s := range []*pgtest.Server{b, pgtest.Start(t)} {
		if got := query(t, s.DSN("template1"), "SELECT count(*)::text FROM pg_class WHERE relname = 'only_here'"); got != "0" {
			t.Error("a table of one server is in another")
		}
	}
	kept, err := os.ReadDir(dir)
	if err != nil || len(kept) != 1 {
		t.Errorf("kept: %v, %v; want one data directory", kept, err)
	}
	t.Setenv("LEASEGEN_PG_TEMPLATES", "")
	if x, y := query(t, a.DSN("postgres"), identifier), query(t, pgtest.Start(t).DSN("postgres"), identifier); x == y {
		t.Errorf("a server without a template has the identifier of others, %s", x)
	}
}
