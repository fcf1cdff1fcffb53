package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/must"
)

// The program starts itself again as what the variable says.
const (
	envChild   = "BENCH_CHILD"
	envReplica = "BENCH_REPLICA"
	envNth     = "BENCH_NTH" // how many replicas were started before it
)

func children() map[string]func() int {
	return map[string]func() int{"nats": natsMain, "replica": replicaMain, "grown": grownMain}
}

// held is the number of a message whose handler does not return in the first replica that is started. The next number is the second's: each of
// these messages ends one process, since a few crashes over one message make it a dead letter.
const held = 1 << 40

// placement says which contender a replica is, and where its servers are.
type placement struct {
	Contender, DSN, Redis string
	NATS                  map[string]string
}

// replicaMain is a process of a contender. It says when it begins with a message.
func replicaMain() int {
	return fleet.Main(func(ctx context.Context) (err error) {
		defer must.Catch(&err)
		var at placement
		must.Do(json.Unmarshal([]byte(os.Getenv(envReplica)), &at))
		all := contenders()
		i := slices.IndexFunc(all, func(c contender) bool { return c.ID == at.Contender })
		if i < 0 {
			return fmt.Errorf("no contender %q", at.Contender)
		}
		sys := must.Get(all[i].open(ctx, &site{dsn: at.DSN, redisAt: at.Redis, natsAt: at.NATS, replica: true}))
		defer sys.Close()
		own := held + must.Get(strconv.Atoi(os.Getenv(envNth)))
		var mu sync.Mutex
		stop := must.Get(sys.Consume(context.WithoutCancel(ctx), job{topics: 1, call: func(payload []byte) {
			n := number(payload)
			mu.Lock()
			fmt.Printf("begin %d %d\n", n, time.Now().UnixNano())
			mu.Unlock()
			if n == own {
				select {} // until the process is killed
			}
		}}))
		fmt.Println("ready")
		<-ctx.Done()
		return stop()
	})
}

// begin is what a replica said.
type begin struct {
	by *fleet.Process
	n  int
	at time.Time
}

// replicas are two processes of a contender, of which one may work and the other wait.
type replicas struct {
	t      *turn
	env    []string
	errors fleet.Tail

	mu      sync.Mutex
	begun   []begin
	ready   map[*fleet.Process]bool
	running []*fleet.Process
}

func (t *turn) replicas() *replicas {
	at := must.Get(json.Marshal(placement{t.contender.ID, t.site.dsn, t.site.redisAt, t.site.natsAt}))
	return &replicas{t: t, env: []string{envChild + "=replica", envReplica + "=" + string(at)}, ready: map[*fleet.Process]bool{}}
}

// start starts one process and waits until it consumes.
func (r *replicas) start(ctx context.Context) error {
	var p *fleet.Process
	nth := len(r.running)
	p = fleet.NewProcess(fmt.Sprint("replica ", nth), append(slices.Clip(r.env), envNth+"="+strconv.Itoa(nth)), func(line string) { r.told(p, line) }, io.Writer(&r.errors))
	if err := p.Start(); err != nil {
		return err
	}
	r.mu.Lock()
	r.running = append(r.running, p)
	r.mu.Unlock()
	return r.await(ctx, "a replica is ready", func() bool { return r.ready[p] })
}

func (r *replicas) told(p *fleet.Process, line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := strings.Fields(line)
	switch {
	case line == "ready":
		r.ready[p] = true
	case len(f) == 3 && f[0] == "begin":
		n, _ := strconv.Atoi(f[1])
		at, _ := strconv.ParseInt(f[2], 10, 64)
		r.begun = append(r.begun, begin{p, n, time.Unix(0, at)})
	}
}

// await polls with the lock held.
func (r *replicas) await(ctx context.Context, what string, cond func() bool) error {
	return until(ctx, 40*time.Second, what, &r.errors, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return cond()
	})
}

// until polls, each millisecond. Its error has what replicas said.
func until(ctx context.Context, limit time.Duration, what string, said *fleet.Tail, cond func() bool) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		switch {
		case cond():
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("not within %v: %s; replicas said: %s", limit, what, said.Last(5))
		}
	}
}

// first is the first beginning that matches.
func (r *replicas) first(ctx context.Context, what string, match func(begin) bool) (b begin, err error) {
	err = r.await(ctx, what, func() bool {
		i := slices.IndexFunc(r.begun, match)
		if i >= 0 {
			b = r.begun[i]
		}
		return i >= 0
	})
	return b, err
}

func (r *replicas) end() {
	r.mu.Lock()
	running := slices.Clone(r.running)
	r.mu.Unlock()
	for _, p := range running {
		p.End()
	}
}

var errIdle = errors.New("no replica worked")
