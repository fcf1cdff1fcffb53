package leaseweb

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	silence = 15 * time.Second // a stream says something at least so often, or proxies cut it
	stream  = 5 * time.Minute  // then the browser connects again, and its rights are looked at again
)

// events is the stream of hints that a page listens to. A hint has no content: the page fetches itself again.
func (p *Pages) events(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", "GET")
		p.fail(w, r, problem{http.StatusMethodNotAllowed, "This page takes no " + r.Method + "."})
		return
	}
	q := &request{Request: r}
	if err := q.parse(); err != nil {
		p.fail(w, r, err)
		return
	}
	c := q.field("c")
	v, ok := p.shared.follow(c, c != "" && q.form.Has("detail"))
	if !ok {
		w.Header().Set("Retry-After", "30")
		p.fail(w, r, problem{http.StatusServiceUnavailable, "Too many pages are open."})
		return
	}
	defer p.shared.leave(v)
	ctx, cancel := context.WithTimeout(r.Context(), stream)
	defer cancel()
	defer context.AfterFunc(p.ended, cancel)()

	out := http.NewResponseController(w)
	_ = out.SetWriteDeadline(time.Now().Add(stream + silence)) // where there are none, none ends it
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	if _, err := io.WriteString(w, "retry: 3000\n\n"); err != nil || out.Flush() != nil {
		return
	}
	beat := time.NewTicker(silence)
	defer beat.Stop()
	for {
		line := ": still here\n\n"
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
		case <-v.hint:
			line = fmt.Sprintf("event: changed\ndata: %q\n\n", v.consumer)
		}
		if _, err := io.WriteString(w, line); err != nil || out.Flush() != nil {
			return
		}
	}
}
