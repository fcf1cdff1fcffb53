package redisproof

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/redistest"
)

// clockShim moves the clock of a process by the seconds that a file says.
const clockShim = `
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile int64_t *offset;
__attribute__((constructor)) static void start(void) {
	const char *path = getenv("PROOF_CLOCK");
	int fd = path ? open(path, O_RDONLY) : -1;
	void *m = fd < 0 ? MAP_FAILED : mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
	if (m != MAP_FAILED) offset = m;
}
int clock_gettime(clockid_t c, struct timespec *t) {
	int r = syscall(SYS_clock_gettime, c, t);
	if (r == 0 && offset && (c == CLOCK_REALTIME || c == CLOCK_REALTIME_COARSE)) t->tv_sec += *offset;
	return r;
}
int gettimeofday(struct timeval *restrict t, void *restrict z) {
	struct timespec s;
	clock_gettime(CLOCK_REALTIME, &s);
	t->tv_sec = s.tv_sec, t->tv_usec = s.tv_nsec / 1000;
	return 0;
}
time_t time(time_t *p) {
	struct timespec s;
	clock_gettime(CLOCK_REALTIME, &s);
	if (p) *p = s.tv_sec;
	return s.tv_sec;
}
`

// withClock starts a server whose clock the returned function moves.
func withClock(t *testing.T) (*redistest.Server, func(time.Duration)) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("a process's clock can be moved on Linux only")
	}
	dir := t.TempDir()
	write := func(name string, content []byte, perm os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, perm); err != nil {
			t.Fatal(err)
		}
		return path
	}
	source := write("clock.c", []byte(clockShim), 0o600)
	shim := filepath.Join(dir, "clock.so")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O1", "-o", shim, source).CombinedOutput(); err != nil {
		t.Fatalf("compile the clock: %v\n%s", err, out)
	}
	offset := write("offset", make([]byte, 8), 0o600)
	real := os.Getenv("LEASEGEN_REDIS_SERVER")
	if real == "" {
		var err error
		if real, err = exec.LookPath("redis-server"); err != nil {
			t.Fatal(err)
		}
	}
	script := fmt.Sprintf("#!/bin/sh\nPROOF_CLOCK=%s LD_PRELOAD=%s exec %s \"$@\"\n", offset, shim, real)
	redistest.Shared(t) // which keeps the machine's clock
	t.Setenv("LEASEGEN_REDIS_SERVER", write("redis-server", []byte(script), 0o700))
	server := redistest.Start(t)
	return server, func(d time.Duration) {
		t.Helper()
		// In place: the server has mapped the file.
		f, err := os.OpenFile(offset, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(d/time.Second)), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// The server's clock jumps by an hour, forth and back. After the jump forth all sessions
// have expired; after the one back what is held stays held, and epochs and ids go on rising.
func TestClockSteps(t *testing.T) {
	server, set := withClock(t)
	s := onServer(t, server, whole, 4, "")
	before, err := s.client.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	set(time.Hour)
	after, err := s.client.Time(t.Context()).Result()
	if err != nil || after.Sub(before) < 59*time.Minute {
		t.Fatalf("the server's clock was moved from %v to %v: %v", before, after, err)
	}
	set(0)
	mustHold(t, s, "clock by an hour, and back", rounds(t, 1, 20), func(f *fleet.Fleet) {
		from := f.Marker()
		set(time.Hour)
		s.again(t, s.lastOf())
		eventually(t, "sessions have expired and leases are acquired anew", func() bool {
			i, _ := f.Find(from, fleet.Is("acquired"))
			return i >= 0
		})
		s.again(t, s.lastOf())
		set(0)
		s.again(t, s.lastOf())
		time.Sleep(ttl)
		s.again(t, s.lastOf())
	})
}
