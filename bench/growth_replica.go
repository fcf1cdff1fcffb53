package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/must"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/operate"
)

// probed is the number of the first message whose handling is reported one by one.
const probed = 1 << 39

// grown says what a replica of a growing system runs, and where its servers are.
type grown struct {
	DSN       string
	Nodes     []string // of a Redis Cluster
	Consumers int
}

// specOf is a consumer of a growing system: the first has the topics, others read the whole log as groups.
func specOf(i int) lease.Spec {
	s := lease.Spec{Name: "bench", Per: lease.PerTopic, Topics: []string{"bench.*"}, Batch: batch}
	if i > 0 {
		s.Name, s.Per = fmt.Sprint("bench-", i), lease.PerGroup
	}
	return s
}

// grownMain is a process of a growing system. It begins at SIGUSR1.
func grownMain() int {
	return fleet.Main(func(ctx context.Context) (err error) {
		defer must.Catch(&err)
		var g grown
		must.Do(json.Unmarshal([]byte(os.Getenv(envReplica)), &g))
		be, closing := g.open(ctx, 8)
		defer closing()
		t := &teller{news: make(chan struct{}, 1)}
		group := lease.NewGroup()
		for i := range g.Consumers {
			s, j := specOf(i), job{begun: t.begun}
			if i == 0 {
				j.call = t.call
			}
			s.Handlers = []lease.Handler{plainHandler(j)}
			must.Do(group.Add(must.Get(lease.NewConsumer(be, s, lease.WithObserver(operate.ObserverFunc(t.observe))))))
		}
		begin := make(chan os.Signal, 1)
		signal.Notify(begin, syscall.SIGUSR1)
		fmt.Println("ready")
		select {
		case <-begin:
		case <-ctx.Done():
			return nil
		}
		go t.tell(ctx)
		return group.Run(ctx)
	})
}

// teller counts what a replica handles, and prints it every few milliseconds while it changes: a replica at rest has no timer for that,
// which would be much of what an idle one costs.
type teller struct {
	news             chan struct{} // has room for one
	mu               sync.Mutex
	handled, refused int
	first, last      time.Time
}

func (t *teller) begun() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first.IsZero() {
		t.first = time.Now()
	}
}

func (t *teller) call(payload []byte) {
	if n := number(payload); n >= probed {
		fmt.Printf("probe %d %d\n", n, time.Now().UnixNano())
	}
}

func (t *teller) observe(o operate.Observation) {
	if c, ok := o.(operate.ObservedCommit); ok {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.handled += c.Handled
		t.refused += c.Parked + c.Dead + c.Skipped
		t.last = time.Now()
		select {
		case t.news <- struct{}{}:
		default:
		}
	}
}

func (t *teller) tell(ctx context.Context) {
	told := 0
	for {
		select {
		case <-t.news:
		case <-ctx.Done():
			return
		}
		time.Sleep(20 * time.Millisecond)
		t.mu.Lock()
		handled, refused, first, last := t.handled, t.refused, t.first, t.last
		t.mu.Unlock()
		if handled != told {
			fmt.Printf("handled %d %d %d %d\n", handled, refused, first.UnixNano(), last.UnixNano())
			told = handled
		}
	}
}

// crew is the replicas of a growing system.
type crew struct {
	env    []string
	errors fleet.Tail
	all    []*fleet.Process

	mu     sync.Mutex
	ready  int
	said   map[*fleet.Process]handledSo
	probes map[int]time.Time // when each was handled first
}

// handledSo is what a replica has handled so far.
type handledSo struct {
	n, refused  int
	first, last time.Time
}

func newCrew(g grown) *crew {
	at := must.Get(json.Marshal(g))
	return &crew{env: []string{envChild + "=grown", envReplica + "=" + string(at)}, said: map[*fleet.Process]handledSo{}, probes: map[int]time.Time{}}
}

// start starts processes, and lets all of them begin at once when each is ready. It returns when they began.
func (c *crew) start(ctx context.Context, n int) (time.Time, error) {
	for i := range n {
		var p *fleet.Process
		p = fleet.NewProcess(fmt.Sprint("replica ", i), c.env, func(line string) { c.told(p, line) }, io.Writer(&c.errors))
		if err := p.Start(); err != nil {
			return time.Time{}, err
		}
		c.all = append(c.all, p)
	}
	err := until(ctx, time.Minute, "all replicas are ready", &c.errors, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.ready == n
	})
	begin := time.Now()
	for _, p := range c.all {
		if err == nil {
			err = p.Signal(syscall.SIGUSR1)
		}
	}
	return begin, err
}

func (c *crew) told(p *fleet.Process, line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := strings.Fields(line)
	var v []int64
	for _, field := range f[min(1, len(f)):] {
		n, _ := strconv.ParseInt(field, 10, 64)
		v = append(v, n)
	}
	switch {
	case line == "ready":
		c.ready++
	case len(v) == 4 && f[0] == "handled":
		c.said[p] = handledSo{int(v[0]), int(v[1]), time.Unix(0, v[2]), time.Unix(0, v[3])}
	case len(v) == 2 && f[0] == "probe":
		if _, again := c.probes[int(v[0])]; !again {
			c.probes[int(v[0])] = time.Unix(0, v[1])
		}
	}
}

// total is what all of them have handled, since when, and until when.
func (c *crew) total() (t handledSo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.said {
		t.n, t.refused = t.n+h.n, t.refused+h.refused
		if t.first.IsZero() || h.first.Before(t.first) {
			t.first = h.first
		}
		if h.last.After(t.last) {
			t.last = h.last
		}
	}
	return t
}

// seconds is the CPU time of all of them.
func (c *crew) seconds() (s float64) {
	for _, p := range c.all {
		if !p.Gone() {
			s += familySeconds(p.PID())
		}
	}
	return s
}

func (c *crew) end() {
	for _, p := range c.all {
		p.End()
	}
}
