package pgtest

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// templatesIn names a directory in which the data directories that initdb makes are kept, one for each version: a copy costs a tenth
// of the processor time. Copies are one server to those who compare system identifiers. Empty: each server has its own from initdb.
const templatesIn = "LEASEGEN_PG_TEMPLATES"

// initdb makes a data directory, or copies the kept one.
func (s *Server) initdb() error {
	// --no-sync is about initdb's own files; the server itself runs with fsync on.
	args := []string{"--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"}
	in := os.Getenv(templatesIn)
	if in == "" {
		return s.fill("initdb", args...)
	}
	version, err := s.command("postgres", "--version").Output()
	if err != nil {
		return fmt.Errorf("postgres --version: %w", err)
	}
	kept := filepath.Join(in, fmt.Sprintf("%.8x", sha256.Sum256([]byte(strings.Join(slices.Concat(args, []string{s.bin, string(version)}), "\n")))))
	if _, err := os.Stat(kept); err == nil {
		return copyAll(kept, s.data())
	}
	if err := s.fill("initdb", args...); err != nil {
		return err
	}
	return keep(s.data(), kept)
}

// keep puts a copy of a directory in its place in one step, unless another process has done so.
func keep(dir, kept string) error {
	in := filepath.Dir(kept)
	if err := os.MkdirAll(in, 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(in, ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	made := filepath.Join(temp, "data")
	if err := copyAll(dir, made); err != nil {
		return err
	}
	if err := os.Rename(made, kept); err != nil {
		if _, there := os.Stat(kept); there != nil {
			return err
		}
	}
	return nil
}

// copyAll copies a directory with the owners and modes of what is in it.
func copyAll(from, to string) error {
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp -a %s: %w\n%s", from, err, out)
	}
	return nil
}
