package leaseweb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// Bounds of what a request may bring, and of how long its answer may take.
const (
	maxQuery   = 16 << 10
	maxForm    = 3 << 20 // a hundred ids as long as fields may be, each byte written as five
	maxField   = 4 << 10
	lookWithin = 5 * time.Second
	askAnew    = 15 * time.Second // before an action: what it would do now
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
	posted bool
	asOf   time.Time // of the oldest answer that the page is made of
	old    error     // why there is none that is newer
}

// see returns an answer that viewers share. After one that is old no other is waited for.
func see[T any](r *request, c *cell[T]) (T, error) {
	k, err := c.last(r.old)
	if r.old == nil {
		k, err = c.get(r.Context(), pace)
	}
	if err == nil && (r.asOf.IsZero() || k.at.Before(r.asOf)) {
		r.asOf = k.at
	}
	r.old = cmp.Or(r.old, k.old)
	return k.value, err
}

// ask returns an answer of the operator: a shared one to look at, a fresh one before an action. The key that tells it from others, and
// question holds no request.
func ask[T any](r *request, what string, of any, question func(context.Context) (T, error)) (T, error) {
	if r.posted {
		ctx, cancel := context.WithTimeout(r.Context(), askAnew)
		defer cancel()
		return question(ctx)
	}
	return see(r, listOf(r.pages.shared, what, of, question))
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
	r.Request, r.posted = hr.WithContext(ctx), post
	if err := r.parse(); err != nil {
		p.fail(w, hr, err)
		return
	}
	if post {
		goes, err := rt.post(r)
		page, isPage := errors.AsType[shown](err)
		switch {
		case isPage:
			p.render(w, r, page.status, page.view)
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

// selection is the field of a form that has others, as a query: browsers change line ends in fields.
const selection = "of"

// parse reads the fields of the query, or of the body of a POST, which alone counts then.
func (r *request) parse() (err error) {
	if r.form, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		return problem{http.StatusBadRequest, "The address cannot be read."}
	}
	if r.posted {
		if err := r.ParseForm(); err != nil {
			if _, large := errors.AsType[*http.MaxBytesError](err); large {
				return problem{http.StatusRequestEntityTooLarge, "The form is too large: select fewer at once."}
			}
			return problem{http.StatusBadRequest, "The form cannot be read."}
		}
		r.form = r.PostForm
		selects, err := url.ParseQuery(r.form.Get(selection))
		if err != nil {
			return problem{http.StatusBadRequest, "The form cannot be read."}
		}
		delete(r.form, selection)
		for name, values := range selects {
			r.form[name] = append(r.form[name], values...)
		}
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

// shown is a page that answers a POST in place of doing something.
type shown struct {
	view
	status int
}

func (shown) Error() string { return "a page" }

// fail shows an error. That of a backend is logged, too.
func (p *Pages) fail(w http.ResponseWriter, r *http.Request, err error) {
	v := view{name: "problem"}
	known, isProblem := errors.AsType[problem](err)
	if invalid, is := errors.AsType[*operate.InvalidError](err); is {
		known, isProblem = problem{http.StatusBadRequest, "That cannot be: " + invalid.Error() + "."}, true
	}
	if !isProblem {
		p.opts.log.LogAttrs(r.Context(), levelWarn, "leaseweb: "+err.Error(), p.who(r, strings.TrimPrefix(r.URL.Path, "/"))...)
		known = problem{http.StatusServiceUnavailable, "The backend says: " + err.Error()}
		if _, silent := errors.AsType[unanswered](err); silent || errors.Is(err, context.DeadlineExceeded) {
			known = problem{http.StatusGatewayTimeout, "The backend does not answer: " + err.Error() + "."}
		}
		w.Header().Set("Retry-After", "5")
		v.again = r.Method == http.MethodGet
	}
	v.Title, v.Body = http.StatusText(known.status), known.text
	p.render(w, &request{Request: r, pages: p, access: p.opts.access(r), now: time.Now()}, known.status, v)
}
