package resolve

import (
	"cmp"
	"fmt"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/ir"
)

// consumer resolves an annotated handler struct.
func (r *resolver) consumer(s *Source, c *Consumer) {
	named := r.declared(s, c.Type, c.Consumer.Source,
		"a consumer is a plain struct", "declare a struct that embeds the instance you need")
	if named == nil {
		return
	}
	obj := named.Obj()
	out := ir.Consumer{
		Type: typeOf(obj), Name: c.Name, Constructor: c.constructor(),
		Per: map[string]ir.Per{"topic": ir.PerTopic, "group": ir.PerGroup, "partition": ir.PerPartition,
			"stream": ir.PerStream, "cluster": ir.PerCluster}[c.Consumer.Per],
		Topics: c.Consumer.Patterns(), Settings: c.Settings(), Table: c.SQL,
	}
	if out.Per == 0 || c.Unsourced { // reported where the directive was decoded
		return
	}
	h := handlers{resolver: r, pkg: obj.Pkg(), consumer: c, typ: obj, per: out.Per, runs: c.Consumer.Runs(), byKind: map[string]*types.Func{}}
	for _, m := range r.methods(named) {
		h.method(m)
	}
	h.nearMisses()
	h.ambiguous(named)
	h.elsewhere(s, named)
	h.reportOnce()
	if len(h.found) == 0 && !h.failed {
		h.none()
	}
	h.source()
	out.Handlers, out.Streams = h.found, h.streams != nil
	if c.Redis != nil {
		out.Redis = h.redis(&out)
	}
	if out.Parallel() && out.Tx() {
		r.add(c.Consumer.Finding("LG0310", "workers",
			fmt.Sprintf("workers=%d does not go with transaction handlers of %s", c.Consumer.Workers, obj.Name()),
			"one cursor moves in one transaction: remove workers, or take no pgx.Tx"))
	}
	r.postgres[c] = out.Postgres() && c.Redis == nil // both is a finding already
	f := r.file(s)
	f.Consumers = append(f.Consumers, out)
}

// methods are the methods of *T, promoted ones included: first those of its own package
// in source order, then the others by name.
func (r *resolver) methods(t *types.Named) []*types.Func {
	var out []*types.Func
	for m := range types.NewMethodSet(types.NewPointer(t)).Methods() {
		out = append(out, m.Obj().(*types.Func))
	}
	slices.SortStableFunc(out, func(a, b *types.Func) int {
		ownA, ownB := a.Pkg() == t.Obj().Pkg(), b.Pkg() == t.Obj().Pkg()
		switch {
		case ownA && ownB:
			pa, pb := r.position(a.Pos()), r.position(b.Pos())
			return cmp.Or(cmp.Compare(pa.Filename, pb.Filename), cmp.Compare(pa.Offset, pb.Offset))
		case ownA:
			return -1
		case ownB:
			return 1
		}
		return cmp.Compare(a.Name(), b.Name())
	})
	return out
}

// handlers collects the handlers of one consumer.
type handlers struct {
	*resolver
	pkg      *types.Package
	consumer *Consumer
	typ      *types.TypeName
	per      ir.Per
	runs     bool        // it has a Run method instead of messages
	streams  *types.Func // the method that names the streams
	byKind   map[string]*types.Func
	found    []ir.Handler
	payloads []types.Type // that handlers take
	near     []near
	failed   bool // a method that was meant as a handler is none
	itemless []itemless
}

// isHandlerName reports whether a method's name makes it a handler: Handle and a word.
func isHandlerName(name string) bool {
	rest, ok := strings.CutPrefix(name, "Handle")
	r, _ := utf8.DecodeRuneInString(rest)
	return ok && (rest == "" || unicode.IsUpper(r) || unicode.IsDigit(r) || r == '_')
}

func (h *handlers) method(m *types.Func) {
	sig := classify(m.Signature())
	switch {
	case m.Name() == "Run" && h.runs:
		h.run(m, sig)
	case h.embedded(m) && (m.Name() == "Run" && sig.form == ir.Run || isHandlerName(m.Name()) && h.runs):
		// The type that it embeds is a consumer of another kind.
	case m.Name() == "Run" && sig.form == ir.Run:
		hint := "write a Handle method, or per=cluster"
		if h.per == ir.PerStream {
			hint = "write a Handle method, or a method Streams instead of input"
		}
		h.refuse(m, "LG0309", "Run needs per=cluster, or per=stream without input; this consumer has messages to handle", hint)
	case isHandlerName(m.Name()) && sig.problem != "" && !h.meant(m):
		h.notMeant(m)
	case isHandlerName(m.Name()) && h.per == ir.PerStream && h.runs:
		h.refuse(m, "LG0309", "per=stream without input has no messages to handle",
			"rename the method, or write input=PATTERN: the keys of the messages are the streams")
	case isHandlerName(m.Name()) && h.runs:
		h.refuse(m, "LG0309", "per=cluster has no messages to handle", "rename the method, or write per=topic or per=group")
	case m.Name() == streamsMethod && h.per == ir.PerStream:
		h.announce(m)
	case isHandlerName(m.Name()):
		h.handle(m, sig)
	case sig.problem == "" && h.runs == (sig.form == ir.Run) && (m.Pkg() == h.pkg || m.Exported()):
		h.near = append(h.near, near{m, sig})
	}
}

// run takes the one handler of a consumer without messages.
func (h *handlers) run(m *types.Func, sig signature) {
	if sig.form != ir.Run {
		h.refuse(m, "LG0302", "the signature is not that of Run", "", "have "+have(m.Signature(), h.pkg), acceptedRun)
		return
	}
	h.found = append(h.found, ir.Handler{Method: m.Name(), Form: ir.Run})
}

// handle takes a Handle method.
func (h *handlers) handle(m *types.Func, sig signature) {
	if sig.form == ir.Run {
		sig.problem = "lease.Lease is what Run takes; a handler finds it with lease.FromContext"
	}
	if sig.problem != "" {
		x, ours := h.guess(m)
		hint := ""
		if !ours {
			hint = "rename the method if it is not meant as a handler"
		}
		detail := append([]string{"have " + have(m.Signature(), h.pkg)}, accepted(x)...)
		h.refuse(m, "LG0302", sig.problem, hint, detail...)
		return
	}
	h.payloads = append(h.payloads, sig.payload)
	kind, payload, ok := h.payload(m, sig)
	if !ok {
		return
	}
	if first := h.byKind[kind]; first != nil {
		what := "messages of kind " + kind
		if kind == "" {
			what = "all other messages"
		}
		h.failed = true
		h.add(diag.Diagnostic{Code: "LG0308", Pos: h.place(m), End: h.placeEnd(m),
			Message: fmt.Sprintf("%s.%s: %s have a handler already", h.typ.Name(), m.Name(), what), Hint: "keep one",
			Related: []diag.Related{{Pos: h.place(first), Message: first.Name() + " at"}}})
		return
	}
	h.byKind[kind] = m
	out := ir.Handler{Method: m.Name(), Form: sig.form, Kind: kind, Payload: payload}
	if h.per == ir.PerStream {
		h.keyed(m, sig)
	}
	if h.consumer.Once.Given() {
		h.once(m, sig, &out)
	}
	if tx := sig.form == ir.OneTx || sig.form == ir.BatchTx; tx && h.consumer.Redis != nil {
		h.refuse(m, "LG0316", "Redis has no transaction that a handler could join", "take no pgx.Tx, or remove //leasegen:redis",
			"have "+have(m.Signature(), h.pkg))
	}
	h.found = append(h.found, out)
}

// payload says which event a handler takes.
func (h *handlers) payload(m *types.Func, sig signature) (kind string, t ir.Type, ok bool) {
	if h.consumer.SQL != nil {
		return h.row(m, sig)
	}
	if t, ok := catchAll(sig.payload); ok {
		return "", t, true
	}
	const mustBe = "the payload must be an event"
	refuse := func(code, problem string, detail ...string) (string, ir.Type, bool) {
		h.refuse(m, code, problem, "", append([]string{"have " + have(m.Signature(), h.pkg)}, detail...)...)
		return "", ir.Type{}, false
	}
	text := types.TypeString(sig.payload, relativeTo(h.pkg))
	named, isNamedType := sig.payload.(*types.Named)
	if !isNamedType {
		why := "an event is a struct with //leasegen:event"
		if p, ok := sig.payload.(*types.Pointer); ok {
			why = "an event is passed by value: " + types.TypeString(p.Elem(), relativeTo(h.pkg))
		}
		return refuse("LG0305", mustBe, why+"; json.RawMessage or []byte take what has no handler of its own")
	}
	obj := named.Obj()
	switch _, isStruct := named.Underlying().(*types.Struct); {
	case !isStruct:
		return refuse("LG0305", mustBe, text+" is not a struct"+h.candidate(obj.Name(), "; %s is an event"))
	case named.TypeArgs().Len() > 0:
		return refuse("LG0307", "the payload must not be generic", "declare a struct with //leasegen:event that embeds "+text)
	case !obj.Exported() && obj.Pkg() != h.pkg:
		return refuse("LG0305", "the payload is not exported by its package", "generated code cannot name "+text+"; export the type")
	case !importable(obj.Pkg().Path(), h.pkg.Path()):
		return refuse("LG0305", "the payload is in an internal package of others",
			"generated code cannot import "+obj.Pkg().Path()+"; declare a type of this package, with //leasegen:event, that embeds "+text)
	}
	e := h.eventOf(obj)
	switch {
	case e == nil && h.doubtful[typeKey(obj)]:
		h.failed = true // reported at the type
		return "", t, false
	case e == nil:
		return refuse("LG0305", mustBe, text+" has no //leasegen:event"+h.candidate(obj.Name(), "; %s has one"))
	case h.ownEvent(obj):
		return e.kind, typeOf(obj), true // what is wrong with it is reported there
	}
	if _, path, why := undecodable(named); why != "" {
		if why == unknownType {
			h.diags.Add(h.prog.Upstream(h.pkg.Path())...)
		}
		return refuse("LG0306", fmt.Sprintf("%s.%s cannot travel as JSON: %s", text, path, why))
	}
	if l := lossOf(named); l != nil {
		return refuse("LG0306", fmt.Sprintf("%s.%s does not come through JSON: %s", text, l.path, l.why))
	}
	return e.kind, typeOf(obj), true
}

// importable reports whether the go command lets a package import another one: an internal one belongs to the folder above it.
func importable(imported, by string) bool {
	i := strings.LastIndex("/"+imported+"/", "/internal/")
	if i < 0 {
		return true
	}
	above := imported[:max(i-1, 0)]
	return by == above || strings.HasPrefix(by, above+"/")
}

// candidate puts the event that was probably meant into a phrase.
func (h *handlers) candidate(name, phrase string) string {
	var best *known
	for _, key := range sortedKeys(h.events) {
		e := h.events[key]
		if e == nil || e.typ.Pkg() != h.pkg {
			continue
		}
		if best == nil || similar(name, e.typ.Name()) > similar(name, best.typ.Name()) {
			best = e
		}
	}
	if best == nil {
		return ""
	}
	return fmt.Sprintf(phrase, fmt.Sprintf("%s (%s:%d)", best.typ.Name(), filepath.Base(best.pos.Filename), best.pos.Line))
}

// similar counts the first bytes that two names share.
func similar(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// guess is the payload that a method with a wrong signature was probably meant to take:
// that of its message, an event, or the event it is named after. ours reports whether it has one of these.
func (h *handlers) guess(m *types.Func) (x string, ours bool) {
	for p := range m.Signature().Params().Variables() {
		t := messagePayload(p.Type())
		if named, ok := pointee(p.Type()).(*types.Named); ok && named.Obj().Pkg() != nil && h.events[typeKey(named.Obj())] != nil {
			t = named // the event itself, without its message
		}
		if t != nil {
			return types.TypeString(t, relativeTo(h.pkg)), true
		}
	}
	name := strings.TrimPrefix(m.Name(), "Handle")
	for _, key := range sortedKeys(h.events) {
		if e := h.events[key]; e != nil && e.typ.Name() == name {
			return types.TypeString(e.typ.Type(), relativeTo(h.pkg)), false
		}
	}
	return "X", false
}

// embedded reports whether a method is that of a struct which the consumer embeds.
func (h *handlers) embedded(m *types.Func) bool {
	named, ok := pointee(m.Signature().Recv().Type()).(*types.Named)
	return !ok || named.Obj() != h.typ
}

// meant reports whether a method with another signature than a handler's was still meant as
// one: it takes messages, and is the module's own.
func (h *handlers) meant(m *types.Func) bool {
	return takesMessages(m.Signature()) && (m.Pkg() == h.pkg || h.ownModule(h.position(m.Pos()).Filename))
}

// notMeant passes over a method that is only named like a handler: HandleHealth(w, r), or what
// a struct of another package brings along when it is embedded. It warns where that may be a slip.
func (h *handlers) notMeant(m *types.Func) {
	if h.runs || m.Pkg() != h.pkg && !takesMessages(m.Signature()) {
		return
	}
	x, event := h.guess(m)
	in, out := m.Signature().Params(), m.Signature().Results()
	contextFirst := in.Len() > 0 && isNamed(types.Unalias(in.At(0).Type()), "context", "Context") && out.Len() == 1 && isError(out.At(0).Type())
	if !event && !contextFirst {
		return
	}
	h.add(diag.Diagnostic{Code: "LG0304", Warning: true, Pos: h.place(m), End: h.placeEnd(m),
		Message: fmt.Sprintf("%s.%s has the name of a handler, but not the signature, and is not called", h.typ.Name(), m.Name()),
		Hint:    "change the signature, or rename the method", Detail: append([]string{"have " + have(m.Signature(), h.pkg)}, accepted(x)...)})
}

// near is a method that is a handler but for its name.
type near struct {
	method *types.Func
	sig    signature
}

// nearMisses warns of methods that are handlers but for their names. A method with a name of its
// own is a helper where another one takes the same messages.
func (h *handlers) nearMisses() {
	for _, n := range h.near {
		name, hint := n.method.Name(), ""
		switch {
		case h.runs && strings.EqualFold(name, "run"):
			hint = "the handler is called Run"
		case !h.runs && (likeHandle(name) || !slices.ContainsFunc(h.payloads, func(t types.Type) bool { return types.Identical(t, n.sig.payload) })):
			hint = "a handler's name is Handle and a word, as in HandleOrderPlaced"
		default:
			continue
		}
		h.add(diag.Diagnostic{Code: "LG0304", Warning: true, Pos: h.place(n.method), End: h.placeEnd(n.method), Hint: hint,
			Message: fmt.Sprintf("%s.%s has the signature of a handler, but not the name, and is not called", h.typ.Name(), name)})
	}
}

// likeHandle reports whether a name begins with Handle but for its case or a slip.
func likeHandle(name string) bool {
	for n := range len("Handle") + 2 { // a slip may lose a letter or add one
		if n >= len("Handle")-1 && n <= len(name) {
			if _, like := diag.Closest(name[:n], []string{"Handle"}); like {
				return true
			}
		}
	}
	return false
}

// ambiguous reports handlers that several embedded structs promote: Go then promotes
// none of them, without a word.
func (h *handlers) ambiguous(t *types.Named) {
	promoted := map[string]bool{}
	embeddedMethods(t, promoted, map[types.Type]bool{})
	for _, name := range sortedKeys(promoted) {
		obj, index, _ := types.LookupFieldOrMethod(t, true, h.pkg, name)
		handler := isHandlerName(name) && promoted[name]
		if obj == nil && index != nil && (handler || h.runs && (name == "Run" || name == streamsMethod && h.per == ir.PerStream)) {
			h.failed = true
			h.at(h.consumer.Type.Name, diag.Diagnostic{Code: "LG0312",
				Message: fmt.Sprintf("%s.%s is ambiguous: several embedded structs have it, so Go promotes none", h.typ.Name(), name),
				Hint:    "declare " + name + " on " + h.typ.Name()})
		}
	}
}

// embeddedMethods collects the names of the methods of all that t embeds, and whether one of
// a name takes messages.
func embeddedMethods(t types.Type, names map[string]bool, seen map[types.Type]bool) {
	st, ok := t.Underlying().(*types.Struct)
	if !ok || seen[t] {
		return
	}
	seen[t] = true
	for f := range st.Fields() {
		if !f.Embedded() {
			continue
		}
		e := pointee(f.Type())
		all := types.NewMethodSet(types.NewPointer(e))
		if types.IsInterface(e) {
			all = types.NewMethodSet(e)
		}
		for m := range all.Methods() {
			fn := m.Obj().(*types.Func)
			names[fn.Name()] = names[fn.Name()] || takesMessages(fn.Signature())
		}
		embeddedMethods(e, names, seen)
	}
}

// none reports a consumer without handlers.
func (h *handlers) none() {
	d := diag.Diagnostic{Code: "LG0303", Message: h.typ.Name() + " has no handler",
		Detail: accepted("X"), Hint: "write a method whose name begins with Handle"}
	if h.runs {
		d.Detail, d.Hint = []string{acceptedRun}, "write a method named Run"
		if h.per == ir.PerStream {
			d.Hint += ", or input=PATTERN and a method whose name begins with Handle"
		}
	}
	h.at(h.consumer.Type.Name, d)
}

// refuse reports a method that was meant as a handler.
func (h *handlers) refuse(m *types.Func, code, problem, hint string, detail ...string) {
	h.failed = true
	h.add(diag.Diagnostic{Code: code, Pos: h.place(m), End: h.placeEnd(m), Hint: hint, Detail: detail,
		Message: fmt.Sprintf("%s.%s: %s", h.typ.Name(), m.Name(), problem)})
}
