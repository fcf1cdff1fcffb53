package resolve

import (
	"go/types"

	"github.com/leasegen/leasegen/generator/internal/ir"
)

// row holds the payload of a handler against the row of the consumer's table.
func (h *handlers) row(m *types.Func, sig signature) (kind string, t ir.Type, ok bool) {
	want := h.consumer.SQL.Row
	if isNamed(sig.payload, want.Path, want.Name) {
		return "", want, true
	}
	h.refuse(m, "LG0305", "the payload must be the row of "+h.consumer.SQL.Name, "",
		"have "+have(m.Signature(), h.pkg), "the row is "+want.PkgName+"."+want.Name+" of "+want.Path)
	return "", t, false
}
