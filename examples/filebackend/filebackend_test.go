package filebackend

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasetest"
)

func TestMain(m *testing.M) {
	leasetest.Parallel(32)
	os.Exit(m.Run())
}

func open(t testing.TB, path string) *Backend {
	t.Helper()
	b, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// The backend keeps nothing of its callers, so that one value is a handle of every process.
func TestConformance(t *testing.T) {
	leasetest.Run(t, leasetest.Factory{
		Simulated: true,
		New: func(t testing.TB) backend.Backend {
			return open(t, filepath.Join(t.TempDir(), "journal"))
		},
		Again: func(t testing.TB, be backend.Backend) backend.Backend { return be },
	})
}
