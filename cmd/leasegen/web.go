package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/leaseweb"
)

// web is what leasegen web was asked for.
type web struct {
	listen            string
	operate, payloads bool
	password          string // "" for none
}

// passwordVariable has the password of those who look: on a command line others would see it.
const passwordVariable = "LEASEGEN_WEB_PASSWORD"

func webCommand() command {
	return databaseCommand("web [flags]", "show consumers in a browser, and repair them there", func(d *database) work {
		p := &web{}
		d.flags()
		p.flags(d.fs)
		return func(ctx context.Context, e *env, rest []string) error {
			p.password = e.Getenv(passwordVariable)
			if err := p.arguments(rest); err != nil {
				return err
			}
			return d.withTarget(ctx, e, func(on target) error { return p.serve(ctx, e, on) })
		}
	}, "web", "web -operate -payloads", "web -dsn redis://host:6379/0")
}

func (p *web) flags(fs *flag.FlagSet) {
	fs.StringVar(&p.listen, "listen", "127.0.0.1:8077", "`address` to listen on; others than this machine's own take $"+passwordVariable)
	fs.BoolVar(&p.operate, "operate", false, "let users replay, purge, retry, pause, move cursors and forget; without it they only look")
	fs.BoolVar(&p.payloads, "payloads", false, "let users see the payloads of dead letters")
}

func (p *web) arguments(rest []string) error {
	if len(rest) > 0 {
		return usagef("it takes flags only, not %q", rest)
	}
	host, _, err := net.SplitHostPort(p.listen)
	switch {
	case err != nil:
		return usagef("-listen %q: want host:port, as 127.0.0.1:8077", p.listen)
	case p.password == "" && !loopback(host):
		return usagef("-listen %s can be reached from other machines: set %s to a password that users have to give", p.listen, passwordVariable)
	}
	return nil
}

// loopback reports whether a host is this machine's own, and no other's.
func loopback(host string) bool {
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (p *web) access() (may leaseweb.Access, words string) {
	may, words = leaseweb.View, "to look at; -operate lets you change something, -payloads shows payloads"
	switch {
	case p.operate && p.payloads:
		return may | leaseweb.Operate | leaseweb.Payloads, "to operate, with payloads"
	case p.operate:
		return may | leaseweb.Operate, "to operate; -payloads shows payloads"
	case p.payloads:
		return may | leaseweb.Payloads, "to look at, with payloads; -operate lets you change something"
	}
	return may, words
}

// serve shows the pages until ctx ends.
func (p *web) serve(ctx context.Context, e *env, on target) error {
	may, words := p.access()
	pages := leaseweb.New(on.Operator, leaseweb.WithTarget(on.where), leaseweb.WithAccess(func(*http.Request) leaseweb.Access { return may }),
		leaseweb.WithActor(p.actor), leaseweb.WithLogger(slog.New(slog.NewTextHandler(e.Stderr, nil))))
	if _, err := on.Status(ctx); err != nil { // what is wrong with the server is said here, not on a page
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.listen)
	if err != nil {
		return fmt.Errorf("listen: %w; -listen names another address", err)
	}
	server := &http.Server{Handler: p.guard(pages), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 3 * time.Minute,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(slog.NewTextHandler(e.Stderr, nil), slog.LevelWarn)}
	server.RegisterOnShutdown(pages.Close)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	fmt.Fprintf(e.Stdout, "%s shows %s, %s; Ctrl-C ends it\n", address(listener.Addr()), on.where, words)
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(last); err != nil {
		return errors.Join(err, server.Close())
	}
	return nil
}

// address is where a browser on this machine finds a listener.
func address(a net.Addr) string {
	host, port, _ := net.SplitHostPort(a.String())
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host, _ = os.Hostname()
	}
	return "http://" + net.JoinHostPort(cmp.Or(host, "localhost"), port) + "/"
}

func (p *web) actor(r *http.Request) string {
	if p.password == "" {
		return ""
	}
	user, _, _ := r.BasicAuth()
	return printable(user, 60)
}

// guard asks for the password, if there is one. Without it, it answers to names of this machine only: a page of another site
// whose name leads here would else be of the same origin.
func (p *web) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		_, password, _ := r.BasicAuth()
		switch {
		case p.password != "" && !same(password, p.password):
			w.Header().Set("WWW-Authenticate", `Basic realm="leasegen", charset="UTF-8"`)
			http.Error(w, "give any name, for the log, and the password", http.StatusUnauthorized)
		case p.password == "" && !loopback(host):
			http.Error(w, "ask for it by the address that leasegen web has printed", http.StatusMisdirectedRequest)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// same compares without telling by its time how much is equal.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}
