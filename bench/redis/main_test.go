package main

import (
	"io"
	"strings"
	"testing"
)

// All contenders still compile, drain everything, and are compared.
func TestDrains(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"-n", "2000", "-rounds", "1"}, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"| leasegen | 1 topic", "| leasegen | 8 topics", "| watermill | 1 topic", "| watermill | 8 topics", "| asynq |",
		"as watermill at its fastest; target 5:", "as asynq at its fastest; target 1:"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
}

// Held streams cost at most the commands that they may, in both ways to hold them.
func TestHeld(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"-held", "-streams", "1000", "-idle", "5s"}, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if n := strings.Count(out.String(), "| reached |"); n != 2 {
		t.Errorf("%d of 2 ways to hold streams stay below the bound:\n%s", n, out.String())
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"-n", "0"}, {"-rounds", "0"}, {"-idle", "1ms"}, {"-only", "nobody"}, {"-held", "-streams", "many"}} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
