package lease

import (
	"context"
	"regexp"
	"strings"

	"github.com/leasegen/leasegen/runtime/backend"
)

// The headers in which messages carry trace context, as W3C Trace Context names them.
const (
	traceParent = "traceparent"
	traceState  = "tracestate"
)

type traceKey struct{}

type trace struct{ parent, state string }

// ContextWithTrace returns a context whose publications carry this trace context, as the
// headers traceparent and tracestate of W3C Trace Context. A traceparent that is not valid
// is dropped, and its tracestate with it; so is a tracestate that is not valid, alone.
func ContextWithTrace(ctx context.Context, traceparent, tracestate string) context.Context {
	if !validTraceParent(traceparent) {
		return ctx
	}
	if !validTraceState(tracestate) {
		tracestate = ""
	}
	return context.WithValue(ctx, traceKey{}, trace{traceparent, tracestate})
}

// TraceFromContext returns the trace context that ctx carries; empty strings when there is
// none. The context of a handler that takes one message carries that message's; a handler
// of many finds each message's in its Headers.
func TraceFromContext(ctx context.Context) (traceparent, tracestate string) {
	t, _ := ctx.Value(traceKey{}).(trace)
	return t.parent, t.state
}

// withTraceOf is ctx with the trace context of a message.
func withTraceOf(ctx context.Context, m *backend.Raw) context.Context {
	if p := m.Headers[traceParent]; p != "" {
		return ContextWithTrace(ctx, p, m.Headers[traceState])
	}
	return ctx
}

// traceHeaders are the headers that ctx gives its publications; nil when there are none.
func traceHeaders(ctx context.Context) map[string]string {
	parent, state := TraceFromContext(ctx)
	switch {
	case parent == "":
		return nil
	case state == "":
		return map[string]string{traceParent: parent}
	}
	return map[string]string{traceParent: parent, traceState: state}
}

var traceMemberForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]$`)

// validTraceParent is asked for each message, so it is no regular expression:
// version-trace-parent-flags in lower-case hex digits, which newer versions may go on from after a dash.
func validTraceParent(s string) bool {
	const version0 = len("00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
	if len(s) < version0 || len(s) > 256 || s[2] != '-' || s[35] != '-' || s[52] != '-' || len(s) > version0 && s[version0] != '-' {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case i >= version0:
			if c < ' ' || c > '~' {
				return false
			}
		case i == 2 || i == 35 || i == 52:
		case (c < '0' || c > '9') && (c < 'a' || c > 'f'):
			return false
		}
	}
	return !strings.HasPrefix(s, "ff") && (!strings.HasPrefix(s, "00") || len(s) == version0) &&
		strings.Trim(s[3:35], "0") != "" && strings.Trim(s[36:52], "0") != ""
}

func validTraceState(s string) bool {
	if s == "" || len(s) > 512 {
		return s == ""
	}
	members := strings.Split(s, ",")
	for _, m := range members {
		if m = strings.Trim(m, " \t"); m != "" && !traceMemberForm.MatchString(m) {
			return false
		}
	}
	return len(members) <= 32
}
