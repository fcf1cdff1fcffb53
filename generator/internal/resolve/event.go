package resolve

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/load"
	"github.com/leasegen/leasegen/generator/internal/scan"
	"github.com/leasegen/leasegen/generator/internal/spec"
)

// known is an event that handlers may take.
type known struct {
	typ   *types.TypeName
	kind  string
	keyed bool
	pos   token.Position
}

// event resolves an annotated payload struct.
func (r *resolver) event(s *Source, e *Event) {
	named := r.declared(s, e.Type, e.Spec.Source, "an event is a plain struct", "declare a struct for each event")
	if named == nil {
		return
	}
	obj := named.Obj()
	r.events[typeKey(obj)] = &known{obj, e.Kind, e.Spec.Has("key"), r.position(e.Type.Name.Pos())}
	f, path, why := undecodable(named)
	switch why {
	case "":
		if l := lossOf(named); l != nil {
			r.named(l.v.Pos(), l.v.Name(), diag.Diagnostic{Code: "LG0306",
				Message: fmt.Sprintf("%s.%s does not come through JSON: %s", obj.Name(), l.path, l.why), Hint: l.hint})
		}
	case unknownType:
		r.named(f.Pos(), f.Name(), diag.Diagnostic{Code: "LG0702", Message: fmt.Sprintf("%s.%s: %s", obj.Name(), path, why)})
		r.diags.Add(r.prog.Upstream(s.Pkg.Path)...)
	default:
		r.named(f.Pos(), f.Name(), diag.Diagnostic{Code: "LG0306",
			Message: fmt.Sprintf("%s.%s cannot travel as JSON: %s", obj.Name(), path, why),
			Hint:    `change its type, give the type an UnmarshalJSON method, or leave the field out with json:"-"`})
	}
	out := ir.Event{Type: typeOf(obj), Kind: e.Kind, Publish: e.publish()}
	field := func(key, path string) (f ir.Field) {
		if path == "" || why == unknownType {
			return f
		}
		f, problem, hint := fieldAt(named, path)
		if problem != "" {
			r.add(e.Spec.Finding("LG0311", key, key+": "+problem, hint))
		}
		return f
	}
	out.Key, out.ID = field("key", e.Spec.Key), field("id", e.Spec.ID)
	file := r.file(s)
	file.Events = append(file.Events, out)
}

// declared finds the type of an annotated struct. One that is generic, or declared as another type which is no
// struct, is reported; rule and hint say what it should be.
func (r *resolver) declared(s *Source, t *ast.TypeSpec, from spec.Source, rule, hint string) *types.Named {
	pkg := r.prog.Types(s.Pkg.Path)
	if pkg == nil {
		return nil
	}
	obj, _ := pkg.Scope().Lookup(t.Name.Name).(*types.TypeName)
	if obj == nil {
		return nil
	}
	named, ok := obj.Type().(*types.Named)
	if !ok || named.TypeParams().Len() > 0 {
		r.at(t.Name, diag.Diagnostic{Code: "LG0307", Message: obj.Name() + " is generic; " + rule, Hint: hint})
		return nil
	}
	switch u := named.Underlying().(type) {
	case *types.Struct:
		return named
	case *types.Basic:
		if u.Kind() == types.Invalid { // whatever it is declared as has been reported
			return nil
		}
	}
	r.add(from.Finding("LG0201", "", fmt.Sprintf("//leasegen:%s stands on type %s, which is no struct", from.Directive.Name, obj.Name()),
		"put it into the doc comment of a struct type", diag.Related{Pos: r.position(t.Name.Pos()), Message: obj.Name() + " at"}))
	return nil
}

// fieldAt finds the field of an event that a path names, and how it becomes a string.
func fieldAt(t *types.Named, text string) (f ir.Field, problem, hint string) {
	const throughValues = "name a field that is reached through values only"
	path := strings.Split(text, ".")
	var current types.Type = t
	for i, name := range path {
		where := t.Obj().Name()
		if i > 0 {
			where += "." + strings.Join(path[:i], ".")
		}
		st, ok := current.Underlying().(*types.Struct)
		if !ok {
			if _, pointer := current.Underlying().(*types.Pointer); pointer {
				return f, fmt.Sprintf("%s is a pointer, which may be nil", where), throughValues
			}
			return f, fmt.Sprintf("%s is not a struct and has no field %s", where, name), ""
		}
		obj, _, indirect := types.LookupFieldOrMethod(current, true, t.Obj().Pkg(), name)
		field, ok := obj.(*types.Var)
		if !ok {
			return f, fmt.Sprintf("%s has no field %s", where, name), diag.Suggest(name, fieldNames(st))
		}
		if indirect {
			return f, fmt.Sprintf("%s.%s is reached through an embedded pointer, which may be nil", where, name), throughValues
		}
		current = field.Type()
	}
	if f.Kind, f.Addr = fieldKind(current); f.Kind == 0 {
		return f, fmt.Sprintf("%s.%s is of type %s", t.Obj().Name(), text, types.TypeString(current, types.RelativeTo(t.Obj().Pkg()))),
			"name a field that is a string or an integer, or whose type has the method MarshalText or String"
	}
	f.Path = path
	return f, "", ""
}

// fieldKind says how a field becomes a string, 0 if it does not, and whether by a method with
// a pointer receiver. Strings and integers are what they are, whatever methods they have.
func fieldKind(t types.Type) (kind ir.FieldKind, addr bool) {
	t = types.Unalias(t)
	basic, ok := t.Underlying().(*types.Basic)
	_, isNamed := t.(*types.Named)
	if ok && basic.Kind() != types.Uintptr {
		switch info := basic.Info(); {
		case info&types.IsString != 0 && isNamed:
			return ir.FieldNamed, false
		case info&types.IsString != 0:
			return ir.FieldString, false
		case info&types.IsUnsigned != 0:
			return ir.FieldUnsigned, false
		case info&types.IsInteger != 0:
			return ir.FieldSigned, false
		}
	}
	if ofTime(t, "MarshalText") { // its text depends on the zone: one moment has many
		if _, pointer := t.(*types.Pointer); pointer || !ofTime(t, "UTC") {
			return 0, false
		}
		return ir.FieldTime, false
	}
	for _, m := range []struct {
		name    string
		kind    ir.FieldKind
		results []types.Type
	}{
		{"MarshalText", ir.FieldText, []types.Type{types.NewSlice(types.Typ[types.Byte]), types.Universe.Lookup("error").Type()}},
		{"String", ir.FieldStringer, []types.Type{types.Typ[types.String]}},
	} {
		obj, _, _ := types.LookupFieldOrMethod(t, true, nil, m.name)
		f, ok := obj.(*types.Func)
		if !ok || !returns(f.Signature(), m.results) {
			continue
		}
		byValue := types.NewMethodSet(t).Lookup(nil, m.name) != nil
		return m.kind, !byValue
	}
	return 0, false
}

// ofTime reports whether a method of t is that of time.Time.
func ofTime(t types.Type, name string) bool {
	obj, _, _ := types.LookupFieldOrMethod(t, true, nil, name)
	f, ok := obj.(*types.Func)
	return ok && f.Signature().Recv() != nil && isNamed(types.Unalias(f.Signature().Recv().Type()), "time", "Time")
}

// returns reports whether a method has no parameters and returns these types.
func returns(s *types.Signature, results []types.Type) bool {
	return s.Params().Len() == 0 && slices.EqualFunc(slices.Collect(s.Results().Variables()), results,
		func(v *types.Var, t types.Type) bool { return types.Identical(v.Type(), t) })
}

func fieldNames(s *types.Struct) []string {
	var out []string
	for f := range s.Fields() {
		if f.Exported() {
			out = append(out, f.Name())
		}
	}
	return out
}

// undecodable finds the first field of an event that encoding/json cannot decode.
func undecodable(t *types.Named) (field *types.Var, path, why string) {
	st, ok := t.Underlying().(*types.Struct)
	if !ok || unmarshals(t) {
		return nil, "", ""
	}
	return undecodableIn(st, "", map[types.Type]bool{t: true})
}

func undecodableIn(st *types.Struct, prefix string, seen map[types.Type]bool) (field *types.Var, path, why string) {
	for i := range st.NumFields() {
		f := st.Field(i)
		if skipped(f, st.Tag(i)) {
			continue
		}
		if path, why := undecodableType(f.Type(), prefix+f.Name(), seen); why != "" {
			return f, path, why
		}
	}
	return nil, "", ""
}

// skipped reports whether encoding/json passes over a field.
func skipped(f *types.Var, tag string) bool {
	// The exported fields of an embedded struct count.
	return reflect.StructTag(tag).Get("json") == "-" || !f.Exported() && (!f.Embedded() || structOf(f.Type()) == nil)
}

// unknownType is why a field whose declaration does not type-check cannot be decoded.
const unknownType = "its type is not known, because of errors in the package that declares it"

func undecodableType(t types.Type, path string, seen map[types.Type]bool) (string, string) {
	t = types.Unalias(t)
	if seen[t] {
		return "", ""
	}
	if _, ok := t.(*types.Named); ok {
		seen[t] = true
		if unmarshals(t) {
			return "", ""
		}
	}
	switch u := t.Underlying().(type) {
	case *types.Basic:
		if u.Kind() == types.Invalid {
			return path, unknownType
		}
		if u.Info()&types.IsComplex != 0 {
			return path, "JSON has no complex numbers"
		}
		if u.Kind() == types.UnsafePointer {
			return path, "JSON has no pointers"
		}
	case *types.Chan:
		return path, "JSON has no channels"
	case *types.Signature:
		return path, "JSON has no functions"
	case *types.Interface:
		if u.NumMethods() > 0 {
			return path, fmt.Sprintf("JSON cannot tell which type to put into interface %s", types.TypeString(t, packageName))
		}
	case *types.Pointer:
		return undecodableType(u.Elem(), path, seen)
	case *types.Slice:
		return undecodableType(u.Elem(), path+"[]", seen)
	case *types.Array:
		return undecodableType(u.Elem(), path+"[]", seen)
	case *types.Map:
		key, ok := u.Key().Underlying().(*types.Basic)
		if (!ok || key.Info()&(types.IsString|types.IsInteger) == 0) && !textual(u.Key()) {
			return path, "the keys of a JSON object are strings, not " + types.TypeString(u.Key(), packageName)
		}
		return undecodableType(u.Elem(), path+"[]", seen)
	case *types.Struct:
		_, path, why := undecodableIn(u, path+".", seen)
		return path, why
	}
	return "", ""
}

// unmarshals reports whether a type decodes itself.
func unmarshals(t types.Type) bool {
	if _, isInterface := t.Underlying().(*types.Interface); isInterface {
		return false
	}
	set := types.NewMethodSet(types.NewPointer(t))
	return slices.ContainsFunc([]string{"UnmarshalJSON", "UnmarshalJSONFrom", "UnmarshalText"}, func(name string) bool {
		return set.Lookup(nil, name) != nil
	})
}

// textual reports whether a type can be the key of a JSON object by methods of its own.
func textual(t types.Type) bool {
	set := types.NewMethodSet(types.NewPointer(t))
	return types.NewMethodSet(t).Lookup(nil, "MarshalText") != nil && set.Lookup(nil, "UnmarshalText") != nil
}

// eventOf returns the event a type is, looking into the source of packages that are
// not part of this run.
func (r *resolver) eventOf(obj *types.TypeName) *known {
	key := typeKey(obj)
	if e, ok := r.events[key]; ok {
		return e
	}
	e := r.foreignEvent(obj)
	r.events[key] = e
	if e != nil {
		r.foreign = append(r.foreign, e)
	}
	return e
}

// foreignEvent reads the directive of a type in another package's source.
func (r *resolver) foreignEvent(obj *types.TypeName) *known {
	pos := r.position(obj.Pos())
	src, err := os.ReadFile(pos.Filename)
	if err != nil || !scan.HasDirective(src) {
		return nil
	}
	// Errors over there are reported where leasegen runs for that package.
	var elsewhere diag.List
	p := &pkgParser{fset: r.prog.Module.Fset, pkg: &load.Package{}, diags: &elsewhere}
	s := p.source(parseFile(p.fset, load.File{Path: pos.Filename, Src: src}, &elsewhere))
	if s == nil {
		return nil
	}
	for _, e := range s.Events {
		if e.Type.Name.Name == obj.Name() {
			return &known{obj, e.Kind, e.Spec.Has("key"), pos}
		}
	}
	return nil
}

func typeKey(obj *types.TypeName) string { return obj.Pkg().Path() + "." + obj.Name() }

func typeOf(obj *types.TypeName) ir.Type {
	return ir.Type{Path: obj.Pkg().Path(), PkgName: obj.Pkg().Name(), Name: obj.Name()}
}
