package resolve

import (
	"fmt"
	"go/types"
	"path/filepath"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

// streamsMethod is the method of a consumer with per=stream that names its streams.
const (
	streamsMethod   = "Streams"
	acceptedStreams = "want func(context.Context) ([]string, error)"
)

// announce takes the method Streams.
func (h *handlers) announce(m *types.Func) {
	fits := namesStreams(m.Signature())
	switch {
	case h.runs && fits:
		h.streams = m
	case h.runs:
		h.refuse(m, "LG0302", "the signature is not that of Streams", "", "have "+have(m.Signature(), h.pkg), acceptedStreams)
	case fits:
		h.refuse(m, "LG0313", "the streams are the keys of input's messages, so Streams would never be asked",
			"rename the method, or remove input and the Handle methods")
	}
}

// namesStreams reports whether a signature is that of Streams.
func namesStreams(sig *types.Signature) bool {
	in, out := sig.Params(), sig.Results()
	if sig.Variadic() || in.Len() != 1 || out.Len() != 2 {
		return false
	}
	list, ok := types.Unalias(out.At(0).Type()).(*types.Slice)
	return ok && isNamed(types.Unalias(in.At(0).Type()), "context", "Context") &&
		types.Identical(list.Elem(), types.Typ[types.String]) && isError(out.At(1).Type())
}

// source reports a consumer without a source of stream names.
func (h *handlers) source() {
	if len(h.found) == 0 || !h.runs || h.failed || h.consumer.Consumer.Per != "stream" || h.streams != nil {
		return
	}
	h.at(h.consumer.Type.Name, diag.Diagnostic{Code: "LG0313",
		Message: h.typ.Name() + " has no method Streams, which names the streams that Run is called for",
		Detail:  []string{acceptedStreams},
		Hint:    "write the method, or input=PATTERN and Handle methods"})
}

// keyed reports an event of this module that cannot tell which stream it belongs to.
func (h *handlers) keyed(m *types.Func, sig signature) {
	named, ok := sig.payload.(*types.Named)
	if !ok {
		return
	}
	e := h.events[typeKey(named.Obj())]
	if e == nil || e.keyed || !h.ownModule(e.pos.Filename) {
		return
	}
	h.add(diag.Diagnostic{Code: "LG0314", Pos: h.place(m), End: h.placeEnd(m),
		Message: fmt.Sprintf("%s.%s: event %s has no key, and with per=stream the key is the stream", h.typ.Name(), m.Name(), e.kind),
		Hint:    "write key=FIELD at //leasegen:event",
		Related: []diag.Related{{Pos: e.pos, Message: "declared at"}}})
}

// ownModule reports whether a file is one that the module's people can change.
func (r *resolver) ownModule(file string) bool {
	rel := r.prog.Module.Rel(file)
	return filepath.IsLocal(rel) && !strings.HasPrefix(rel, "vendor/")
}
