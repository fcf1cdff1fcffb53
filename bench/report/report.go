// Package report holds what a run of the benchmarks measured, and makes a page and its charts of it.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
)

// Report is a run. Its JSON is the raw results.
type Report struct {
	Tier       string      `json:"tier"`   // full or quick
	Rounds     int         `json:"rounds"` // of each cell; its figure is their median
	Took       string      `json:"took"`
	Conditions []Condition `json:"conditions"`
	Contenders []Contender `json:"contenders"`
	Workloads  []Workload  `json:"workloads"`

	before *Report // the run before, whose figures stand beside the goals
}

// Condition is a fact about the machine, a version or a setting.
type Condition struct{ Name, Value string }

// Contender is a system in one configuration.
type Contender struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Settings string `json:"settings"`
	Keeps    string `json:"keeps"` // what it guarantees: order, fencing, effects
	Backend  string `json:"backend"`
	Ours     bool   `json:"ours,omitempty"`
	// Limit is the bare loop that contenders on the same backend are divided by.
	Limit bool `json:"limit,omitempty"`
}

// Workload is what all contenders do in turns.
type Workload struct {
	ID      string   `json:"id"`
	Title   string   `json:"title"`
	What    string   `json:"what"`
	Metrics []Metric `json:"metrics"` // the first is the main one
	Cells   []Cell   `json:"cells"`
}

// Metric is one figure of a workload.
type Metric struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Unit string `json:"unit"`
	// Rate: more is better, it depends on the machine, and the page shows its ratio to the bare loop.
	Rate bool `json:"rate,omitempty"`
}

// Cell is what one contender did.
type Cell struct {
	Contender string               `json:"contender"`
	Samples   map[string][]float64 `json:"samples,omitempty"` // by metric, one for each round
	Words     string               `json:"words,omitempty"`   // instead of figures, or beside them
	Failed    bool                 `json:"failed,omitempty"`
}

// Load reads raw results, and those of the run before.
func Load(path string) (*Report, error) {
	r, err := load[Report](path)
	if err != nil {
		return nil, err
	}
	return r, r.loadBefore(path)
}

func (r *Report) loadBefore(path string) error {
	before, err := load[Report](ofBefore(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	r.before = before
	return err
}

// ofBefore is the file of the run before that of a path.
func ofBefore(path string) string { return strings.TrimSuffix(path, ".json") + "-before.json" }

func load[T any](path string) (*T, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := new(T)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return r, nil
}

// Save writes raw results. It first renames an older file, whose figures the page shows as those of the run before.
func (r *Report) Save(path string) error {
	if err := os.Rename(path, ofBefore(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := save(path, r); err != nil {
		return err
	}
	return r.loadBefore(path)
}

func save(path string, r any) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// Failures names the cells that failed.
func (r *Report) Failures() (all []string) {
	for _, w := range r.Workloads {
		for _, c := range w.Cells {
			if c.Failed {
				all = append(all, fmt.Sprintf("%s, %s: %s", w.ID, c.Contender, c.Words))
			}
		}
	}
	return all
}

func (r *Report) workload(id string) *Workload {
	if i := slices.IndexFunc(r.Workloads, func(w Workload) bool { return w.ID == id }); i >= 0 {
		return &r.Workloads[i]
	}
	return &Workload{}
}

func (r *Report) contender(id string) Contender {
	if i := slices.IndexFunc(r.Contenders, func(c Contender) bool { return c.ID == id }); i >= 0 {
		return r.Contenders[i]
	}
	return Contender{ID: id, Name: id}
}

// limit is the id of the bare loop on a backend.
func (r *Report) limit(backend string) string {
	if i := slices.IndexFunc(r.Contenders, func(c Contender) bool { return c.Limit && c.Backend == backend }); i >= 0 {
		return r.Contenders[i].ID
	}
	return ""
}

// Cell is a contender's cell, empty if there is none.
func (w *Workload) Cell(contender string) Cell {
	if i := slices.IndexFunc(w.Cells, func(c Cell) bool { return c.Contender == contender }); i >= 0 {
		return w.Cells[i]
	}
	return Cell{}
}

// Spread is the median of the rounds, the least and the most.
type Spread struct{ Median, Least, Most float64 }

// Known reports whether there is a figure.
func (s Spread) Known() bool { return !math.IsNaN(s.Median) }

func spread(v []float64) Spread {
	if len(v) == 0 {
		nan := math.NaN()
		return Spread{nan, nan, nan}
	}
	s := slices.Sorted(slices.Values(v))
	median := s[len(s)/2]
	if len(s)%2 == 0 {
		median = (s[len(s)/2-1] + median) / 2
	}
	return Spread{median, s[0], s[len(s)-1]}
}

// ratio divides one contender's rounds by another's: the median is that of the medians, the spread that of the rounds,
// each beside the round of the other in the same turn.
func ratio(of, by []float64) Spread {
	var turns []float64
	for i := range min(len(of), len(by)) {
		if by[i] > 0 {
			turns = append(turns, of[i]/by[i])
		}
	}
	if len(turns) == 0 {
		return spread(nil)
	}
	s := spread(turns)
	s.Median = spread(of).Median / spread(by).Median
	s.Least, s.Most = min(s.Least, s.Median), max(s.Most, s.Median)
	return s
}

// Ratio of two contenders' rounds of a metric.
func (w *Workload) Ratio(metric, of, by string) Spread {
	return ratio(w.Cell(of).Samples[metric], w.Cell(by).Samples[metric])
}
