// Operated: a small shop as those see it who run it. Three replicas, which are processes, have probes, metrics and the
// operations page; a page of buttons makes what can go wrong happen.
//
//	go -C examples/operated run .                on a PostgreSQL server of its own
//	go -C examples/operated run . -on redis      on a Redis server of its own
//	go -C examples/operated run . -on URL        on yours: postgres://… or redis://…
//
// It goes on until it is interrupted. All of it listens on 127.0.0.1 alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/leasegen/leasegen/internal/stage"
)

func main() {
	log.SetFlags(0)
	fatal := log.New(os.Stderr, "operated: ", 0) // the standard one goes where slog does
	var o options
	flag.StringVar(&o.on, "on", "postgres", "postgres or redis, for a server of its own, or the URL of one of yours")
	flag.IntVar(&o.port, "port", 8070, "port of the page of buttons; the replicas have those after it")
	flag.TextVar(&o.level, "log", slog.LevelError, "what is shown of the replicas' logs: from debug, info, warn or error on")
	name := flag.String("replica", "", "be the replica of this name, until SIGTERM")
	flag.Parse()
	ctx, stop := stage.Context(*name != "")
	defer stop()
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: o.level})).With("replica", *name))
	var err error
	if *name != "" {
		err = replica(ctx, o, *name)
	} else {
		err = play(ctx, o, os.Stdout)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fatal.Fatal(err)
	}
}

type options struct {
	on    string
	port  int
	level slog.Level
}

// names are those of the replicas.
func names() []string { return []string{"replica-1", "replica-2", "replica-3"} }

// addr is where a replica listens or, without a name, the page of buttons.
func (o options) addr(name string) string {
	return fmt.Sprintf("127.0.0.1:%d", o.port+slices.Index(names(), name)+1)
}

// play runs the shop until ctx ends.
func play(ctx context.Context, o options, out io.Writer) (err error) {
	for _, name := range append(names(), "") {
		l, err := net.Listen("tcp", o.addr(name))
		if err != nil {
			return fmt.Errorf("%w; choose other ports with -port", err)
		}
		l.Close()
	}
	db, err := launch(o.on)
	if err != nil {
		return err
	}
	defer db.close()
	if err := db.migrate(ctx); err != nil {
		return err
	}
	be, end, err := connect(ctx, db.url)
	if err != nil {
		return err
	}
	defer end()
	fleet := stage.New(db.url)
	fleet.Args = []string{"-port", fmt.Sprint(o.port), "-log", o.level.String()}
	defer func() { err = errors.Join(err, fleet.Close()) }()
	if err := fleet.Start(names()...); err != nil {
		return err
	}
	c := newControl(o, fleet, db, be)
	err = stage.Until(ctx, "the replicas are ready", func() (bool, error) {
		return !slices.ContainsFunc(c.seats(ctx), func(r seat) bool { return r.State != "ready" }), nil
	})
	if err != nil {
		return err
	}
	fmt.Fprint(out, c.guide())
	return serve(ctx, o.addr(""), c.handler())
}

// serve answers requests until ctx ends, and calls atEnd then.
func serve(ctx context.Context, addr string, h http.Handler, atEnd ...func()) error {
	s := &http.Server{Addr: addr, Handler: local(h), ReadHeaderTimeout: 5 * time.Second}
	for _, f := range atEnd {
		s.RegisterOnShutdown(f)
	}
	failed := make(chan error, 1)
	go func() { failed <- s.ListenAndServe() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if s.Shutdown(last) != nil {
		return s.Close()
	}
	return nil
}

// local refuses what a page elsewhere sends to a name of its own that leads here.
func local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if host, _, _ := net.SplitHostPort(r.Host); host != "127.0.0.1" && host != "localhost" {
			http.Error(w, "ask 127.0.0.1", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
