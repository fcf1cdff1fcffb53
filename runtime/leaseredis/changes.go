package leaseredis

import "sync"

// changes counts the changes of ownership that registering has told of. A feed may not have looked since: a server that
// tells it of fewer has lost registrations. All feeds of a backend share it.
type changes struct {
	mu sync.Mutex
	of map[int]changed // by tag
}

// changed is what is known of one tag.
type changed struct {
	count  int64 // changes, at least
	losses int   // how often the server was found to have lost some
}

// seen notes that there were n changes.
func (c *changes) seen(tag int, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.of[tag]
	x.count = max(x.count, n)
	c.of[tag] = x
}

func (c *changes) known(tag int) changed {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of[tag]
}

// lost notes that the server has n changes in place of those that were known, unless it told of more in between.
func (c *changes) lost(tag int, known, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.of[tag]
	if x.count <= known {
		x.count = n
	}
	x.losses++
	c.of[tag] = x
}
