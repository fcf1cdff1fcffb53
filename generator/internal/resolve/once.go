package resolve

import (
	"fmt"
	"go/types"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/ir"
)

// once gives a handler the field that names its item.
func (h *handlers) once(m *types.Func, sig signature, out *ir.Handler) {
	if !h.consumer.Once.Has("key") {
		h.failed = true // reported where the directive was decoded
		return
	}
	if sig.form == ir.Batch || sig.form == ir.BatchTx {
		h.refuse(m, "LG0315", "//leasegen:once needs handlers that take one message", "take lease.Message[X] instead of the slice",
			"have "+have(m.Signature(), h.pkg))
		return
	}
	report := func(problem, hint string) {
		h.failed = true
		h.itemless = append(h.itemless, itemless{m, problem, hint})
	}
	named, ok := sig.payload.(*types.Named)
	if _, isStruct := sig.payload.Underlying().(*types.Struct); !ok || !isStruct {
		report(fmt.Sprintf("%s has no fields", types.TypeString(sig.payload, relativeTo(h.pkg))), "with //leasegen:once every method takes an event")
		return
	}
	if _, _, why := undecodable(named); why == unknownType {
		return // reported at the event
	}
	f, problem, hint := fieldAt(named, h.consumer.Once.Key)
	if problem != "" {
		report(problem, hint)
		return
	}
	if why := dropped(named, f.Path); why != "" {
		report(why, "name a field that is part of the JSON")
		return
	}
	out.Once, out.OncePark = f, h.consumer.Once.OnUnknown == "park"
}

// itemless is a handler whose payload does not have the field of //leasegen:once, and why.
type itemless struct {
	method        *types.Func
	problem, hint string
}

// reportOnce reports a key that does not fit, once for all handlers.
func (h *handlers) reportOnce() {
	if len(h.itemless) == 0 {
		return
	}
	first := h.itemless[0]
	d := h.consumer.Once.Finding("LG0311", "key",
		fmt.Sprintf("key: %s (%s.%s)", first.problem, h.typ.Name(), first.method.Name()), first.hint)
	for i, x := range h.itemless {
		message := x.method.Name() + " at"
		if i > 0 {
			message = x.problem + ", " + message
		}
		d.Related = append(d.Related, diag.Related{Pos: h.place(x.method), Message: message})
	}
	h.add(d)
}
