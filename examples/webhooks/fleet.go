package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// run is one run of the example.
type run struct {
	out        io.Writer
	dsn        string
	deliveries string
	replicas   int
	kill       time.Duration
	pace, work time.Duration
}

// fleet is the replicas, each a process of its own.
type fleet struct {
	run *run

	mu     sync.Mutex
	procs  []*exec.Cmd
	killed int
	over   bool
}

func newFleet(r *run) *fleet { return &fleet{run: r, procs: make([]*exec.Cmd, r.replicas)} }

func (f *fleet) start() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.procs {
		if err := f.spawn(i); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) spawn(i int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// The database is passed by environment: arguments are for all to see.
	cmd := exec.Command(self, "-work", fmt.Sprintf("replica-%d", i+1), "-handle", f.run.work.String())
	cmd.Env = append(os.Environ(), "DATABASE_URL="+f.run.dsn)
	cmd.Stderr = os.Stderr
	f.procs[i] = cmd
	return cmd.Start()
}

// killEvery kills a replica and starts it again, until ctx ends.
func (f *fleet) killEvery(ctx context.Context, every time.Duration) {
	for ticker := time.NewTicker(every); ; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if err := f.killOne(rand.IntN(len(f.procs))); err != nil {
			log.Printf("webhooks: %v", err)
		}
	}
}

func (f *fleet) killOne(i int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return nil
	}
	if err := f.procs[i].Process.Kill(); err != nil {
		return err
	}
	f.procs[i].Wait() // it says "killed", as it should
	f.killed++
	return f.spawn(i)
}

func (f *fleet) kills() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.killed
}

// stop lets the replicas drain and waits for them.
func (f *fleet) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	for _, p := range f.procs {
		if p != nil && p.Process != nil {
			p.Process.Signal(syscall.SIGTERM)
		}
	}
	for i, p := range f.procs {
		if p == nil || p.Process == nil {
			continue
		}
		if err := p.Wait(); err != nil {
			log.Printf("webhooks: replica-%d: %v", i+1, err)
		}
	}
}
