package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

const oldest = 14

// binaries finds the directory of the newest PostgreSQL on this machine.
func binaries() (string, error) {
	if dir := os.Getenv("LEASEGEN_PG_BIN"); dir != "" {
		if v := version(dir); v < oldest {
			return "", fmt.Errorf("LEASEGEN_PG_BIN=%s has no initdb and postgres of version %d or newer", dir, oldest)
		}
		return dir, nil
	}
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // Debian, Ubuntu
	more, _ := filepath.Glob("/usr/pgsql-*/bin")          // Fedora, RHEL
	dirs = append(dirs, more...)
	if p, err := exec.LookPath("postgres"); err == nil {
		if p, err = filepath.EvalSymlinks(p); err == nil {
			dirs = append(dirs, filepath.Dir(p))
		}
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	best, newest := "", oldest-1
	for _, dir := range dirs {
		if v := version(dir); v > newest {
			best, newest = dir, v
		}
	}
	if best == "" {
		return "", fmt.Errorf("no PostgreSQL %d or newer on this machine: apt-get install postgresql", oldest)
	}
	return best, nil
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// version is the major version of the server in dir, 0 if there is none.
func version(dir string) int {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return 0
	}
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0
	}
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return 0
	}
	v, _ := strconv.Atoi(string(m[1]))
	return v
}

// unprivileged is the user to run the server as: nil for the present one, another
// when that is root, as which PostgreSQL refuses to run.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")
}
