package fleet

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// Main is what the main function of a replica does, and returns its exit code: it runs until it gets SIGTERM or the program
// that started it is gone.
func Main(run func(context.Context) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		io.Copy(io.Discard, os.Stdin) // ends with the parent
		stop()
		time.Sleep(5 * time.Second)
		os.Exit(3)
	}()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Tell is an observer that prints what becomes a Fleet's events.
func Tell(o operate.Observation) {
	switch o := o.(type) {
	case operate.ObservedAcquire:
		how := "free"
		if o.Crashed {
			how = "crashed"
		}
		fmt.Printf("acquired %s %d %s\n", o.Resource, o.Epoch, how)
	case operate.ObservedLoss:
		fmt.Printf("lost %s %d\n", o.Resource, o.Epoch)
	case operate.ObservedFenced:
		fmt.Printf("fenced %s %d\n", o.Resource, o.Epoch)
	case operate.ObservedSession:
		if o.Open {
			fmt.Printf("session %s\n", o.Session)
		} else {
			fmt.Printf("ended %s\n", o.Session)
		}
	}
}

// Spin keeps one core busy until the context ends.
func Spin(ctx context.Context) {
	for sum := [sha256.Size]byte{}; ctx.Err() == nil; {
		for range 1000 {
			sum = sha256.Sum256(sum[:])
		}
	}
}
