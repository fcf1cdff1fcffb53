package lease

import (
	"sync"
	"time"
)

// refusals remembers whose writes were refused lately. A resource that is granted and then
// refused again and again is left to others for ever longer: it would else move in a circle as
// fast as the backend answers. Its zero value is ready to use.
type refusals struct {
	mu sync.Mutex
	by map[string]*refusal // by resource; empty nearly always
}

type refusal struct {
	last  time.Time
	times int
}

// refusalKept is how long a refusal counts.
const refusalKept = 10 * time.Second

func (r *refusals) add(resource string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by == nil {
		r.by = map[string]*refusal{}
	}
	f := r.by[resource]
	if f == nil || time.Since(f.last) > refusalKept {
		f = &refusal{}
		r.by[resource] = f
	}
	f.last = time.Now()
	f.times++
}

// forget is called when a write succeeded.
func (r *refusals) forget(resource string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.by, resource)
}

// shunned returns the resources that are left to others now. The first refusal of one does not
// count: it may have a good reason, and no other process may be there.
func (r *refusals) shunned() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for resource, f := range r.by {
		switch d := time.Since(f.last); {
		case d > refusalKept:
			delete(r.by, resource)
		case f.times > 1 && d < min(50*time.Millisecond<<min(f.times, 16), refusalKept/2):
			names = append(names, resource)
		}
	}
	return names
}
