package leaseotel

import (
	"sync"
	"unicode/utf8"

	"github.com/leasegen/leasegen/runtime/leaseotel/internal/metrics"
)

const (
	// kindKey is the attribute of a message's kind.
	kindKey = metrics.Kind
	// mostKinds is how many kinds have a name of their own: programs that may write to the log may make up more.
	mostKinds = 200
	// otherKind stands for all others.
	otherKind = "_OTHER"
	// longestKind is the longest that has a name of its own, in bytes: streams that others write to may have any.
	longestKind = 256
)

// kinds are the kinds that were seen first. Its zero value has none.
type kinds struct {
	mu   sync.RWMutex
	seen map[string]bool
}

// label is what kind is called in names of spans and in attributes. It is text: exporters refuse all that comes with what is not.
func (k *kinds) label(kind string) string {
	if len(kind) > longestKind || !utf8.ValidString(kind) {
		return otherKind
	}
	k.mu.RLock()
	known, full := k.seen[kind], len(k.seen) == mostKinds
	k.mu.RUnlock()
	switch {
	case known:
		return kind
	case full:
		return otherKind
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.seen) == mostKinds && !k.seen[kind] {
		return otherKind
	}
	if k.seen == nil {
		k.seen = map[string]bool{}
	}
	k.seen[kind] = true
	return kind
}
