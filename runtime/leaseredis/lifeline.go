package leaseredis

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// lifeline is the one TCP connection of a link. A client of Redis closes a connection when a reply is late; this one stays open until
// cut is called, since its end tells the others that the process has ended.
type lifeline struct {
	ended chan struct{} // closed when the connection has ended

	mu     sync.Mutex
	dialed bool     // or being dialed
	conn   net.Conn // nil until it is
	far    net.Conn // end of the pipe through which what was read goes to the client
	over   bool     // cut was called
}

// dialer returns one that works once, and reads from the connection all the time: its end is noticed at once and not with the next request.
func (l *lifeline) dialer(dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		l.mu.Lock()
		again := l.dialed
		l.dialed = true
		l.mu.Unlock()
		if again {
			return nil, errLinkBroken
		}
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return l.lend(c)
	}
}

// lend returns what a client may use of the connection, and close.
func (l *lifeline) lend(c net.Conn) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		c.Close()
		return nil, errLinkBroken
	}
	unprobed(c)
	near, far := net.Pipe()
	l.conn, l.far = c, far
	go func() {
		_, _ = io.Copy(far, c)        // either end may close it
		_, _ = io.Copy(io.Discard, c) // the client has closed its own
		close(l.ended)
		far.Close()
		c.Close()
	}()
	return &lent{c, near}, nil
}

// cut ends the connection, also one that is being dialed.
func (l *lifeline) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.conn != nil {
		l.conn.Close()
		l.far.Close() // a reply may wait for the client
	}
}

// unprobed turns off the kernel's own probes, which end a connection that hears no answer long before a long TTL.
func unprobed(c net.Conn) {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = t.NetConn()
	}
	if t, ok := c.(interface{ SetKeepAlive(bool) error }); ok {
		_ = t.SetKeepAlive(false) // it is closed already, and so ends
	}
}

// lent is a connection that outlives its user.
type lent struct {
	net.Conn          // is written to
	replies  net.Conn // near end of the pipe that what was read goes through
}

func (l *lent) Read(b []byte) (int, error) { return l.replies.Read(b) }

func (l *lent) SetReadDeadline(at time.Time) error { return l.replies.SetReadDeadline(at) }

func (l *lent) SetDeadline(at time.Time) error {
	return errors.Join(l.replies.SetReadDeadline(at), l.Conn.SetWriteDeadline(at))
}

func (l *lent) Close() error { return l.replies.Close() }
