package fsout

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

// Temporary files stand beside their targets, so that the rename is atomic.
const (
	tempPrefix = ".leasegen-"
	tempSuffix = ".tmp"
)

// Apply makes the disk as generated: all new contents are first written to temporary
// files, then renamed over their targets. A failure on the way, or ctx ending before the
// first rename, leaves the old files; a file is never seen half written, and the order of
// steps is one in which a killed run leaves what builds, if it did before. The files left
// over by such a run is removed. Runs at the same time all end well.
func (c *Changes) Apply(ctx context.Context) *diag.List {
	diags := &diag.List{}
	if len(c.dirs) == 0 {
		return diags
	}
	root, err := os.OpenRoot(c.root)
	if err != nil {
		diags.Add(finding(c.root, "LG0605", "", "the module's directory cannot be opened: "+reason(err), ""))
		return diags
	}
	defer root.Close()
	for _, dir := range c.dirs {
		sweep(root, dir)
	}
	steps := c.steps()
	a := &applier{root: root, temps: make([]string, len(steps))}
	defer a.cleanUp()

	for i, w := range steps {
		if w.content == nil {
			continue
		}
		if a.temps[i], err = a.stage(w); err != nil {
			diags.Add(failure(c.root, w.path, err))
		}
		if ctx.Err() != nil {
			diags.Add(interrupted(c.root))
			return diags
		}
	}
	if diags.Len() > 0 {
		return diags
	}
	for i, w := range steps {
		if err := a.commit(i, w); err != nil {
			diags.Add(failure(c.root, w.path, err))
			a.rollBack(steps[:i])
			return diags
		}
		if c.done != nil {
			c.done()
		}
	}
	return diags
}

func failure(root, name string, err error) diag.Diagnostic {
	if errors.Is(err, fs.ErrPermission) {
		return finding(root, "LG0605", name, "cannot be written: "+reason(err), "change the permissions of its directory")
	}
	return finding(root, "LG0607", name, "cannot be written: "+reason(err), "fix that and run again; all files are as before")
}

func interrupted(root string) diag.Diagnostic {
	return finding(root, "LG0607", "", "interrupted before anything was written", "run again")
}

type applier struct {
	root  *os.Root
	temps []string // by index of the write, "" when renamed or not made
}

// stage writes w's content to a new file beside its target.
func (a *applier) stage(w write) (name string, err error) {
	name = path.Join(path.Dir(w.path), tempPrefix+rand.Text()+tempSuffix)
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := a.root.OpenFile(name, flags, 0o644)
	if errors.Is(err, fs.ErrNotExist) { // a folder of queries that is new
		if err := a.root.Mkdir(path.Dir(name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		f, err = a.root.OpenFile(name, flags, 0o644)
	}
	if err != nil {
		return "", err
	}
	_, err = f.Write(w.content)
	if err == nil && w.mode != 0 { // the file that is replaced may be read or written by others, or may not
		err = f.Chmod(w.mode)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = a.root.Remove(name)
		return "", err
	}
	return name, nil
}

// commit puts one change in place. A run at the same time may have swept the temporary
// file away; it is then written again.
func (a *applier) commit(i int, w write) error {
	if w.from != "" {
		err := a.root.Rename(w.from, w.path)
		if errors.Is(err, fs.ErrNotExist) { // a run at the same time has done it; the content comes next
			return nil
		}
		return err
	}
	if w.content == nil {
		if err := a.root.Remove(w.path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	for tries := 0; ; tries++ {
		err := a.root.Rename(a.temps[i], w.path)
		if err == nil {
			a.temps[i] = ""
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) || tries == 10 {
			return err
		}
		if a.temps[i], err = a.stage(w); err != nil {
			return err
		}
	}
}

// rollBack puts back what was there before, as far as that still goes.
func (a *applier) rollBack(done []write) {
	for _, w := range slices.Backward(done) {
		if w.from != "" {
			_ = a.root.Rename(w.path, w.from)
			continue
		}
		if w.old == nil {
			_ = a.root.Remove(w.path)
			continue
		}
		if temp, err := a.stage(write{path: w.path, content: w.old, mode: w.mode}); err == nil {
			if a.root.Rename(temp, w.path) != nil {
				_ = a.root.Remove(temp)
			}
		}
	}
}

func (a *applier) cleanUp() {
	for _, name := range a.temps {
		if name != "" {
			_ = a.root.Remove(name)
		}
	}
}

// sweep removes what a killed run has left in dir.
func sweep(root *os.Root, dir string) {
	f, err := root.Open(dir)
	if err != nil {
		return
	}
	entries, err := f.ReadDir(-1)
	_ = f.Close()
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.Type().IsRegular() && strings.HasPrefix(e.Name(), tempPrefix) && strings.HasSuffix(e.Name(), tempSuffix) {
			_ = root.Remove(path.Join(dir, e.Name()))
		}
	}
}
