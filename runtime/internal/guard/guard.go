// Package guard holds middleware to one call of what it is around.
package guard

import "sync"

// Call is a call that middleware makes: once, and before the middleware has returned. Its zero value is ready for use. Its
// methods may be called by many goroutines at once.
type Call struct {
	mu           sync.Mutex
	begun, ended bool
	waited       chan struct{} // closed when the call has ended; nil when that is not waited for
}

// Begin reports whether the call may be made: once, and not after Over. End is its counterpart.
func (c *Call) Begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := !c.begun
	c.begun = true
	return first
}

// End notes that the call has returned.
func (c *Call) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended = true; c.waited != nil {
		close(c.waited)
	}
}

// Over is called when the middleware has returned: it allows no call from now on, and waits for one under way in another
// goroutine.
func (c *Call) Over() {
	c.mu.Lock()
	if c.begun && !c.ended {
		c.waited = make(chan struct{})
	}
	c.begun = true
	c.mu.Unlock()
	if c.waited != nil {
		<-c.waited
	}
}
