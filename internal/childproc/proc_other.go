//go:build !linux

package childproc

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// endWithParent has no effect here: only Linux can tie a process to its parent.
func endWithParent(*syscall.SysProcAttr, syscall.Signal) {}

const memory = "/nowhere"

// Memory is empty: there is no file system in memory that is known to be there.
func Memory() string { return "" }

// children lists the processes whose parent is pid.
func children(pid int) []int {
	out, _ := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	var pids []int
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 2 && f[1] == strconv.Itoa(pid) {
			child, _ := strconv.Atoi(f[0])
			pids = append(pids, child)
		}
	}
	return pids
}

// stopped reports whether a process is frozen, or has ended.
func stopped(pid int) bool {
	state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return err != nil || len(state) == 0 || strings.Contains("TZX", string(state[:1]))
}
