package main

import (
	"os"
	"strings"
	"testing"
)

// The replicas are this test binary, run again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-replica" {
		main()
		return
	}
	os.Exit(m.Run())
}

// The example fails by itself when something is lost, handled twice or out of order.
func TestNothingIsLostAndThePoisonIsRepaired(t *testing.T) {
	var out strings.Builder
	r := run{payments: 3000}
	r.Out = &out
	err := r.Play(t.Context(), tables, r.play)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"leasegen, per=group                3001     3000             1      0      0             0",
		"published 3001 = booked 3001 + dead letters 0",
	} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("there is no line %q", line)
		}
	}
}
