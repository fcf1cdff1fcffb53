package leaseredis

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// The connection lives as long as the lifeline, and no longer: neither the client that closes it nor the kernel ends it before, and no
// reply that waits for a client keeps it.
func TestLifeline(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"tcp": func(c net.Conn) net.Conn { return c },
		"tls": func(c net.Conn) net.Conn { return tls.Client(c, &tls.Config{InsecureSkipVerify: true}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := kit.Must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
			t.Cleanup(func() { server.Close() })
			var raw net.Conn
			l := &lifeline{ended: make(chan struct{})}
			dial := l.dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true}}).DialContext(ctx, network, addr)
				raw = c
				return wrap(c), err
			})
			lent := kit.Must[net.Conn](t)(dial(t.Context(), "tcp", server.Addr().String()))
			far := kit.Must[net.Conn](t)(server.Accept())
			t.Cleanup(func() { far.Close() })
			kit.OK(t, kit.Must[syscall.RawConn](t)(raw.(*net.TCPConn).SyscallConn()).Control(func(fd uintptr) {
				kit.Equal(t, "probes of the kernel", kit.Must[int](t)(syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_KEEPALIVE)), 0)
			}))
			if name == "tcp" { // the other one has made no handshake
				_, err := far.Write([]byte("a reply"))
				kit.OK(t, err)
				kit.OK(t, lent.Close())
				kit.OK(t, far.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
				if _, err := far.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("when the client has closed it: %v", err)
				}
			}
			if _, err := dial(t.Context(), "tcp", server.Addr().String()); err != errLinkBroken {
				t.Errorf("a second connection: %v", err)
			}
			l.cut()
			kit.Eventually(t, "the connection has ended", func() bool { return isClosed(l.ended) })
		})
	}
	t.Run("a reply waits", func(t *testing.T) {
		t.Parallel()
		near, server := net.Pipe()
		l := &lifeline{ended: make(chan struct{})}
		kit.Must[net.Conn](t)(l.lend(near))
		kit.Must[int](t)(server.Write([]byte("a reply")))
		l.cut()
		kit.Eventually(t, "the connection has ended", func() bool { return isClosed(l.ended) })
		_, err := l.lend(server)
		kit.Equal(t, "lent when it is over", err, error(errLinkBroken))
	})
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
