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

// The example fails by itself when an event is processed again or out of order, or when
// a former owner is not refused.
func TestEachStreamIsWorkedOnByOneReplica(t *testing.T) {
	var out strings.Builder
	r := run{streams: 40, events: 240} // so many that a busy machine takes over, and again, before the streams are at their end
	r.Out = &out
	err := r.Play(t.Context(), "", r.play)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`three replicas have all they can take +8 +8 +8 +16 `,
		`refused: replica-3, (GET|POST) /streams/stream-\d\d/\w+ with epoch \d+ \(now \d+\)`,
		`(\d+) events = processed once and in order \d+; \d+ streams changed hands`,
	} {
		if !regexp.MustCompile(line).MatchString(out.String()) {
			t.Errorf("the output has no line like %s", line)
		}
	}
}
