package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	orders   = 1200
	pace     = 4 * time.Millisecond // between orders
	freezeAt = orders / 3           // orders published when a replica stops answering
	victim   = "replica-2"
)

// show publishes orders, takes one replica down and prints what happens.
type show struct {
	be  *leasemem.Backend
	ctx context.Context
	end context.CancelFunc
	run sync.WaitGroup

	mu       sync.Mutex
	replicas map[string]*replica
	rows     map[string]*row // by topic
	frozenAt time.Time
	refused  []string
	drawn    int // lines on the terminal
}

type row struct {
	owner   string
	epoch   int64
	handled int
	note    string
}

func newShow(be *leasemem.Backend) *show {
	s := &show{be: be, replicas: map[string]*replica{}, rows: map[string]*row{}}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s
}

// replica is the memory backend as one replica reaches it. While frozen, none of its
// calls arrives: what a SIGSTOP, a long pause or a cut cable does.
type replica struct {
	*leasemem.Backend
	name   string
	show   *show
	mu     sync.Mutex
	frozen chan struct{} // closed when the replica thaws; nil while it is well
}

func (s *show) replica(name string) lease.Backend {
	r := &replica{Backend: s.be, name: name, show: s}
	s.replicas[name] = r
	return r
}

func (r *replica) wait() {
	r.mu.Lock()
	frozen := r.frozen
	r.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

func (r *replica) freeze() (thaw func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	frozen := make(chan struct{})
	r.frozen = frozen
	return func() { close(frozen) }
}

func (r *replica) OpenSession(ctx context.Context, spec backend.SessionSpec) (backend.Session, error) {
	r.wait()
	s, err := r.Backend.OpenSession(ctx, spec)
	return &heart{s, r}, err
}

type heart struct {
	backend.Session
	replica *replica
}

func (h *heart) Heartbeat(ctx context.Context) error {
	h.replica.wait()
	return h.Session.Heartbeat(ctx)
}

// Commit reaches the backend late when the replica was frozen in between, as a packet
// on its way would: it no longer knows that its sender gave up.
func (r *replica) Commit(ctx context.Context, session, consumer string, ps []backend.Progress) ([]string, error) {
	r.wait()
	fenced, err := r.Backend.Commit(context.WithoutCancel(ctx), session, consumer, ps)
	for _, topic := range fenced {
		i := slices.IndexFunc(ps, func(p backend.Progress) bool { return p.Resource == topic })
		r.show.refuse(r.name, topic, ps[i].Epoch)
	}
	return fenced, err
}

func (s *show) refuse(name, topic string, epoch int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = append(s.refused, fmt.Sprintf("refused: %s tried to commit %s with epoch %d (now %d)", name, topic, epoch, s.row(topic).epoch))
}

func (s *show) options(name string) []lease.Option {
	return []lease.Option{
		lease.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))), // the table says it
		lease.WithBatch(10),
		lease.WithObserver(operate.ObserverFunc(func(o operate.Observation) { s.observe(name, o) })),
	}
}

func (s *show) row(topic string) *row {
	if s.rows[topic] == nil {
		s.rows[topic] = &row{}
	}
	return s.rows[topic]
}

func (s *show) observe(name string, o operate.Observation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o := o.(type) {
	case operate.ObservedAcquire:
		r := s.row(o.Resource)
		if o.Epoch < r.epoch {
			return
		}
		switch {
		case o.Crashed:
			r.note = fmt.Sprintf("took over from %s in %d ms", r.owner, time.Since(s.frozenAt).Milliseconds())
		case r.owner != "" && r.owner != name:
			r.note = "handed over by " + r.owner
		}
		r.owner, r.epoch = name, o.Epoch
	case operate.ObservedCommit:
		s.row(o.Resource).handled += o.Handled
	}
}

func (s *show) start(name string, c *lease.Consumer) {
	s.run.Go(func() {
		if err := c.Run(s.ctx); err != nil {
			log.Fatalf("%s: %v", name, err)
		}
	})
}

// play publishes the orders while the table is shown, one of them unreadable, and
// ends when all are accounted for.
func (s *show) play(publish func(context.Context, string, OrderPlaced) error) {
	topics := []string{"orders.apac", "orders.eu", "orders.us", "orders.latam", "orders.africa", "orders.me"}
	shown := make(chan struct{})
	s.run.Go(func() { s.draw(shown) })
	var thaw func()
	for i := range orders {
		topic := topics[i%len(topics)]
		customer := fmt.Sprintf("cust-%d", i%50)
		var err error
		if i == orders/2 {
			err = s.be.Publish(s.ctx, []lease.Event{{Topic: topic, Key: customer, Kind: "order.placed", Payload: []byte(`{"cents": "12.5"}`)}})
		} else {
			err = publish(s.ctx, topic, OrderPlaced{Customer: customer, Cents: int64(i)})
		}
		if err != nil {
			log.Fatal(err)
		}
		if i == freezeAt {
			s.mu.Lock()
			s.frozenAt = time.Now()
			s.mu.Unlock()
			thaw = s.replicas[victim].freeze()
		}
		time.Sleep(pace)
	}
	dead := s.settle(orders)
	thaw() // the dead replica's last write arrives, too late
	s.until("the late write is refused", func() bool { return len(s.refused) > 0 })
	close(shown)
	s.end()
	s.run.Wait()
	s.report(orders, dead)
}

// settle waits until everything published is handled or a dead letter.
func (s *show) settle(published int) (dead []operate.DeadLetterInfo) {
	s.until("all orders are accounted for", func() bool {
		var err error
		if dead, err = s.be.DeadLetters(s.ctx, operate.DeadLetterFilter{Consumer: "billing"}); err != nil {
			log.Fatal(err)
		}
		return s.handled()+len(dead) >= published
	})
	return dead
}

// until polls cond, with s.mu held, and gives up loudly.
func (s *show) until(what string, cond func() bool) {
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		ok := cond()
		s.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			log.Fatalf("gave up waiting until %s", what)
		}
	}
}

func (s *show) handled() (n int) {
	for _, r := range s.rows {
		n += r.handled
	}
	return n
}

// draw prints the table: in place on a terminal, once a second elsewhere.
func (s *show) draw(stop <-chan struct{}) {
	every := time.Second
	info, err := os.Stdout.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0
	if terminal {
		every = 100 * time.Millisecond
	}
	for ticker := time.NewTicker(every); ; {
		s.table(terminal)
		select {
		case <-ticker.C:
		case <-stop:
			s.table(terminal)
			return
		}
	}
}

func (s *show) table(inPlace bool) {
	lag := map[string]int64{}
	leases, err := s.be.Leases(context.Background(), "billing", 100)
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range leases {
		lag[l.Resource] = l.Lag
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	if inPlace && s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.drawn)
	}
	clearLine := ""
	if inPlace {
		clearLine = "\x1b[K"
	}
	fmt.Fprintf(&b, "%-14s %-10s %18s %8s %4s%s\n", "topic", "owner", "epoch", "handled", "lag", clearLine)
	topics := make([]string, 0, len(s.rows))
	for t := range s.rows {
		topics = append(topics, t)
	}
	slices.SortFunc(topics, cmp.Compare)
	for _, t := range topics {
		r := s.rows[t]
		fmt.Fprintf(&b, "%-14s %-10s %18d %8d %4d   %s%s\n", t, r.owner, r.epoch, r.handled, lag[t], r.note, clearLine)
	}
	if !inPlace {
		b.WriteByte('\n')
	}
	s.drawn = len(topics) + 1
	fmt.Print(b.String())
}

func (s *show) report(published int, dead []operate.DeadLetterInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range s.refused {
		fmt.Println(line)
	}
	fmt.Printf("published %d = handled %d + dead letters %d", published, s.handled(), len(dead))
	for _, d := range dead {
		fmt.Printf(" (%s #%s: %s)", d.Topic, d.MessageID, d.Reason)
	}
	fmt.Println()
	if s.handled()+len(dead) != published {
		log.Fatal("the sums do not add up")
	}
	fmt.Println("\nNext: read examples/quickstart/orders.go and orders_leasegen.go beside it,\nthen examples/webhooks, which does this on PostgreSQL with real processes.")
}
