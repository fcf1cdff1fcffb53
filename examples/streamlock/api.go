package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// api is the service whose streams are processed. It has no notion of leases; it hands
// out a stream's next event to each caller, and refuses an epoch that is older than one
// it has seen of that stream.
type api struct {
	mu      sync.Mutex
	streams map[string]*stream
	refused []string
	begin   chan struct{} // closed when events are handed out
}

type stream struct {
	events    int // in all
	processed int
	epoch     int64  // the newest seen
	owner     string // the replica that has it
	owners    int    // so far
	twice     int    // events processed again, or out of order, under an epoch that was accepted
}

// open starts the service with streams of so many events and returns its URL. It serves
// until the program ends, longer than the replicas work.
func (a *api) open(events []int) (string, error) {
	a.streams, a.begin = map[string]*stream{}, make(chan struct{})
	for i, n := range events {
		a.streams[fmt.Sprintf("stream-%02d", i+1)] = &stream{events: n}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /streams/pending", a.pending)
	mux.HandleFunc("GET /streams/{id}/next", a.next)
	mux.HandleFunc("POST /streams/{id}/processed", a.processed)
	go http.Serve(l, mux)
	return "http://" + l.Addr().String(), nil
}

func (a *api) pending(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	names := []string{}
	for name, s := range a.streams {
		if s.processed < s.events {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	json.NewEncoder(w).Encode(names)
}

// from finds the stream that a request is about, and notes who comes. A former owner is
// refused as soon as a newer one has been there, be it only to ask for an event: had that
// not counted, both could have one and the same.
func (a *api) from(w http.ResponseWriter, r *http.Request) *stream {
	name, replica := r.PathValue("id"), r.FormValue("replica")
	s := a.streams[name]
	epoch, err := strconv.ParseInt(r.FormValue("epoch"), 10, 64)
	switch {
	case s == nil:
		http.NotFound(w, r)
	case err != nil:
		http.Error(w, "epoch: "+err.Error(), http.StatusBadRequest)
	case epoch < s.epoch:
		a.refused = append(a.refused, fmt.Sprintf("refused: %s, %s %s with epoch %d (now %d)", replica, r.Method, r.URL.Path, epoch, s.epoch))
		http.Error(w, "a newer owner has been here", http.StatusConflict)
	default:
		if epoch > s.epoch {
			s.epoch, s.owner = epoch, replica
			s.owners++
		}
		return s
	}
	return nil
}

func (a *api) begun() bool {
	select {
	case <-a.begin:
		return true
	default:
		return false
	}
}

func (a *api) next(w http.ResponseWriter, r *http.Request) {
	select {
	case <-a.begin:
	case <-time.After(50 * time.Millisecond):
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch s := a.from(w, r); {
	case s == nil:
	case !a.begun():
		json.NewEncoder(w).Encode(0) // none yet
	case s.processed == s.events:
		w.WriteHeader(http.StatusNoContent)
	default:
		json.NewEncoder(w).Encode(s.processed + 1)
	}
}

func (a *api) processed(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.FormValue("n"))
	if err != nil {
		http.Error(w, "n: "+err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch s := a.from(w, r); {
	case s == nil:
	case n != s.processed+1:
		s.twice++
	default:
		s.processed = n
	}
}

// sum is the state of all streams.
type sum struct {
	events, processed, twice int
	moved                    int // streams that had more than one owner
}

func (a *api) sum() (t sum) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.streams {
		t.events += s.events
		t.processed += s.processed
		t.twice += s.twice
		if s.owners > 1 {
			t.moved++
		}
	}
	return t
}

// of returns the streams that the replica is the latest to work on and that are not done.
func (a *api) of(replica string) (names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, s := range a.streams {
		if s.processed < s.events && s.owner == replica {
			names = append(names, name)
		}
	}
	return names
}

// left returns how many of the streams another replica has worked on since.
func (a *api) left(streams []string, replica string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range streams {
		if a.streams[name].owner != replica {
			n++
		}
	}
	return n
}

func (a *api) late() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.refused)
}

// lateOf are the calls of a replica that were refused.
func (a *api) lateOf(replica string) []string {
	return slices.DeleteFunc(a.late(), func(call string) bool { return !strings.HasPrefix(call, "refused: "+replica+",") })
}

// client is how a replica reaches the API.
type client struct{ url string }

func (c *client) pending(ctx context.Context) (names []string, err error) {
	_, err = c.call(ctx, "GET", "/streams/pending", nil, &names)
	return names, err
}

func (c *client) next(ctx context.Context, stream string, args url.Values) (n int, more bool, err error) {
	more, err = c.call(ctx, "GET", "/streams/"+stream+"/next", args, &n)
	return n, more, err
}

func (c *client) processed(ctx context.Context, stream string, args url.Values, n int) error {
	args = maps.Clone(args)
	args.Set("n", strconv.Itoa(n))
	_, err := c.call(ctx, "POST", "/streams/"+stream+"/processed", args, nil)
	return err
}

// call reports whether there was an answer, and decodes it into v.
func (c *client) call(ctx context.Context, method, path string, args url.Values, v any) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path+"?"+args.Encode(), nil)
	if err != nil {
		return false, err
	}
	resp, err := (&http.Client{Timeout: 5 * time.Second}).Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return false, fmt.Errorf("%s %s: %s", method, path, resp.Status)
	}
	if resp.StatusCode == http.StatusNoContent || v == nil {
		return false, nil
	}
	return true, json.NewDecoder(resp.Body).Decode(v)
}
