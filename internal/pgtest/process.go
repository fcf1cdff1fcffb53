package pgtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

const dirPrefix = "leasegen-pg-"

// newDir makes a directory for a server that runs as cred. It lasts as long as lock is
// open, and is swept away later when its process ended without removing it.
func newDir(cred *syscall.Credential) (dir string, lock *os.File, err error) {
	sweep()
	if dir, err = os.MkdirTemp("", dirPrefix); err != nil {
		return "", nil, err
	}
	if lock, err = os.Create(filepath.Join(dir, "lock")); err != nil {
		return dir, nil, err
	}
	if err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return dir, lock, fmt.Errorf("lock %s: %w", dir, err)
	}
	if cred != nil {
		err = os.Chown(dir, int(cred.Uid), int(cred.Gid))
	}
	return dir, lock, err
}

// sweep removes what servers of killed test processes left behind.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	for _, dir := range dirs {
		st, err := os.Stat(dir)
		if err != nil || time.Since(st.ModTime()) < time.Minute {
			continue // perhaps just being made
		}
		lock, err := os.Open(filepath.Join(dir, "lock"))
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			os.RemoveAll(dir)
		}
		lock.Close()
	}
}

func command(dir string, cred *syscall.Credential, path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	// The caller's PG* variables must not reach this server.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "PG") })
	cmd.Env = append(cmd.Env, "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	return cmd
}

// spawn starts a process that ends with this one. The channel is closed at its end.
func spawn(cmd *exec.Cmd) (<-chan struct{}, error) {
	endWithParent(cmd.SysProcAttr)
	started, exited := make(chan error), make(chan struct{})
	go func() {
		// The signal at the parent's end follows the thread that started the child.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(exited)
	}()
	return exited, <-started
}

// tail is a log from an offset on, at most its last 100 lines.
func tail(path string, from int64) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b[min(from, int64(len(b))):])), "\n")
	return strings.Join(lines[max(0, len(lines)-100):], "\n")
}

// freePort picks a port below the range from which the kernel takes the ports of
// outgoing connections, so that it is still free when the server starts again.
func freePort() (int, error) {
	var last error
	for range 100 {
		port := 15000 + rand.IntN(17000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return port, l.Close()
		}
		last = err
	}
	return 0, fmt.Errorf("no free port: %w", last)
}
