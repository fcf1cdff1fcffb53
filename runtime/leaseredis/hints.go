package leaseredis

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// hints listens for what scripts publish.
type hints struct {
	d         *shards
	sh        *shape
	hinted    []atomic.Bool // by tag
	wake      chan struct{}
	connected atomic.Bool
	ignores   func(what string) bool // a hint that does not concern this process now

	mu     sync.Mutex
	sub    *redis.PubSub
	closed bool
}

const (
	hintPing  = 3 * time.Second // of silence, until the connection is asked for life
	hintPause = 200 * time.Millisecond
	hintMost  = 5 * time.Second
)

func (h *hints) signal() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

func (h *hints) all() {
	for tag := range h.hinted {
		h.hinted[tag].Store(true)
	}
	h.signal()
}

func (h *hints) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.sub != nil {
		h.sub.Close()
	}
}

// listen keeps a subscription until ctx ends. While there is none, the feed looks often.
func (h *hints) listen(ctx context.Context) {
	tags := make(map[string]int, h.sh.tags)
	channels := make([]string, h.sh.tags)
	for tag := range channels {
		channels[tag] = h.d.prefix(tag) + "news"
		tags[channels[tag]] = tag
	}
	for failures := 0; ctx.Err() == nil; failures++ {
		began := time.Now()
		err := h.follow(ctx, channels, tags)
		h.connected.Store(false)
		h.signal()
		if ctx.Err() != nil {
			return
		}
		h.d.reloadAfter(err)
		if time.Since(began) > 2*hintMost {
			failures = 0
		}
		if failures > 2 {
			h.d.warn("hints", "the subscription that wakes this process fails; it looks for news twice a second instead", "error", err)
		}
		pause(ctx, min(hintPause<<min(failures, 6), hintMost))
	}
}

// follow subscribes and passes hints on until that fails.
func (h *hints) follow(ctx context.Context, channels []string, tags map[string]int) error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return context.Canceled
	}
	sub := h.d.client.Subscribe(ctx)
	h.sub = sub
	h.mu.Unlock()
	defer sub.Close()
	if err := sub.Subscribe(ctx, channels...); err != nil {
		return err
	}
	confirmed, asked := 0, false
	for {
		m, err := sub.ReceiveTimeout(ctx, hintPing)
		if isTimeout(err) && !asked {
			if asked, err = true, sub.Ping(ctx); err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		asked = false
		switch m := m.(type) {
		case *redis.Subscription:
			if confirmed++; confirmed == len(channels) {
				h.connected.Store(true)
				h.all() // what was published before was not heard
			}
		case *redis.Message:
			if m.Payload == "s" {
				h.d.above.sessionsChanged()
			}
			if tag, ok := tags[m.Channel]; ok && !h.ignores(m.Payload) {
				h.hinted[tag].Store(true)
				h.signal()
			}
		}
	}
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
