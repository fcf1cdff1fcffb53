// Package fleet starts replicas for proofs and measurements. Each replica is the calling program, run again as a process of
// its own. It tells in lines what happens to it, and is killed, frozen and started again.
package fleet

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// How long a replica is given to end in good order.
const leaveTimeout = time.Minute

// Process is a replica. Its methods are for one goroutine at a time, but for PID.
type Process struct {
	Name string
	Args []string // of the command line

	env    []string
	told   func(line string)
	errors io.Writer

	cmd   *exec.Cmd
	stdin io.Closer // the replica ends with it, see Main
	ended chan struct{}
	pid   atomic.Int64
}

// NewProcess is a replica with variables of its environment that tell it what to do. It does not run yet. Each line that it prints
// goes to told, one after the other; what it writes to standard error goes to errors.
func NewProcess(name string, env []string, told func(line string), errors io.Writer) *Process {
	return &Process{Name: name, env: env, told: told, errors: errors}
}

// Start runs the process, for the first time or after its end.
func (p *Process) Start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if p.stdin != nil {
		p.stdin.Close()
	}
	cmd := exec.Command(self, p.Args...)
	cmd.Env = append(os.Environ(), p.env...)
	// In a group of its own a frozen replica, too, hears of the controller's end.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = p.errors
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	ended := make(chan struct{})
	p.cmd, p.stdin, p.ended = cmd, stdin, ended
	p.pid.Store(int64(cmd.Process.Pid))
	go func() {
		for s := bufio.NewScanner(stdout); s.Scan(); {
			p.told(s.Text())
		}
		_ = cmd.Wait()
		close(ended)
	}()
	return nil
}

// PID is the id of the present or last process.
func (p *Process) PID() int { return int(p.pid.Load()) }

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Gone reports whether the process has ended.
func (p *Process) Gone() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Signal sends a signal. An error says that the process has ended.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("%v to %s: %w", sig, p.Name, err)
	}
	return nil
}

// Left waits until a process that has got SIGTERM has ended in good order.
func (p *Process) Left() error {
	select {
	case <-p.ended:
	case <-time.After(leaveTimeout):
		return fmt.Errorf("%s did not end within %v of SIGTERM", p.Name, leaveTimeout)
	}
	p.stdin.Close()
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("%s: %v", p.Name, p.cmd.ProcessState)
	}
	return nil
}

// Orphan lets the process think that the calling program is gone: it closes what the kernel would close then.
func (p *Process) Orphan() { p.stdin.Close() }

// End ends the process with SIGKILL, if it runs.
func (p *Process) End() {
	if p.cmd == nil {
		return // it could not be started
	}
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
	p.stdin.Close()
}
