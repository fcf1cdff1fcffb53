package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The replicas are this test binary, started again.
func TestMain(m *testing.M) {
	if os.Getenv(envReplica) != "" {
		os.Exit(replicaMain())
	}
	os.Exit(m.Run())
}

const images = "../../docs/images"

// The recordings give the pictures that the pages show, byte by byte.
func TestRecordedPicturesAreDrawn(t *testing.T) {
	for _, p := range pictures() {
		files, err := p.files(filepath.Join("raw", p.name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		for name, svg := range files {
			if got, err := os.ReadFile(filepath.Join(images, name)); err != nil || !bytes.Equal(got, svg) {
				t.Errorf("docs/images/%s is not what was recorded (%v); go run ./proof/pictures -render", name, err)
			}
		}
	}
}

// Each picture is on a page, with words for readers that do not see it.
func TestPicturesAreOnPages(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for _, p := range pictures() {
		for _, want := range []string{`images/` + p.name + `.svg" alt="`, `srcset="images/` + p.name + `-dark.svg"`} {
			if !strings.Contains(strings.ReplaceAll(all.String(), "docs/images/", "images/"), want) {
				t.Errorf("no page has %s", want)
			}
		}
	}
}

func TestFenceIsRecorded(t *testing.T) {
	t.Parallel()
	f, err := recordFence(t.Context(), quick)
	if err != nil {
		t.Fatal(err)
	}
	late := slices.ContainsFunc(f.Commits[0], func(at float64) bool { return at > 0 })
	if len(f.Commits[1]) == 0 || f.Taken > f.Thawed || f.Refused < f.Thawed || late {
		t.Errorf("%+v", f)
	}
	drawFence(f)
}

func TestRebalanceIsRecorded(t *testing.T) {
	t.Parallel()
	r, err := recordRebalance(t.Context(), quick)
	if err != nil {
		t.Fatal(err)
	}
	var each [][]int
	for _, st := range r.Steps {
		slices.Sort(st.Each)
		each = append(each, st.Each)
	}
	want := [][]int{{0, 0, 0, 16}, {0, 0, 8, 8}, {0, 5, 5, 6}, {4, 4, 4, 4}, {0, 5, 5, 6}, {0, 0, 8, 8}}
	if !slices.EqualFunc(each, want, slices.Equal) {
		t.Errorf("slots of each replica %v, want %v", each, want)
	}
	if rests := r.rests(); len(rests) == 0 || rests[0] < 0 {
		t.Errorf("rests %v: a slot had two owners, or none moved", rests)
	}
	drawRebalance(r)
}

func words(spots []spot) (all []string) {
	for _, s := range spots {
		all = append(all, s.What)
	}
	return all
}

// A read that the consumer repeats is drawn once, where the answer came that it used.
func TestRepeatedReadsAreOneSpot(t *testing.T) {
	var b tracing
	b.begin()
	for range 2 {
		b.read(fetched)
	}
	b.add(failed)
	b.add(parked)
	for range 3 {
		b.read(retried)
	}
	b.add(handled)
	if want := []string{published, fetched, failed, parked, retried, handled}; !slices.Equal(words(b.spots), want) {
		t.Errorf("%v, want %v", words(b.spots), want)
	}
}

func TestLifeIsRecorded(t *testing.T) {
	t.Parallel()
	l, err := recordLife(t.Context(), quick)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{published, fetched, handled, committed}; !slices.Equal(words(l.Good), want) {
		t.Errorf("%v, want %v", words(l.Good), want)
	}
	want := []string{published, fetched, failed, parked, retried, failed, parked, retried, failed, dead, replayed, retried, handled, committed}
	if !slices.Equal(words(l.Bad), want) {
		t.Errorf("%v, want %v", words(l.Bad), want)
	}
	drawLife(l)
}
