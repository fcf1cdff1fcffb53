package dashboards

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write dashboard.json and alerts.yaml")

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The files are what the program makes.
func TestFiles(t *testing.T) {
	for name, made := range map[string]func() ([]byte, error){"dashboard.json": Dashboard, "alerts.yaml": Alerts} {
		want, err := made()
		ok(t, err)
		if *update {
			ok(t, os.WriteFile(name, want, 0o644))
		}
		got, err := os.ReadFile(name)
		ok(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is out of date: run go generate", name)
		}
	}
}

// Grafana reads the dashboard from a folder as it stands: it has its uid, no id and no inputs to ask for, its panels have ids
// and places of their own, and each query asks the data source of the variable, in a unit that Grafana knows.
func TestDashboardIsWhole(t *testing.T) {
	text, err := os.ReadFile("dashboard.json")
	ok(t, err)
	var d struct {
		ID     *int
		UID    string
		Inputs any `json:"__inputs"`
		Panels []panel
	}
	ok(t, json.Unmarshal(text, &d))
	if !bytes.Contains(text, []byte(`"id": null`)) || d.ID != nil || d.UID != "leasegen" || d.Inputs != nil {
		t.Errorf("id %v, uid %s, inputs %v", d.ID, d.UID, d.Inputs)
	}
	units := []string{"s", "short", "mps", "ops"} // of @grafana/data's valueFormats
	ids, taken, titles := map[int]bool{}, map[[2]int]string{}, map[string]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 || titles[p.Title] || p.Title == "" {
			t.Errorf("panel %d %q: the id or the title is another's", p.ID, p.Title)
		}
		ids[p.ID], titles[p.Title] = true, true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%q lies over %q, or beyond the edge, at %d, %d", p.Title, other, x, y)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 || *p.Datasource != prometheus || !slices.Contains(units, p.FieldConfig.Defaults["unit"].(string)) {
			t.Errorf("%q: description %q, %d queries, data source %v, unit %v", p.Title, p.Description, len(p.Targets), p.Datasource, p.FieldConfig.Defaults["unit"])
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if q.Datasource != prometheus || q.Range == q.Instant || refs[q.RefID] {
				t.Errorf("%q: query %s of data source %v, range %v, instant %v", p.Title, q.RefID, q.Datasource, q.Range, q.Instant)
			}
			refs[q.RefID] = true
		}
	}
	if len(ids) < 30 {
		t.Errorf("%d panels", len(ids))
	}
}

// Each alert has a section in the manual, and the dashboard's link leads to one.
func TestRunbook(t *testing.T) {
	manual, err := os.ReadFile("../../../docs/alerts.md")
	ok(t, err)
	anchors := map[string]bool{}
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(manual), -1) {
		slug := regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		anchors[strings.ReplaceAll(slug, " ", "-")] = true
	}
	links := []string{Manual + "#dashboard-and-alerts"}
	for _, a := range alerts() {
		if a.Notes.Summary == "" || a.Notes.Description == "" || a.Labels["severity"] == "" {
			t.Errorf("%s: %+v, %v", a.Name, a.Notes, a.Labels)
		}
		links = append(links, a.Notes.Runbook)
	}
	for _, link := range links {
		page, anchor, _ := strings.Cut(link, "#")
		if page != Manual || !strings.HasSuffix(page, "/docs/alerts.md") || !anchors[anchor] {
			t.Errorf("%s leads nowhere", link)
		}
	}
}
