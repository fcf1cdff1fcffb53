package resolve

import (
	"fmt"
	"go/types"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/ir"
)

// once gives a handler the field that names its item.
func (h *handlers) once(m *types.Func, sig signature, out *ir.Handler) {
	if sig.form == ir.Batch || sig.form == ir.BatchTx {
		h.refuse(m, "LG0315", "//leasegen:once needs handlers that take one message", "take lease.Message[X] instead of the slice",
			"have "+have(m.Signature(), h.pkg))
		return
	}
	report := func(problem, hint string) {
		pos, end := h.consumer.Once.Span("key")
		h.failed = true
		h.add(diag.Diagnostic{Code: "LG0311", Pos: pos, End: end, Hint: hint,
			Message: fmt.Sprintf("key: %s (%s.%s)", problem, h.typ.Name(), m.Name()),
			Related: []diag.Related{{Pos: h.place(m), Message: m.Name() + " at"}}})
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
