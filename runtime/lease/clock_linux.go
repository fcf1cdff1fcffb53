package lease

import (
	"syscall"
	"time"
	"unsafe"
)

// From <linux/time.h>.
const (
	clockMonotonic = 1
	clockBoottime  = 7
)

// asleep is how long the machine has been suspended since boot: CLOCK_BOOTTIME
// runs during suspend, CLOCK_MONOTONIC, which package time uses, does not.
func asleep() time.Duration { return gettime(clockBoottime) - gettime(clockMonotonic) }

func gettime(clock uintptr) time.Duration {
	var ts syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		return 0
	}
	return time.Duration(ts.Nano())
}
