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

// The example fails by itself when a leader of the past gets a write through, or when
// its leaderships take more than a connection.
func TestLeadershipPasses(t *testing.T) {
	var out strings.Builder
	var r run
	r.Out = &out
	err := r.Play(t.Context(), tables, r.play)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`three replicas start .* replica-1 5\n`,
		`replica-1 gets SIGTERM +\d+ ms +replica-[23] \d`,
		`replica-\d is killed \(SIGKILL\) +\d+ ms +replica-\d \d`,
		`replica-\d is frozen \(SIGSTOP\) +\d+ ms +replica-\d \d`,
		`refused: replica-\d wrote for \w+ with epoch \d+ \(now \d+\)`,
		`accepted of a leader of the past: 0\n`,
		`the first leader held its 5 leaderships on 1 connection\n`,
	} {
		if !regexp.MustCompile(line).MatchString(out.String()) {
			t.Errorf("the output has no line like %s", line)
		}
	}
}
