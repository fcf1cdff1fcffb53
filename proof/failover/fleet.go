package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/faultproxy"
	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// patience is how long anything may take before the measurement is given up.
const patience = 30 * time.Second

// site is a server, and the fleets that work on it.
type site struct {
	server *pgtest.Server
	kind   lockKind
	pool   *pgxpool.Pool
	fleets []*fleet

	publishing sync.WaitGroup
	cancel     context.CancelFunc

	mu     sync.Mutex
	stderr bytes.Buffer
}

// fleet is two replicas of one consumer with one resource, in a schema of their own: sessions
// of one schema watch each other, and those of other fleets are away half of the time.
type fleet struct {
	site     *site
	name     string
	replicas [2]*process

	mu    sync.Mutex
	calls []call
}

// process is one replica, behind a proxy of its own.
type process struct {
	fleet *fleet
	proxy *faultproxy.Proxy
	cmd   *exec.Cmd
	stdin interface{ Close() error }
	ended chan struct{}

	// guarded by fleet.mu
	member bool // it has a session
	losses int  // of leases
}

// call is one effect of a replica.
type call struct {
	by           *process
	epoch        int64
	began, ended time.Time
}

func newSite(ctx context.Context, server *pgtest.Server, k lockKind, fleets int) (_ *site, err error) {
	s := &site{server: server, kind: k}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\nreplicas said:\n%s", err, s.said())
			s.close()
		}
	}()
	if s.pool, err = pgxpool.New(ctx, server.DB("failover")); err != nil {
		return nil, err
	}
	for i := range fleets {
		f := &fleet{site: s, name: fmt.Sprintf("fleet_%d", i)}
		if _, err := leasepg.Migrate(ctx, s.pool, leasepg.WithSchema(f.name)); err != nil {
			return nil, err
		}
		s.fleets = append(s.fleets, f)
	}
	ctx, s.cancel = context.WithCancel(ctx)
	if k.asPer != lease.PerCluster {
		for _, f := range s.fleets {
			s.publishing.Go(func() { f.publish(ctx) })
		}
	}
	for _, f := range s.fleets {
		for i := range f.replicas {
			if f.replicas[i], err = f.start(); err != nil {
				return nil, err
			}
		}
	}
	for _, f := range s.fleets {
		for _, p := range f.replicas {
			if err := f.await("every replica has a session", func() bool { return p.member }); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// publish keeps a backlog for each fleet: more comes than can be handled.
func (f *fleet) publish(ctx context.Context) {
	// It is cut off in the middle, at the end.
	be := leasepg.New(f.site.pool, leasepg.WithSchema(f.name), leasepg.WithLogger(slog.New(slog.DiscardHandler)))
	events := make([]lease.Event, 120)
	for i := range events {
		events[i] = lease.Event{Topic: f.name, Key: "one", Kind: "tick", Payload: []byte("{}")}
	}
	for ctx.Err() == nil {
		_ = be.Publish(ctx, events) // the server may be down just now
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (f *fleet) start() (p *process, err error) {
	p = &process{fleet: f, ended: make(chan struct{})}
	if p.proxy, err = faultproxy.Listen(f.site.server.Addr()); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	kind := 0
	for i, k := range locks() {
		if k == f.site.kind {
			kind = i
		}
	}
	p.cmd = exec.Command(self)
	p.cmd.Env = append(os.Environ(), envReplica+"="+f.name, envKind+"="+strconv.Itoa(kind),
		envDSN+"="+strings.Replace(f.site.pool.Config().ConnString(), f.site.server.Addr(), p.proxy.Addr(), 1))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stderr = lockedWriter{f.site}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		for sc := bufio.NewScanner(stdout); sc.Scan(); {
			f.record(p, sc.Text())
		}
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

func (f *fleet) record(p *process, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch text {
	case "session", "ended":
		p.member = text == "session"
		return
	case "loss":
		p.losses++
		return
	}
	var epoch, began, ended int64
	if _, err := fmt.Sscanf(text, "effect %d %d %d", &epoch, &began, &ended); err == nil {
		f.calls = append(f.calls, call{p, epoch, time.Unix(0, began), time.Unix(0, ended)})
	}
}

// await polls until cond, which is called with f.mu held, or a replica has ended by itself.
func (f *fleet) await(what string, cond func() bool) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		f.mu.Lock()
		done := cond()
		f.mu.Unlock()
		if done {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v: %s", f.name, patience, what)
		}
	}
}

// first waits for the first call that match accepts.
func (f *fleet) first(what string, match func(call) bool) (c call, err error) {
	err = f.await(what, func() bool {
		for _, c = range f.calls {
			if match(c) {
				return true
			}
		}
		return false
	})
	return c, err
}

// owner waits until a replica is at work, and returns it and the index of the other.
func (f *fleet) owner() (*process, int, error) {
	err := f.await("both replicas have a session", func() bool { return f.replicas[0].member && f.replicas[1].member })
	if err != nil {
		return nil, 0, err
	}
	f.mu.Lock()
	f.calls = nil
	f.mu.Unlock()
	c, err := f.first("an owner at work", func(c call) bool { return c.by == f.replicas[0] || c.by == f.replicas[1] })
	if err != nil {
		return nil, 0, err
	}
	if c.by == f.replicas[0] {
		return c.by, 0, nil
	}
	return c.by, 1, nil
}

// replace starts a replica in the place of one that has ended.
func (f *fleet) replace(i int) error {
	<-f.replicas[i].ended
	f.replicas[i].proxy.Close()
	p, err := f.start()
	if err != nil {
		return err
	}
	f.replicas[i] = p
	return f.await("the new replica has a session", func() bool { return p.member })
}

func (s *site) close() {
	if s.cancel != nil {
		s.cancel()
	}
	for _, f := range s.fleets {
		for _, p := range f.replicas {
			if p == nil || p.cmd == nil || p.cmd.Process == nil {
				continue
			}
			_ = p.cmd.Process.Kill() // it may have ended
			<-p.ended
			p.stdin.Close()
			p.proxy.Close()
		}
	}
	s.publishing.Wait()
	if s.pool != nil {
		s.pool.Close()
	}
}

// said is the end of what replicas wrote to standard error.
func (s *site) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(s.stderr.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

type lockedWriter struct{ s *site }

func (w lockedWriter) Write(b []byte) (int, error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return w.s.stderr.Write(b)
}
