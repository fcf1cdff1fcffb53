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

// The example fails by itself when the sums differ.
func TestNothingThatCommitsLateIsLost(t *testing.T) {
	var out strings.Builder
	r := run{orders: 2000}
	r.Out = &out
	err := r.Play(t.Context(), tables+shop+xid, r.play)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	if want := "2002 orders = 2002 shipped; 0 lost, 0 twice, 0 out of a customer's order\n"; !strings.Contains(out.String(), want) {
		t.Errorf("the output has no %q", want)
	}
}
