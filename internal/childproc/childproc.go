// Package childproc runs servers for tests as child processes that end with the test
// process, even when that is killed, and leave no files behind.
package childproc

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Spawn starts a process that gets atEnd when this one ends, however that ends (on
// Linux). The channel is closed at the child's end.
func Spawn(cmd *exec.Cmd, atEnd syscall.Signal) (<-chan struct{}, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	endWithParent(cmd.SysProcAttr, atEnd)
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

// Freeze stops a process and its children with SIGSTOP and returns their ids. The parent is stopped first: once it stands, it
// starts no more of them.
func Freeze(pid int) []int {
	pids := []int{pid}
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	for deadline := time.Now().Add(stopTimeout); !stopped(pid) && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	for _, child := range children(pid) {
		_ = syscall.Kill(child, syscall.SIGSTOP)
		pids = append(pids, child)
	}
	return pids
}

// Signal sends a signal to processes, some of which may be gone by themselves.
func Signal(pids []int, sig syscall.Signal) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, sig)
	}
}

// FreePort picks a port of 127.0.0.1 below the range from which the kernel takes the
// ports of outgoing connections, so that it is still free when the server starts again.
// The ports at the given distances from it are free and below that range, too.
func FreePort(offsets ...int) (int, error) {
	const lowest, above = 15000, 32000
	span := above - lowest
	for _, o := range offsets {
		span = min(span, above-o-lowest)
	}
	var last error
	for range 100 {
		port := lowest + rand.IntN(span)
		if last = bindable(port); last != nil {
			continue
		}
		for _, o := range offsets {
			if last = bindable(port + o); last != nil {
				break
			}
		}
		if last == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port: %w", last)
}

func bindable(port int) error {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	return l.Close()
}

// Tail is a log from an offset on, at most its last 100 lines.
func Tail(path string, from int64) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b[min(from, int64(len(b))):])), "\n")
	return strings.Join(lines[max(0, len(lines)-100):], "\n")
}
