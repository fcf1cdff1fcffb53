package leaseweb

import (
	"crypto/rand"
	"slices"
	"sync"
	"time"
)

const (
	mostOutcomes = 1000
	outcomeKept  = 5 * time.Minute
)

// outcomes are what actions of this process have done, until the page after each has said it: an address alone makes no claim.
type outcomes struct {
	mu  sync.Mutex
	all []done // the oldest first
}

type done struct {
	id, text string
	at       time.Time
}

// add returns the id of an outcome.
func (o *outcomes) add(text string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := 0
	for first < len(o.all) && (time.Since(o.all[first].at) > outcomeKept || len(o.all)-first >= mostOutcomes) {
		first++
	}
	d := done{rand.Text(), text, time.Now()}
	o.all = append(o.all[first:], d)
	return d.id
}

// take returns an outcome once.
func (o *outcomes) take(id string) (text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, d := range o.all {
		if d.id == id && time.Since(d.at) <= outcomeKept {
			o.all = slices.Delete(o.all, i, i+1)
			return d.text
		}
	}
	return ""
}
