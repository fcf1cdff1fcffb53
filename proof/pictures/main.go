// Command pictures draws what the pages show, from real runs: it starts servers and replicas that are processes, writes
// down what they did, and draws that.
//
//	make pictures
//	go run ./proof/pictures -only fence,life
//	go run ./proof/pictures -render
//
// Without -render it runs first and writes what happened into proof/pictures/raw. The trials of failovers are what command
// failover wrote there. The same raw results give the same pictures.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/internal/svg"
)

func main() {
	if os.Getenv(envReplica) != "" {
		os.Exit(replicaMain())
	}
	os.Exit(must.Main("pictures", run))
}

// picture is one drawing, and the run that it shows.
type picture struct {
	name   string                                             // of its files
	record func(ctx context.Context, q quality) (any, error)  // nil: another command's
	draw   func(raw []byte) (drawing *svg.Drawing, err error) // from what record returned, as JSON
}

// quality is how much is recorded.
type quality struct {
	slots int
	pause time.Duration // between two steps
}

var (
	full  = quality{slots: 256, pause: 1600 * time.Millisecond}
	quick = quality{slots: 16, pause: 50 * time.Millisecond}
)

func pictures() []picture {
	return []picture{
		pictureOf("fence", recordFence, drawFence),
		pictureOf("rebalance", recordRebalance, drawRebalance),
		pictureOf("life", recordLife, drawLife),
		pictureOf("failover", nil, drawFailover),
	}
}

func pictureOf[T any](name string, record func(context.Context, quality) (T, error), draw func(T) *svg.Drawing) picture {
	p := picture{name: name, draw: func(raw []byte) (*svg.Drawing, error) {
		var of T
		if err := json.Unmarshal(raw, &of); err != nil {
			return nil, err
		}
		return draw(of), nil
	}}
	if record != nil {
		p.record = func(ctx context.Context, q quality) (any, error) { return record(ctx, q) }
	}
	return p
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	defer must.Catch(&err)
	fs := flag.NewFlagSet("pictures", flag.ContinueOnError)
	render := fs.Bool("render", false, "draw what was recorded before")
	only := fs.String("only", "", "comma-separated pictures; default all")
	raw := fs.String("raw", "proof/pictures/raw", "the directory of what was recorded")
	to := fs.String("to", "docs/images", "the directory of the pictures")
	must.Do(fs.Parse(args))
	for _, p := range pictures() {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), p.name) {
			continue
		}
		path, begun := filepath.Join(*raw, p.name+".json"), time.Now()
		if !*render && p.record != nil {
			if err := save(ctx, p, path, full); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
		files, err := p.files(path)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		must.Do(svg.Write(*to, files))
		names := strings.Join(slices.Sorted(maps.Keys(files)), ", ")
		fmt.Fprintf(out, "%s: %s in %v\n", p.name, names, time.Since(begun).Round(100*time.Millisecond))
	}
	return nil
}

// save records a picture's run.
func save(ctx context.Context, p picture, path string, q quality) error {
	of, err := p.record(ctx, q)
	if err != nil {
		return err
	}
	text, err := json.Marshal(of)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// files draws what was recorded.
func (p picture) files(path string) (map[string][]byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	d, err := p.draw(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return d.Files(p.name), nil
}
