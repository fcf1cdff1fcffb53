package main

import (
	"os"
	"path/filepath"
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

func TestEveryDeliveryIsAccountedFor(t *testing.T) {
	for _, c := range []struct {
		name, dir string
		pace      time.Duration // between publications, so that some replica dies in between
		want      []string
	}{
		// The oddities of real deliveries in small: one without a repository, one without a
		// sender, a field of changing type, and one that is cut off.
		{"sample", "sample", 400 * time.Millisecond, []string{
			"activity       5     2             2      9            7",
			"archive        0     8             1      9            8"}},
		// 273 real ones, when they are there.
		{"real", "../../../shared/data/github-webhooks", 25 * time.Millisecond, []string{
			"activity      66   205             2    273          271",
			"archive        0   273             0    273          273"}},
	} {
		if found, _ := filepath.Glob(c.dir + "/*/*.json"); len(found) == 0 {
			t.Logf("%s: no deliveries in %s", c.name, c.dir)
			continue
		}
		t.Run(c.name, func(t *testing.T) { play(t, &run{deliveries: c.dir}, c.want) })
		t.Run(c.name+" while replicas are killed", func(t *testing.T) {
			out := play(t, &run{deliveries: c.dir, kill: time.Second, pace: c.pace, work: 10 * time.Millisecond}, c.want)
			if strings.Contains(out, " 0 kills") {
				t.Error("no replica was killed")
			}
		})
	}
}

func play(t *testing.T, r *run, want []string) string {
	var out strings.Builder
	r.Out, r.replicas = &out, 3
	err := r.Play(t.Context(), tables, r.play)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range want {
		if !strings.Contains(out.String(), line) {
			t.Errorf("the table has no line %q", line)
		}
	}
	return out.String()
}
