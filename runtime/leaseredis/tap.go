package leaseredis

import (
	"errors"
	"io"
	"net"
	"time"
)

// tapped is a connection that is read from all the time, so that its end is noticed at once and not with the next request.
type tapped struct {
	net.Conn          // is written to
	replies  net.Conn // near end of the pipe that what was read goes through
}

// tap returns c, and calls ended, once, when it has ended.
func tap(c net.Conn, ended func()) net.Conn {
	near, far := net.Pipe()
	go func() {
		_, _ = io.Copy(far, c) // either end may close it
		ended()
		far.Close()
		c.Close()
	}()
	return &tapped{c, near}
}

func (t *tapped) Read(b []byte) (int, error) { return t.replies.Read(b) }

func (t *tapped) SetReadDeadline(at time.Time) error { return t.replies.SetReadDeadline(at) }

func (t *tapped) SetDeadline(at time.Time) error {
	return errors.Join(t.replies.SetReadDeadline(at), t.Conn.SetWriteDeadline(at))
}

func (t *tapped) Close() error {
	t.replies.Close()
	return t.Conn.Close()
}
