package pgtest

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
)

const dirPrefix = "leasegen-pg-"

func command(dir string, cred *syscall.Credential, path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	// The caller's PG* variables must not reach this server.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "PG") })
	cmd.Env = append(cmd.Env, "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	return cmd
}
