package faultproxy_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/faultproxy"
)

// server answers every line with the number of lines it has received.
func server(t *testing.T) (addr string, received *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	received = new(atomic.Int64)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for s := bufio.NewScanner(c); s.Scan(); {
					fmt.Fprintln(c, received.Add(1))
				}
			}()
		}
	}()
	return l.Addr().String(), received
}

type client struct {
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, addr string) client {
	t.Helper()
	c, err := tryDial(t, addr)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func tryDial(t *testing.T, addr string) (client, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return client{}, err
	}
	t.Cleanup(func() { c.Close() })
	return client{c, bufio.NewReader(c)}, nil
}

// ask sends a line and waits at most d for the answer.
func (c client) ask(line string, d time.Duration) (string, error) {
	if _, err := fmt.Fprintln(c, line); err != nil {
		return "", err
	}
	return c.answer(d)
}

func (c client) answer(d time.Duration) (string, error) {
	_ = c.SetReadDeadline(time.Now().Add(d))
	return c.r.ReadString('\n')
}

const long = time.Minute

func mustAnswer(t *testing.T, c client, line, want string) {
	t.Helper()
	if got, err := c.ask(line, long); err != nil || got != want {
		t.Fatalf("%q answered %q, %v; want %q", line, got, err, want)
	}
}

func timedOut(err error) bool {
	ne, ok := err.(net.Error)
	return ok && ne.Timeout()
}

func TestCut(t *testing.T) {
	addr, _ := server(t)
	p := faultproxy.Start(t, addr)
	c := dial(t, p.Addr())
	mustAnswer(t, c, "a", "1\n")
	p.Cut()
	if _, err := c.ask("b", long); err == nil || timedOut(err) {
		t.Errorf("a cut connection: error %v, want a reset", err)
	}
	late, err := tryDial(t, p.Addr())
	if err == nil { // the reset may come as early as that
		_, err = late.ask("c", long)
	}
	if err == nil || timedOut(err) {
		t.Errorf("a connection made while cut: error %v, want a reset", err)
	}
	p.Heal()
	mustAnswer(t, dial(t, p.Addr()), "d", "2\n")
}

// A server makes something of every connection, PostgreSQL a process: a link that is cut must not bring it any.
func TestCutLinksReachNoTarget(t *testing.T) {
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	p := faultproxy.Start(t, target.Addr().String())
	p.Cut()
	for range 10 {
		if c, err := tryDial(t, p.Addr()); err == nil {
			if _, err = c.ask("a", long); err == nil || timedOut(err) {
				t.Fatalf("a connection made while cut: error %v, want a reset", err)
			}
		}
	}
	_ = target.(*net.TCPListener).SetDeadline(time.Now().Add(100 * time.Millisecond)) // one that was made waits already
	if c, err := target.Accept(); err == nil {
		c.Close()
		t.Error("a connection made while cut reached the target")
	}
}

func TestBlackHole(t *testing.T) {
	addr, received := server(t)
	p := faultproxy.Start(t, addr)
	c := dial(t, p.Addr())
	mustAnswer(t, c, "a", "1\n")
	p.BlackHole()
	if _, err := c.ask("b", 100*time.Millisecond); !timedOut(err) {
		t.Fatalf("through a black hole: %v, want a timeout", err)
	}
	if n := received.Load(); n != 1 {
		t.Errorf("%d lines came through, want 1", n)
	}
	p.Heal()
	if got, err := c.answer(long); err != nil || got != "2\n" {
		t.Errorf("after healing: %q, %v; want what was held back", got, err)
	}
	p.BlackHole()
	p.Cut() // ends connections that are stuck in the hole
	if _, err := c.answer(long); err == nil || timedOut(err) {
		t.Errorf("cut inside the black hole: %v, want a reset", err)
	}
}

// A client that gives up inside the hole is still there for the target, and no more when only the target is not heard.
func TestWhoGivesUp(t *testing.T) {
	for name, through := range map[string]struct {
		fault func(*faultproxy.Proxy)
		ends  bool
	}{"black hole": {(*faultproxy.Proxy).BlackHole, false}, "deaf": {(*faultproxy.Proxy).Deafen, true}} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			p := faultproxy.Start(t, l.Addr().String())
			c := dial(t, p.Addr())
			accepted, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			server := client{accepted, bufio.NewReader(accepted)}
			t.Cleanup(func() { server.Close() })
			fmt.Fprintln(c, "a")
			if got, err := server.answer(long); err != nil || got != "a\n" {
				t.Fatalf("received %q, %v", got, err)
			}
			through.fault(p)
			fmt.Fprintln(server, "b")
			if _, err := c.answer(50 * time.Millisecond); !timedOut(err) {
				t.Fatalf("an answer comes through: %v", err)
			}
			c.Close()
			if through.ends {
				if _, err := server.answer(long); err == nil || timedOut(err) {
					t.Errorf("the end of the connection: %v", err)
				}
				return
			}
			if _, err := server.answer(100 * time.Millisecond); !timedOut(err) {
				t.Errorf("something comes through: %v", err)
			}
			p.Heal()
			if _, err := server.answer(long); err == nil || timedOut(err) {
				t.Errorf("after healing: %v, want the end of the connection", err)
			}
		})
	}
}

func TestDelay(t *testing.T) {
	addr, _ := server(t)
	p := faultproxy.Start(t, addr)
	c := dial(t, p.Addr())
	p.Delay(60 * time.Millisecond)
	begin := time.Now()
	mustAnswer(t, c, "a", "1\n")
	if took := time.Since(begin); took < 120*time.Millisecond {
		t.Errorf("the round trip took %v, want two delays of 60ms", took)
	}
}

func TestDropReply(t *testing.T) {
	addr, received := server(t)
	p := faultproxy.Start(t, addr)
	c, other := dial(t, p.Addr()), dial(t, p.Addr())
	var acted atomic.Int64 // lines that the server had received when the reply came
	dropped := p.AtReply(func(b []byte) bool { return bytes.Contains(b, []byte("commit")) }, func() { acted.Store(int64(received.Load())) })
	mustAnswer(t, c, "begin", "1\n")
	if got, err := c.ask("commit", long); err == nil || timedOut(err) {
		t.Fatalf("the reply came through, or nothing did: %q, %v", got, err)
	}
	if n := acted.Load(); n != 2 {
		t.Errorf("the client knows, and the server had received %d lines, want 2", n)
	}
	<-dropped
	if n := received.Load(); n != 2 {
		t.Errorf("the server received %d lines, want 2: the request must arrive", n)
	}
	mustAnswer(t, other, "commit", "3\n") // only one reply is dropped
}

// A client that gives up before the reply comes is not what was waited for: the next request is.
func TestDropReplyOutlivesAClientThatGivesUp(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	silent := make(chan net.Conn, 1) // the server never answers on the first connection
	go func() {
		for first := true; ; first = false {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if first {
				silent <- c
				continue
			}
			go func() {
				defer c.Close()
				for s := bufio.NewScanner(c); s.Scan(); {
					fmt.Fprintln(c, "answer")
				}
			}()
		}
	}()
	p := faultproxy.Start(t, l.Addr().String())
	hasty := dial(t, p.Addr())
	dropped := p.DropReply(func(b []byte) bool { return bytes.Contains(b, []byte("commit")) })
	if _, err := hasty.ask("commit", 50*time.Millisecond); !timedOut(err) {
		t.Fatalf("the server answered: %v", err)
	}
	c := <-silent
	defer c.Close()
	if _, err := bufio.NewReader(c).ReadString('\n'); err != nil { // it has reached the server
		t.Fatal(err)
	}
	hasty.Close()
	for deadline := time.Now().Add(time.Minute); ; {
		if _, err := dial(t, p.Addr()).ask("commit", long); err != nil && !timedOut(err) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no other reply is dropped")
		}
	}
	<-dropped
}

func TestRefuse(t *testing.T) {
	addr, received := server(t)
	p := faultproxy.Start(t, addr)
	p.Refuse(func(request []byte) bool { return string(request) == "bad\n" })
	good, bad := dial(t, p.Addr()), dial(t, p.Addr())
	if answer, err := bad.ask("bad", time.Minute); err == nil || timedOut(err) {
		t.Errorf("a request that is refused got %q, %v, want a reset", answer, err)
	}
	mustAnswer(t, good, "good", "1\n")
	if n := received.Load(); n != 1 {
		t.Errorf("the target received %d requests, want 1", n)
	}
}
