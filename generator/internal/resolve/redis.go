package resolve

import (
	"fmt"
	"slices"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/ir"
)

// redis makes out the streams of a consumer. Others who write to a stream with one kind of
// entry have no reason to name it: a single method takes every entry, unless a field is named.
func (h *handlers) redis(out *ir.Consumer) *ir.Redis {
	c := h.consumer
	if len(out.Handlers) == 1 && !c.Redis.Has("kind") {
		out.Handlers[0].Kind = ""
		out.Settings = slices.DeleteFunc(out.Settings, func(s ir.Setting) bool { return s.Field == "Unknown" || s.Field == "UnknownWait" })
		for _, key := range []string{"unknown", "unknown_wait"} {
			if !c.Consumer.Own(key) {
				continue
			}
			h.add(c.Consumer.Finding("LG0505", key,
				fmt.Sprintf("%s.%s takes every entry, so %s has no effect", h.typ.Name(), out.Handlers[0].Method, key),
				"remove it, or write kind=FIELD at //leasegen:redis"))
		}
	}
	return &ir.Redis{Streams: c.Redis.Streams, Kind: c.Redis.Kind, Key: c.Redis.Key, Payload: c.Redis.Payload}
}

// oneBackend refuses a package whose consumers need both PostgreSQL and Redis: RegisterLeasegen
// takes one backend for all.
func (r *resolver) oneBackend(sources []*Source) {
	first := map[string]*Consumer{} // that needs PostgreSQL, by package
	for c, s := range Consumers(sources) {
		if r.postgres[c] {
			firstOf(first, s.Pkg.Path, c)
		}
	}
	for c, s := range Consumers(sources) {
		if f := first[s.Pkg.Path]; c.Redis != nil && f != nil && f != c {
			r.at(c.Type.Name, diag.Diagnostic{Code: "LG0317",
				Message: fmt.Sprintf("%s needs Redis, but %s of the same package needs PostgreSQL", c.Type.Name.Name, f.Type.Name.Name),
				Hint:    "declare one of the two in a package of its own: RegisterLeasegen takes one backend for all",
				Related: []diag.Related{{Pos: r.position(f.Type.Name.Pos()), Message: f.Type.Name.Name + " at"}}})
		}
	}
}
