package leaseredis

import (
	"sync"

	"github.com/leasegen/leasegen/runtime/backend"
)

// holdings are the leases that the sessions of this process were granted and have not given back. Some may have been lost
// since; none that is held is missing. Only who holds something looks for work on it.
type holdings struct {
	mu sync.Mutex
	of map[string]map[string]map[string]int64 // session, consumer, resource: epoch
}

func (h *holdings) took(session, consumer string, grants []backend.Grant) {
	if len(grants) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of == nil {
		h.of = map[string]map[string]map[string]int64{}
	}
	if h.of[session] == nil {
		h.of[session] = map[string]map[string]int64{}
	}
	if h.of[session][consumer] == nil {
		h.of[session][consumer] = map[string]int64{}
	}
	for i := range grants {
		h.of[session][consumer][grants[i].Resource] = grants[i].Epoch
	}
}

func (h *holdings) gave(session, consumer string, refs []backend.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range refs {
		if held := h.of[session][consumer]; held[r.Resource] == r.Epoch { // else it was taken again in between
			delete(held, r.Resource)
		}
	}
}

// ended forgets a session.
func (h *holdings) ended(session string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.of, session)
}

// any reports whether something of a consumer is held.
func (h *holdings) any(consumer string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.of {
		if len(s[consumer]) > 0 {
			return true
		}
	}
	return false
}

func (h *holdings) has(consumer, resource string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.of {
		if _, ok := s[consumer][resource]; ok {
			return true
		}
	}
	return false
}
