// Package faultproxy is a TCP proxy that breaks connections in the ways networks do.
package faultproxy

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy forwards connections to one address. All methods may be called at any time
// from any goroutine.
type Proxy struct {
	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	up      *gate // to the target
	down    *gate // to the client
	cut     bool
	closed  bool
	latency time.Duration
	drop    *drop
	refuse  func(request []byte) bool
	links   map[*link]struct{}
}

// gate is one direction. It is guarded by Proxy.mu, as far as the channel is exchanged.
type gate struct{ open chan struct{} } // closed while what comes goes on

func newGate() *gate {
	g := &gate{make(chan struct{})}
	close(g.open)
	return g
}

func (g *gate) isOpen() bool {
	select {
	case <-g.open:
		return true
	default:
		return false
	}
}

func (g *gate) shut() {
	if g.isOpen() {
		g.open = make(chan struct{})
	}
}

func (g *gate) unshut() {
	if !g.isOpen() {
		close(g.open)
	}
}

// drop waits for the one request whose reply is to be lost.
type drop struct {
	match func(request []byte) bool
	do    func()
	done  chan struct{}
}

// link is one client's connection and its connection to the target.
type link struct {
	client, server net.Conn
	dead           chan struct{}
	ended          sync.Once
	lose           *drop // guarded by Proxy.mu
}

// Start starts a proxy to target, a host:port, and ends it with the test.
func Start(t testing.TB, target string) *Proxy {
	t.Helper()
	p, err := Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// Listen starts a proxy outside of a test. Close it.
func Listen(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, listener: l, up: newGate(), down: newGate(), links: map[*link]struct{}{}}
	p.running.Go(p.accept)
	return p, nil
}

// Addr is the host:port that clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut resets all connections, and every new one at once, until Heal. The target does not hear of new ones.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for l := range p.links {
		l.kill()
	}
}

// HangUp ends all connections in order, at both ends, as proxies do that restart.
func (p *Proxy) HangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.end(net.Conn.Close)
	}
}

// BlackHole lets neither data nor the ends of connections through, in either direction,
// until Heal; what was sent in between then arrives.
func (p *Proxy) BlackHole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.up.shut()
	p.down.shut()
}

// Deafen is a BlackHole for what the target sends alone: what a client asks is done, and it does not hear of it.
func (p *Proxy) Deafen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down.shut()
}

// Heal ends Cut, BlackHole, Deafen and Delay. Connections that were cut stay cut.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut, p.latency = false, 0
	p.up.unshut()
	p.down.unshut()
}

// Delay holds back every piece of data by d, in both directions, until Heal.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency = d
}

// DropReply lets the next request that match accepts reach the target, and resets
// its connection when the reply comes, instead of passing that on: the target has
// acted and the client cannot know. A request is what the client sent in one piece.
// The channel is closed once it has happened; a client that gives up before does not count.
func (p *Proxy) DropReply(match func(request []byte) bool) <-chan struct{} {
	return p.AtReply(match, func() {})
}

// AtReply is DropReply, and calls do when the reply comes, before it resets the connection. The proxy is locked then: do must not call it.
func (p *Proxy) AtReply(match func(request []byte) bool, do func()) <-chan struct{} {
	d := &drop{match: match, do: do, done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop = d
	return d.done
}

// Refuse resets each connection whose client sends a request that match accepts; the target does not get that.
func (p *Proxy) Refuse(match func(request []byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = match
}

// Close resets all connections and ends the proxy.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Cut()
	p.listener.Close()
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	cut := p.cut
	p.mu.Unlock()
	if cut {
		reset(client)
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		reset(client)
		return
	}
	l := &link{client: client, server: server, dead: make(chan struct{})}
	p.mu.Lock()
	p.links[l] = struct{}{}
	if p.cut || p.closed {
		l.kill()
	}
	p.mu.Unlock()
	p.running.Go(func() { p.pump(l, client, server, p.up, p.request) })
	p.pump(l, server, client, p.down, p.reply)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
	if l.lose != nil && p.drop == nil { // the client gave up before the reply came: another one is dropped
		p.drop = l.lose
	}
}

// kill resets both connections.
func (l *link) kill() { l.end(reset) }

// end ends both connections, once.
func (l *link) end(one func(net.Conn) error) {
	l.ended.Do(func() {
		close(l.dead)
		_ = one(l.client)
		_ = one(l.server)
	})
}

// pump moves data from one side to the other until the link dies. inspect says
// whether a piece may pass. One side's orderly end is passed on as such: a process that was killed ends its connections so.
func (p *Proxy) pump(l *link, from, to net.Conn, through *gate, inspect func(*link, []byte) bool) {
	defer l.kill()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		open, latency := through.open, p.latency
		p.mu.Unlock()
		select {
		case <-open:
		case <-l.dead:
			return
		}
		if latency > 0 {
			select {
			case <-time.After(latency):
			case <-l.dead:
				return
			}
		}
		if err == io.EOF {
			l.end(net.Conn.Close)
		}
		if err != nil || !inspect(l, buf[:n]) {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *Proxy) request(l *link, b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drop != nil && p.drop.match(b) {
		l.lose, p.drop = p.drop, nil
	}
	return p.refuse == nil || !p.refuse(b)
}

func (p *Proxy) reply(l *link, _ []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.lose == nil {
		return true
	}
	l.lose.do()
	close(l.lose.done)
	l.lose = nil
	return false
}

// reset closes a connection so that the other end sees a reset, not an orderly end.
func reset(c net.Conn) error {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	return c.Close()
}
