package main

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasegen/leasegen/internal/stage"
	"github.com/leasegen/leasegen/runtime/lease"
)

// control is the page of buttons. It is for many goroutines at once.
type control struct {
	options
	fleet   *stage.Fleet
	db      *database
	to      lease.Publisher
	probe   http.Client
	page    *template.Template
	buttons []button
	busy    map[string]*sync.Mutex // of each replica, while a button changes it
}

// button makes something happen, to a replica or to the shop.
type button struct {
	Name string
	Hint string // what is to be seen, and where
	one  func(name string) error
	all  func(ctx context.Context) error
}

const pauseLasts = 5 * time.Second

func newControl(o options, fleet *stage.Fleet, db *database, to lease.Publisher) *control {
	c := &control{options: o, fleet: fleet, db: db, to: to, probe: http.Client{Timeout: 500 * time.Millisecond},
		page: template.Must(template.New("").Parse(page)), busy: map[string]*sync.Mutex{}}
	for _, name := range names() {
		c.busy[name] = new(sync.Mutex)
	}
	c.buttons = []button{
		{Name: "freeze", one: fleet.Freeze, Hint: "It stands still, as a suspended machine does, and its probes do not answer. " +
			"After its TTL of 2 s the others have what it owned: see a consumer's page of theirs, and " +
			`leasegen_lease_acquired_total{crashed="true"} of their metrics. Then thaw it.`},
		{Name: "thaw", one: fleet.Thaw, Hint: "Its late writes are refused, and it gets a share again: " +
			"leasegen_lease_lost_total of its metrics, and a consumer's page."},
		{Name: "kill", one: fleet.Kill, Hint: "SIGKILL. The others have what it owned: on PostgreSQL as soon as its connection ends, " +
			"on Redis after its TTL of 2 s. Then start it."},
		{Name: "stop", one: c.stop, Hint: "SIGTERM, as in a rolling update: it finished what it was at, with /readyz at 503 and /livez at 200, " +
			"and the others had its leases at once. Then start it."},
		{Name: "start", one: func(name string) error { return fleet.Start(name) }, Hint: "It joins, and its share of topics and " +
			"partitions moves to it: see a consumer's page."},
		{Name: "poison", all: c.pay("oslo", stolenCard), Hint: "An order in oslo with a stolen card. It is tried three times; " +
			"then it is a dead letter of billing, with the reason: see the page of billing, and replay or purge it there."},
		{Name: "slow", all: c.pay("rome", slowCard), Hint: "An order in rome whose bank takes 12 s. After 2 s the call counts as stuck: see /readyz " +
			"of its replica, and leasegen_handler_stuck_now; billing of rome is late, of the others not."},
		{Name: "pause", all: func(context.Context) error { return db.pause(pauseLasts) }, Hint: "The server answers no call for 5 s. " +
			"All /readyz turn to 503, and /livez stays at 200, so that no replica is restarted. Afterwards all go on."},
	}
	return c
}

// stop tells a replica to finish. A frozen one has to be thawed for that.
func (c *control) stop(name string) error {
	if err := c.fleet.Thaw(name); err != nil {
		return err
	}
	return c.fleet.Stop(name)
}

func (c *control) pay(shop, card string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		return place(ctx, c.to, OrderPlaced{Order: rand.Text(), Shop: shop, Customer: card, Cents: 1995, Card: card})
	}
}

// seat is a replica as the page shows it. Other pages name it by its process.
type seat struct {
	Name, URL, State string
	PID              int
}

// seats asks each replica how it is.
func (c *control) seats(ctx context.Context) []seat {
	all := names()
	seats := make([]seat, len(all))
	_ = stage.AtOnce(len(seats), func(i int) error {
		s := &seats[i]
		*s = seat{Name: all[i], URL: "http://" + c.addr(all[i]), State: "not running", PID: c.fleet.PID(all[i])}
		if s.PID == 0 {
			return nil
		}
		s.State = "no answer"
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/readyz", nil)
		if err != nil {
			return err
		}
		if answer, err := c.probe.Do(r); err == nil {
			answer.Body.Close()
			s.State = map[bool]string{true: "ready", false: "not ready"}[answer.StatusCode == http.StatusOK]
		}
		return nil
	})
	return seats
}

// guide says where to look.
func (c *control) guide() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nThree replicas of a shop on %s. Buttons for what can go wrong:\n\n  http://%s/\n\n", c.db.name, c.addr(""))
	for _, name := range names() {
		fmt.Fprintf(&b, "  %s  http://%s/leasegen/  /metrics  /readyz  /livez\n", name, c.addr(name))
	}
	if c.db.own != nil {
		fmt.Fprintf(&b, "  in a shell go run ./cmd/leasegen status -dsn '%s'\n", c.db.url)
	}
	b.WriteString("\nPress:\n\n")
	for _, button := range c.buttons {
		if slices.Contains([]string{"freeze", "poison", "pause"}, button.Name) {
			fmt.Fprintf(&b, "  %-8s %s\n", button.Name, strings.ReplaceAll(button.Hint, ". ", ".\n           "))
		}
	}
	return b.String() + "\nCtrl-C ends all of it.\n"
}

//go:embed control.html
var page string

func (c *control) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", c.show)
	mux.HandleFunc("POST /{button}", c.press)
	return http.NewCrossOriginProtection().Handler(http.MaxBytesHandler(mux, 4<<10))
}

func (c *control) find(name string) *button {
	if i := slices.IndexFunc(c.buttons, func(b button) bool { return b.Name == name }); i >= 0 {
		return &c.buttons[i]
	}
	return nil
}

func (c *control) show(w http.ResponseWriter, r *http.Request) {
	var one, all []button
	for _, b := range c.buttons {
		if b.one != nil {
			one = append(one, b)
		} else {
			all = append(all, b)
		}
	}
	var b bytes.Buffer
	err := c.page.Execute(&b, map[string]any{"Server": c.db.name, "Replicas": c.seats(r.Context()), "One": one, "All": all,
		"Pressed": c.find(r.FormValue("pressed"))})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Security-Policy", "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(b.Bytes()) // who asked may be gone
}

func (c *control) press(w http.ResponseWriter, r *http.Request) {
	b, name := c.find(r.PathValue("button")), r.PostFormValue("replica")
	if b == nil || (b.one != nil) != (c.busy[name] != nil) {
		http.NotFound(w, r)
		return
	}
	var err error
	if b.one == nil {
		err = b.all(r.Context())
	} else {
		c.busy[name].Lock()
		err = b.one(name)
		c.busy[name].Unlock()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	http.Redirect(w, r, "/?"+url.Values{"pressed": {b.Name}}.Encode(), http.StatusSeeOther)
}
