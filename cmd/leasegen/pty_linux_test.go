package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal with a process on it.
type terminal struct {
	t      *testing.T
	master *os.File
	ended  chan error

	mu    sync.Mutex
	shown bytes.Buffer // all that the process has written
}

// onTerminal starts a process on a terminal of a size. The process does not outlive the test.
func onTerminal(t *testing.T, columns, rows int, env []string, name string, args ...string) *terminal {
	t.Helper()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// Without O_NONBLOCK a read cannot be ended by closing the file.
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	ok(err)
	t.Cleanup(func() { master.Close() })
	conn, err := master.SyscallConn()
	ok(err)
	var slaveName string
	ok(conn.Control(func(fd uintptr) {
		n, err := unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		ok(err)
		slaveName = fmt.Sprintf("/dev/pts/%d", n)
		ok(unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0))
		ok(unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(columns), Row: uint16(rows)}))
	}))
	slave, err := os.OpenFile(slaveName, os.O_RDWR|syscall.O_NOCTTY, 0)
	ok(err)
	defer slave.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env, cmd.Dir = env, t.TempDir()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	ok(cmd.Start())
	p := &terminal{t: t, master: master, ended: make(chan error, 1)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			p.mu.Lock()
			p.shown.Write(b[:n])
			p.mu.Unlock()
			if err != nil { // EIO when the last process has closed the terminal
				return
			}
		}
	}()
	go func() {
		err := cmd.Wait()
		<-read
		p.ended <- err
	}()
	return p
}

func (p *terminal) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.ReplaceAll(p.shown.String(), "\r\n", "\n")
}

// until waits for a text, and returns all that stands behind it.
func (p *terminal) until(want string) string {
	p.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, behind, found := strings.Cut(p.text(), want); found {
			return behind
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%q does not come:\n%q", want, p.text())
		}
	}
}

// keys types.
func (p *terminal) keys(text string) {
	p.t.Helper()
	if _, err := p.master.WriteString(text); err != nil {
		p.t.Fatal(err)
	}
}

// wait returns the exit code of the process, and all that it has written.
func (p *terminal) wait() (code int, text string) {
	p.t.Helper()
	err := <-p.ended
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else if err != nil {
		p.t.Fatal(err)
	}
	return code, p.text()
}
