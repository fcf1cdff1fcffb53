package leaseotel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/leasegen/leasegen/runtime/lease"
)

// ownErrors are the types of leasegen's errors: they have their names however many others were seen before.
func ownErrors() map[string]bool {
	return map[string]bool{"lease_lost": true, "handover": true, "stuck": true, "panic": true, "goexit": true, "dead_letter": true, "retry_after": true}
}

// errGoexit is the error of a call that ended its goroutine: it returned none.
var errGoexit = goexit{}

type goexit struct{}

func (goexit) Error() string     { return "runtime.Goexit was called" }
func (goexit) ErrorType() string { return "goexit" }

// failure is the attribute of how a call failed, for its span and its metrics alike; none when it did not.
func (ins *instruments) failure(ctx context.Context, err error, panicked any) (none attribute.KeyValue) {
	switch {
	case panicked != nil:
		return semconv.ErrorTypeKey.String("panic")
	case err != nil:
		return ins.errorType(ctx, err)
	}
	return none
}

// errorType is the attribute of err's type, or of what ended ctx where err says that it has ended: that says more.
func (ins *instruments) errorType(ctx context.Context, err error) (named attribute.KeyValue) {
	defer func() {
		if recover() != nil { // of err's methods: they are the application's
			named = semconv.ErrorTypeOther
		}
	}()
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) {
		err = cause
	}
	return semconv.ErrorTypeKey.String(ins.errors.label(typeOf(err)))
}

// typeOf names what ended a lease or a call, or else the type of err.
func typeOf(err error) string {
	switch {
	case errors.Is(err, lease.ErrLost):
		return "lease_lost"
	case errors.Is(err, lease.ErrHandover):
		return "handover"
	case errors.Is(err, lease.ErrStuck):
		return "stuck"
	}
	return semconv.ErrorType(err).Value.AsString()
}
