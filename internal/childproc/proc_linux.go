package childproc

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// endWithParent sends a signal to the child when this process ends, however it ends. In a group of its own the child does not get
// the terminal's Ctrl-C, which would end it before its clients; frozen it goes on at the parent's end, and gets the signal.
func endWithParent(a *syscall.SysProcAttr, sig syscall.Signal) { a.Pdeathsig, a.Setpgid = sig, true }

const (
	memory     = "/dev/shm" // a file system in memory, on most machines
	tmpfsMagic = 0x01021994
	roomy      = 8 << 30 // bytes: a few times what the servers of a test run need
)

// Memory is a directory in memory, for servers whose data may be lost with the machine. It is empty on a machine without
// one that has much room. Making a database there costs half.
func Memory() string {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memory, &fs); err != nil || fs.Type != tmpfsMagic || fs.Bavail*uint64(fs.Bsize) < roomy || available() < roomy {
		return ""
	}
	probe, err := os.MkdirTemp(memory, "leasegen-probe-")
	if err != nil {
		return ""
	}
	os.Remove(probe)
	return memory
}

// available is how many bytes of memory new work can have.
func available() (bytes uint64) {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(info)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "MemAvailable:" {
			kb, _ := strconv.ParseUint(f[1], 10, 64)
			return kb << 10
		}
	}
	return 0
}

// children lists the processes whose parent is pid.
func children(pid int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var pids []int
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		fields := afterName(b)
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, child)
		}
	}
	return pids
}

// stopped reports whether a process is frozen, each of its threads, or has ended: the signal leaves threads a moment.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*/stat"))
	for _, path := range threads {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if fields := afterName(b); len(fields) > 0 && !strings.Contains("TZX", fields[0]) {
			return false
		}
	}
	return true
}

// afterName is what follows the name in the file stat of a process: its state, its parent, and more.
func afterName(stat []byte) []string {
	s := string(stat) // pid (name) state ppid; the name may hold anything
	return strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
}
