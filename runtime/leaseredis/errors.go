package leaseredis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Scripts refuse with these words.
const (
	sessionLost = "LEASELOST"
	fenced      = "LEASEFENCED"
	shapeless   = "LEASESHAPE"
)

// errShape: what was stored is gone, so the server was emptied (FLUSHALL), or has an older copy.
var errShape = errors.New("leaseredis: what this process had stored is gone; was the server emptied?")

// failure translates an error of the server. All but the definite ones of package lease mean "unknown".
func failure(err error) error {
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), sessionLost):
		return backend.ErrSessionLost
	case strings.Contains(err.Error(), fenced):
		return backend.ErrFenced
	case strings.Contains(err.Error(), shapeless):
		return errShape
	}
	return err
}

// fail says what was being done when err happened. The definite errors of package lease stay what they are.
func (b *Backend) fail(doing string, err error) error {
	switch {
	case err == nil, errors.Is(err, backend.ErrSessionLost), errors.Is(err, backend.ErrFenced):
		return err
	case strings.HasPrefix(err.Error(), "leaseredis: "):
		return err
	}
	return fmt.Errorf("leaseredis: %s: %w", doing, err)
}

// moved reports that an error may mean that the cluster is not laid out as the client believes.
func moved(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	for _, prefix := range []string{"MOVED", "ASK", "CLUSTERDOWN", "READONLY", "MASTERDOWN", "TRYAGAIN", "LOADING"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	var ne net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.DeadlineExceeded) || errors.As(err, &ne)
}

// reloadEvery is how often the topology is asked for at most.
const reloadEvery = 500 * time.Millisecond

// patient bounds a request to a cluster by the client's ReadTimeout, so that it is soon made again, where
// the topology says by then: go-redis itself asks a node that hangs up to four times, for so long
// each. The outcome is unknown, as with every lost reply.
func (b *Backend) patient(ctx context.Context, rounds int) (context.Context, context.CancelFunc) {
	if c, ok := b.client.(*redis.ClusterClient); ok && c.Options().ReadTimeout > 0 {
		return context.WithTimeout(ctx, time.Duration(rounds)*c.Options().ReadTimeout)
	}
	return ctx, func() {}
}

// troubleLasts is how long after the last error the topology is asked for: who is asked first
// may not have heard of the change, or hang, and requests that wait tell nothing meanwhile.
const troubleLasts = 3 * time.Second

// look asks for the cluster's topology, again and again for a while, after an error that may come from an
// old one. go-redis by itself goes on asking the node that died until its own timer fires, after a minute.
func (b *Backend) look(err error) {
	if !moved(err) || !b.clustered() {
		return
	}
	b.troubled.Store(time.Now().UnixNano())
	if !b.reloading.TryLock() {
		return
	}
	go func() {
		defer b.reloading.Unlock()
		for wait := reloadEvery - time.Since(b.reloaded); ; wait = reloadEvery {
			time.Sleep(wait)
			b.reloaded = time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			again := b.reload(ctx, err)
			cancel()
			if errors.Is(again, redis.ErrClosed) || time.Since(time.Unix(0, b.troubled.Load())) > troubleLasts {
				return
			}
		}
	}()
}

// reload asks the cluster for its present topology, after an error that a change of it may have caused. Without a
// cluster it does nothing.
func (b *Backend) reload(ctx context.Context, cause error) error {
	c, ok := b.client.(*redis.ClusterClient)
	if !ok {
		return nil
	}
	clients := b.sessions.clients()
	_, err := within(ctx, func(ctx context.Context) (struct{}, error) {
		c.ReloadState(ctx)
		for _, own := range clients {
			own.ReloadState(ctx)
		}
		return struct{}{}, nil
	})
	if b.observer != nil {
		b.observer.Observe(operate.ObservedTopology{Cause: cause, Err: err})
	}
	if err != nil {
		return fmt.Errorf("leaseredis: ask for the cluster's topology: %w", err)
	}
	return nil
}
