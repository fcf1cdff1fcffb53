package main

import (
	"os"
	"regexp"
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

// The example fails by itself when a reading is added again or out of order, or when a work
// item ends as a dead letter.
func TestFeedsAreSharedOutAndGoOnElsewhere(t *testing.T) {
	var out strings.Builder
	r := run{feeds: 24, readings: 600}
	r.Out = &out
	err := r.Play(t.Context(), r.play)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`three replicas share the feeds +8 +8 +8 +- +0 `,
		`others have replica-2's, killed +\d +- +\d +\d +0 `,
		`others have replica-3's, stopped +\d +\d +- +\d +0 `,
		`(\d+) readings = added once and in order \d+; 24 feeds = done 24 \+ dead letters 0; [1-9]\d* feeds changed hands`,
	} {
		if !regexp.MustCompile(line).MatchString(out.String()) {
			t.Errorf("the output has no line like %s", line)
		}
	}
}
