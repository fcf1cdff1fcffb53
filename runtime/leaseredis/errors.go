package leaseredis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
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
func fail(doing string, err error) error {
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
