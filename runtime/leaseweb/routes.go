package leaseweb

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"
)

// Bounds of what a request may bring, and of how long its answer may take.
const (
	maxQuery   = 16 << 10
	maxForm    = 128 << 10
	maxField   = 4 << 10
	lookWithin = 15 * time.Second
	actWithin  = 2 * time.Minute
)

// policy lets a page load its own style, script and icon only.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'"

// route is a path and what is there. POST needs Operate, whatever GET needs.
type route struct {
	path  string
	needs Access
	get   func(*request) (view, error)
	post  func(*request) (goes string, err error) // nil: it has no POST
}

func (p *Pages) routes() []route {
	all := []route{
		{path: "", needs: View, get: overview},
		{path: "consumer", needs: View, get: consumerPage},
		{path: "dead", needs: View, get: deadPage},
		{path: "letter", needs: View, get: letterPage},
		{path: "parked", needs: View, get: parkedPage},
		{path: "cursors", needs: View, get: cursorsPage},
	}
	for _, a := range p.actions() {
		all = append(all, route{path: a.name, needs: View | Operate, get: a.ask, post: a.perform})
	}
	return all
}

func (p *Pages) mux() http.Handler {
	mux := http.NewServeMux()
	for _, rt := range p.routes() {
		pattern := "/" + rt.path
		if rt.path == "" {
			pattern = "/{$}"
		}
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { p.route(w, r, rt) })
	}
	mux.HandleFunc("/events", p.events)
	for name := range p.served.assets {
		mux.HandleFunc("/"+name, func(w http.ResponseWriter, r *http.Request) { p.served.serve(w, r, name) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		p.fail(w, r, problem{http.StatusNotFound, "There is no such page."})
	})
	return mux
}

// guarded sets what every answer has, and refuses what no page asks for.
func (p *Pages) guarded(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.fail(w, r, problem{http.StatusForbidden, "The request came from a page of another origin."})
	}))
	inner := protection.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case len(r.URL.RawQuery) > maxQuery:
			p.fail(w, r, problem{http.StatusRequestURITooLong, "The address is too long: select fewer at once."})
		case r.URL.Path == "": // below a prefix without its slash: relative links would miss it
			h.Set("Location", "./"+url.PathEscape(path.Base(requested(r)))+"/")
			w.WriteHeader(http.StatusPermanentRedirect)
		case !p.opts.access(r).has(View):
			p.fail(w, r, problem{http.StatusForbidden, "You may not look at this page."})
		default:
			r.Body = http.MaxBytesReader(w, r.Body, maxForm)
			inner.ServeHTTP(w, r)
		}
	})
}

// requested is the path as the client sent it.
func requested(r *http.Request) string {
	u, err := url.ParseRequestURI(r.RequestURI)
	if err != nil {
		return "/"
	}
	return u.Path
}

// request is one that is being answered.
type request struct {
	*http.Request
	pages  *Pages
	access Access
	form   url.Values // of the query, or of the body
	now    time.Time
}

func (r *request) field(name string) string { return r.form.Get(name) }

func (p *Pages) route(w http.ResponseWriter, hr *http.Request, rt route) {
	r := &request{pages: p, access: p.opts.access(hr), now: time.Now()}
	limit, needs := lookWithin, rt.needs
	post := hr.Method == http.MethodPost && rt.post != nil
	switch {
	case post:
		limit, needs = actWithin, rt.needs|Operate
	case hr.Method != http.MethodGet && hr.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		if rt.post != nil {
			w.Header().Set("Allow", "GET, HEAD, POST")
		}
		p.fail(w, hr, problem{http.StatusMethodNotAllowed, "This page takes no " + hr.Method + "."})
		return
	}
	if !r.access.has(needs) {
		p.opts.log.LogAttrs(hr.Context(), levelWarn, "leaseweb: refused", p.who(hr, rt.path)...)
		p.fail(w, hr, problem{http.StatusForbidden, "You may look at these pages, but not change anything."})
		return
	}
	ctx, cancel := context.WithTimeout(hr.Context(), limit)
	defer cancel()
	r.Request = hr.WithContext(ctx)
	if err := r.parse(post); err != nil {
		p.fail(w, hr, err)
		return
	}
	if post {
		goes, err := rt.post(r)
		var again askAgain
		switch {
		case errors.As(err, &again):
			p.render(w, r, http.StatusConflict, again.view)
		case err != nil:
			p.fail(w, hr, err)
		default:
			w.Header().Set("Location", goes) // relative, so that it is right below every prefix
			w.WriteHeader(http.StatusSeeOther)
		}
		return
	}
	v, err := rt.get(r)
	if err != nil {
		p.fail(w, hr, err)
		return
	}
	p.render(w, r, http.StatusOK, v)
}

// parse reads the fields of the query, or of the body of a POST, which alone counts then.
func (r *request) parse(post bool) (err error) {
	if r.form, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		return problem{http.StatusBadRequest, "The address cannot be read."}
	}
	if post {
		if err := r.ParseForm(); err != nil {
			var large *http.MaxBytesError
			if errors.As(err, &large) {
				return problem{http.StatusRequestEntityTooLarge, "The form is too large: select fewer at once."}
			}
			return problem{http.StatusBadRequest, "The form cannot be read."}
		}
		r.form = r.PostForm
	}
	for name, values := range r.form {
		for _, v := range values {
			if len(v) > maxField || strings.ContainsRune(v, 0) {
				return problem{http.StatusBadRequest, fmt.Sprintf("The field %.20q is too long, or has a zero in it.", name)}
			}
		}
	}
	return nil
}

// problem is an error that the user can do something about.
type problem struct {
	status int
	text   string
}

func (p problem) Error() string { return p.text }

// fail shows an error. That of a backend is logged, too.
func (p *Pages) fail(w http.ResponseWriter, r *http.Request, err error) {
	var known problem
	if !errors.As(err, &known) {
		p.opts.log.LogAttrs(r.Context(), levelWarn, "leaseweb: "+err.Error(), p.who(r, strings.TrimPrefix(r.URL.Path, "/"))...)
		known = problem{http.StatusBadGateway, "The backend says: " + err.Error()}
		if errors.Is(err, context.DeadlineExceeded) {
			known = problem{http.StatusGatewayTimeout, "The backend did not answer in time: " + err.Error()}
		}
	}
	v := view{name: "problem", Title: http.StatusText(known.status), Body: known.text}
	p.render(w, &request{Request: r, pages: p, access: p.opts.access(r), now: time.Now()}, known.status, v)
}
