package main

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// warnPlaintext says that what goes to a host and comes from it, a password among it, can be read on the way.
func (e *env) warnPlaintext(host, fix string) {
	if !onMachine(host) {
		_ = e.output(e.Stderr).alarm("leasegen: warning: the connection to %s is not encrypted; %s", printable(host, 200), fix)
	}
}

// onMachine reports whether a connection to a host stays on this machine.
func onMachine(host string) bool {
	if host == "" || host == "localhost" || strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") {
		return true // no host, or a socket
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback()
}

// warnPool warns by what was agreed with the server: sslmode=prefer may have ended without TLS.
func (e *env) warnPool(ctx context.Context, pool *pgxpool.Pool) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	c := conn.Conn().PgConn().Conn()
	if _, encrypted := c.(*tls.Conn); encrypted {
		return nil
	}
	if remote, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		e.warnPlaintext(remote.IP.String(), "use sslmode=verify-full")
	}
	return nil
}

func (e *env) warnRedis(dsn string) {
	if u, err := url.Parse(dsn); err == nil && u.Scheme == "redis" {
		e.warnPlaintext(u.Hostname(), "use rediss://")
	}
}
