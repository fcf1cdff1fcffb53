package lease

import "context"

// Lease is this process's ownership of one resource.
type Lease struct {
	Consumer string
	Resource string
	// Epoch is the fencing token: it rises with every new owner and is never reused.
	// Hand it to every system outside the backend that can refuse an older one.
	Epoch   int64
	Session string
}

type leaseKey struct{}

// FromContext returns the lease under which a handler was called.
func FromContext(ctx context.Context) (Lease, bool) {
	l, ok := ctx.Value(leaseKey{}).(Lease)
	return l, ok
}
