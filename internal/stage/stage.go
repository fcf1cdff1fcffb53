// Package stage is what the examples share: a PostgreSQL or Redis server, and replicas that are
// processes of their own, to be stopped, killed and frozen.
//
// A replica is the example's program, run again with the argument -replica. It finds the
// database in the environment variable DATABASE_URL, and asks Context when to end.
package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// Database returns dsn or, when it is empty, that of a server started for this program.
// Call the function it returns at the end.
func Database(dsn string) (string, func(), error) {
	if dsn != "" {
		return dsn, func() {}, nil
	}
	server, err := pgtest.Launch(pgtest.WALOnDisk(), pgtest.Config("max_connections", "200"))
	if err != nil {
		return "", nil, err
	}
	return server.DSN("postgres"), server.Close, nil
}

// Prepare connects to the database dsn, brings the schema leasegen up to date, and runs
// the example's own ddl.
func Prepare(ctx context.Context, dsn, ddl string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 24 // examples publish from many goroutines
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if _, err = leasepg.Migrate(ctx, pool); err == nil {
		_, err = pool.Exec(ctx, ddl)
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// Context is cancelled when the program has to stop: by an interrupt, SIGTERM or,
// for a replica, the end of the program that started it.
func Context(replica bool) (context.Context, context.CancelFunc) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if replica {
		go func() {
			io.Copy(io.Discard, os.Stdin) // a pipe, which ends with its other side
			cancel()
		}()
	}
	return ctx, cancel
}

// Fleet is the replicas of one run. It is safe for concurrent use.
type Fleet struct {
	Args []string // of each replica, beside its name; set before Start

	dsn string

	mu     sync.Mutex
	procs  map[string]*fleet.Process // by name
	closed bool
}

// New returns a fleet whose replicas work on the database dsn. Close it.
func New(dsn string) *Fleet { return &Fleet{dsn: dsn, procs: map[string]*fleet.Process{}} }

// Start runs this program again as each of the replicas named. After Close it starts none.
func (f *Fleet) Start(names ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	for _, name := range names {
		if f.procs[name] != nil {
			return fmt.Errorf("%s is running", name)
		}
		// The database is passed by environment: arguments are for all to see.
		p := fleet.NewProcess(name, []string{"DATABASE_URL=" + f.dsn}, func(string) {}, os.Stderr)
		p.Args = append([]string{"-replica", name}, f.Args...)
		if err := p.Start(); err != nil {
			return err
		}
		f.procs[name] = p
	}
	return nil
}

// Running returns the names of the replicas that run, sorted.
func (f *Fleet) Running() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := make([]string, 0, len(f.procs))
	for name := range f.procs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Name is the replica with the process id pid, "" if there is none.
func (f *Fleet) Name(pid int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, p := range f.procs {
		if p.PID() == pid {
			return name
		}
	}
	return ""
}

// PID is the process id of a replica, 0 if it does not run.
func (f *Fleet) PID(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.procs[name]; p != nil {
		return p.PID()
	}
	return 0
}

// Kill ends a replica with SIGKILL: it gets no chance to say anything.
func (f *Fleet) Kill(name string) error {
	p, err := f.take(name)
	if p != nil {
		p.End()
	}
	return err
}

// Stop tells a replica to finish, and waits until it has.
func (f *Fleet) Stop(name string) error {
	p, err := f.take(name)
	if p == nil {
		return err
	}
	// One signal, for a second one may come when the replica no longer catches it. One that has ended tells how in Left.
	_ = p.Signal(syscall.SIGTERM)
	return p.Left()
}

// Freeze stops a replica where it stands, as a suspended virtual machine does.
func (f *Fleet) Freeze(name string) error { return f.signal(name, syscall.SIGSTOP) }

// Thaw lets a frozen replica go on.
func (f *Fleet) Thaw(name string) error { return f.signal(name, syscall.SIGCONT) }

// Close stops all replicas, and waits until they have ended.
func (f *Fleet) Close() error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	names := f.Running()
	for _, name := range names { // all at once; one that has ended tells how below
		_, _ = f.signal(name, syscall.SIGTERM), f.Thaw(name)
	}
	var errs []error
	for _, name := range names {
		if p, _ := f.take(name); p != nil {
			errs = append(errs, p.Left())
		}
	}
	return errors.Join(errs...)
}

func (f *Fleet) signal(name string, sig os.Signal) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.procs[name]
	if p == nil {
		return fmt.Errorf("no replica %s is running", name)
	}
	return p.Signal(sig)
}

// take removes a replica, which is the caller's to end then. It is nil without an error
// once the fleet is closed.
func (f *Fleet) take(name string) (*fleet.Process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.procs[name]
	delete(f.procs, name)
	if p == nil && !f.closed {
		return nil, fmt.Errorf("no replica %s is running", name)
	}
	return p, nil
}

// Until calls done, 100 times a second, until it says so. It gives up after two minutes.
func Until(ctx context.Context, what string, done func() (bool, error)) error {
	deadline := time.Now().Add(2 * time.Minute)
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("gave up waiting until %s", what)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// AtOnce calls do from n goroutines, with 0 to n-1, and returns their errors.
func AtOnce(n int, do func(i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
