package compare

import (
	"io"
	"strings"
	"testing"
)

// Held streams cost at most the commands that they may, in both ways to hold them.
func TestHeld(t *testing.T) {
	var out strings.Builder
	if err := Held(t.Context(), []string{"-leases", "0", "-streams", "1000", "-idle", "5s"}, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if n := strings.Count(out.String(), "| reached |"); n != 2 {
		t.Errorf("%d of 2 ways to hold streams stay below the bound:\n%s", n, out.String())
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"-idle", "1ms"}, {"-leases", "-1"}, {"-leases", "0", "-streams", "many"}} {
		if err := Held(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
