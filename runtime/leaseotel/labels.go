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
	// mostErrors is how many types of errors have one: an error may make up its type.
	mostErrors = 50
	// other stands for all others.
	other = "_OTHER"
	// longest is the longest that has a name of its own, in bytes: streams that others write to may have any kind.
	longest = 256
)

// labels are the names that were seen first, most of them at most.
type labels struct {
	most int

	mu   sync.RWMutex
	seen map[string]bool
}

// label is what name is called in names of spans and in attributes. It is text: exporters refuse all that comes with what is not.
func (l *labels) label(name string) string {
	if name == other || len(name) > longest || !utf8.ValidString(name) {
		return other
	}
	l.mu.RLock()
	known, full := l.seen[name], len(l.seen) == l.most
	l.mu.RUnlock()
	switch {
	case known:
		return name
	case full:
		return other
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.seen) == l.most && !l.seen[name] {
		return other
	}
	if l.seen == nil {
		l.seen = map[string]bool{}
	}
	l.seen[name] = true
	return name
}
