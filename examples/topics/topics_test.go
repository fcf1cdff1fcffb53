package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

// The replicas are this test binary, run again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-replica" {
		main()
		return
	}
	os.Exit(m.Run())
}

// The example fails by itself when the sums differ, or when idle replicas write.
func TestTopicsAreSharedOutAndNothingIsLost(t *testing.T) {
	var out strings.Builder
	r := run{topics: 300, idle: 500 * time.Millisecond}
	r.Out = &out
	err := r.Play(t.Context(), tables, r.play)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"replica-1 300\n",
		"replica-1 100, replica-2 100, replica-3 100\n",
		"replica-1 150, replica-3 150\n",
		"1500 invoices of 230250 cents = on the statements 1500 of 230250 cents, 0 out of order",
	} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("the output has no %q", line)
		}
	}
}
