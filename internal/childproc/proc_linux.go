package childproc

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// endWithParent sends a signal to the child when this process ends, however it ends.
func endWithParent(a *syscall.SysProcAttr, sig syscall.Signal) { a.Pdeathsig = sig }

// children lists the processes whose parent is pid.
func children(pid int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var pids []int
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state ppid; the name may hold anything.
		s := string(b)
		fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, child)
		}
	}
	return pids
}
