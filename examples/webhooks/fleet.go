package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/internal/stage"
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
	*stage.Fleet
	run    *run
	killed atomic.Int64
}

func newFleet(r *run) *fleet {
	f := &fleet{Fleet: stage.New(r.dsn), run: r}
	f.Args = []string{"-handle", r.work.String()}
	return f
}

func (f *fleet) start() error {
	for i := range f.run.replicas {
		if err := f.spawn(i); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) spawn(i int) error {
	return f.Start(fmt.Sprintf("replica-%d", i+1))
}

// killEvery kills a replica and starts it again, until ctx ends.
func (f *fleet) killEvery(ctx context.Context, every time.Duration) {
	for ticker := time.NewTicker(every); ; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if err := f.killOne(rand.IntN(f.run.replicas)); err != nil {
			log.Printf("webhooks: %v", err)
		}
	}
}

func (f *fleet) killOne(i int) error {
	if err := f.Kill(fmt.Sprintf("replica-%d", i+1)); err != nil {
		return err
	}
	f.killed.Add(1)
	return f.spawn(i)
}

// stop lets the replicas drain and waits for them.
func (f *fleet) stop() {
	if err := f.Close(); err != nil {
		log.Printf("webhooks: %v", err)
	}
}
