// Package leaseweb shows consumers in a browser, and repairs what is asked for there: who owns what, what is late and why,
// parked messages and dead letters. It is an [http.Handler] for a page of your own server, below any prefix:
//
//	pages := leaseweb.New(be, leaseweb.WithAccess(func(r *http.Request) leaseweb.Access {
//		if isAdmin(r) {
//			return leaseweb.View | leaseweb.Payloads | leaseweb.Operate
//		}
//		return leaseweb.View
//	}))
//	mux.Handle("/ops/", http.StripPrefix("/ops", login(pages)))
//	server.RegisterOnShutdown(pages.Close)
//
// The command leasegen web is the same with a server around it.
//
// # Rights
//
// It has no login: put it behind yours. [WithAccess] says for each request what may be seen and done; without it pages can be
// looked at, payloads stay hidden and no action is offered or accepted. Requests that change something are refused when they come from
// another origin, see [http.CrossOriginProtection]; a proxy that changes the Host header has to serve HTTPS. Each action is logged with
// the name that [WithActor] gives, and never with a payload.
//
// # Cost
//
// While pages are open the backend is asked every two seconds, more rarely if it takes long to answer, whatever the number of
// viewers. Without viewers it is not asked at all. A page costs three calls of the operator at most. The data of the charts is kept
// in memory for fifteen minutes, and is of the time in which a page was open.
package leaseweb

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/leasegen/leasegen/runtime/operate"
)

// Access is what a request may see and do, as bits. Zero is refused altogether.
type Access uint8

const (
	// View is all pages, without payloads.
	View Access = 1 << iota
	// Payloads is the payload of a dead letter, one at a time and on request.
	Payloads
	// Operate is what changes something: replay, purge, retry, moving cursors, pausing, forgetting.
	Operate
)

func (a Access) has(want Access) bool { return a&want == want }

// Pages is the handler. All its methods may be called from many goroutines at once.
type Pages struct {
	op       operate.Operator
	opts     options
	shared   *shared
	outcomes outcomes
	served   *files
	handler  http.Handler
	ended    context.Context
	end      context.CancelFunc
}

type options struct {
	access func(*http.Request) Access
	actor  func(*http.Request) string
	redact func(kind string, payload []byte) []byte
	log    *slog.Logger
	target string
}

// Option changes Pages.
type Option func(*options)

// WithAccess decides for each request what it may see and do. Default: [View] for all.
func WithAccess(f func(*http.Request) Access) Option { return func(o *options) { o.access = f } }

// WithActor names the user of a request, for the log. Default: none is named.
func WithActor(f func(*http.Request) string) Option { return func(o *options) { o.actor = f } }

// WithRedact changes payloads before they are shown, as to hide what is personal. It gets a copy. Default: they are shown whole.
func WithRedact(f func(kind string, payload []byte) []byte) Option {
	return func(o *options) { o.redact = f }
}

// WithLogger takes the lines of actions, level info, and of what failed. Default [slog.Default].
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.log = l } }

// WithTarget is shown on every page, to tell environments apart: "production", a host and a database. Default: empty.
func WithTarget(name string) Option { return func(o *options) { o.target = name } }

// New returns the pages of an operator: a backend, or what its Capabilities offer as one.
func New(op operate.Operator, opts ...Option) *Pages {
	p := &Pages{op: op, shared: newShared(op), served: embeddedFiles(), opts: options{
		access: func(*http.Request) Access { return View },
		actor:  func(*http.Request) string { return "" },
		redact: func(_ string, payload []byte) []byte { return payload },
		log:    slog.Default(),
	}}
	for _, o := range opts {
		o(&p.opts)
	}
	p.ended, p.end = context.WithCancel(context.Background())
	p.handler = p.guarded(p.mux())
	return p
}

// ServeHTTP answers a request. The prefix that the pages are mounted below has been stripped.
func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.handler.ServeHTTP(w, r) }

// Close ends the streams that pages listen to, which http.Server.Shutdown would wait for: give it to RegisterOnShutdown.
// Other requests are answered as before.
func (p *Pages) Close() { p.end() }
