package resolve

import (
	"cmp"
	"fmt"
	"go/types"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// jsonField is a field of a struct as encoding/json sees it.
type jsonField struct {
	name     string // in the JSON object
	untagged int    // 1 if no tag gives the name
	index    []int  // as that of reflect.StructField, for promoted fields
	v        *types.Var
}

// jsonFields are the fields of a struct that encoding/json writes and reads, by its own rules: of
// several fields with one name the least nested one counts, of several of these the one with a tag.
// Where that does not decide, encoding/json drops all of them. clashes are all fields of a name that
// several have.
func jsonFields(st *types.Struct) (kept []jsonField, clashes []nameClash) {
	type level struct {
		st    *types.Struct
		index []int
	}
	var all []jsonField
	next := []level{{st: st}}
	visited := map[*types.Struct]bool{}
	var count, nextCount map[*types.Struct]int
	for len(next) > 0 {
		current := next
		next, count, nextCount = nil, nextCount, map[*types.Struct]int{}
		for _, l := range current {
			if visited[l.st] {
				continue
			}
			visited[l.st] = true
			for i := range l.st.NumFields() {
				f := l.st.Field(i)
				if skipped(f, l.st.Tag(i)) {
					continue
				}
				inner := structOf(f.Type())
				name, _, _ := strings.Cut(reflect.StructTag(l.st.Tag(i)).Get("json"), ",")
				untagged := 0
				if !validTag(name) {
					name, untagged = "", 1
				}
				index := append(slices.Clone(l.index), i)
				if name == "" && f.Embedded() && inner != nil {
					if nextCount[inner]++; nextCount[inner] == 1 {
						next = append(next, level{inner, index})
					}
					continue
				}
				x := jsonField{cmp.Or(name, f.Name()), untagged, index, f}
				all = append(all, x)
				if count[l.st] > 1 { // embedded twice at this depth: the copies drop one another
					all = append(all, x)
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b jsonField) int {
		return cmp.Or(strings.Compare(a.name, b.name), cmp.Compare(len(a.index), len(b.index)), cmp.Compare(a.untagged, b.untagged))
	})
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].name == all[0].name {
			n++
		}
		same := 1
		for same < n && len(all[same].index) == len(all[0].index) && all[same].untagged == all[0].untagged {
			same++
		}
		if same == 1 {
			kept = append(kept, all[0])
		}
		if n > 1 {
			clashes = append(clashes, nameClash{all[:n], same == 1})
		}
		all = all[n:]
	}
	return kept, clashes
}

// nameClash is fields of one name, the one that counts first, if decided.
type nameClash struct {
	fields  []jsonField
	decided bool
}

// structOf is the struct that a type is, or points to.
func structOf(t types.Type) *types.Struct {
	st, _ := pointee(t).Underlying().(*types.Struct)
	return st
}

// pointee is the type that t points to, or t itself if it is no pointer.
func pointee(t types.Type) types.Type {
	t = types.Unalias(t)
	if p, ok := t.(*types.Pointer); ok {
		return types.Unalias(p.Elem())
	}
	return t
}

// validTag reports whether encoding/json takes a name from a tag.
func validTag(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
}

// loss is a field that does not come back from JSON as it went in, though it can be decoded.
type loss struct {
	v               *types.Var
	path, why, hint string
}

// lossOf finds what of an event JSON loses, or nil.
func lossOf(t *types.Named) *loss {
	st, ok := t.Underlying().(*types.Struct)
	if !ok {
		return nil
	}
	return lossIn(t, st, "", map[types.Type]bool{})
}

// lossIn looks at a struct, and at the types of its fields. t is the type that declares it.
func lossIn(t types.Type, st *types.Struct, path string, seen map[types.Type]bool) *loss {
	if seen[t] {
		return nil
	}
	seen[t] = true
	at := func(name string) string { return strings.TrimPrefix(path+"."+name, ".") }
	if l, custom := promotedCodec(t, st, at); l != nil || custom {
		return l
	}
	kept, clashes := jsonFields(st)
	for _, c := range clashes {
		a := c.fields[0]
		for _, b := range c.fields[1:] {
			// A field that Go's selectors do not reach either is hidden on purpose.
			obj, _, _ := types.LookupFieldOrMethod(t, true, b.v.Pkg(), b.v.Name())
			switch {
			case a.v.Name() == b.v.Name() && !c.decided:
				return &loss{st.Field(a.index[0]), at(a.v.Name()), fmt.Sprintf("two embedded structs have a field of its name, %q, so that encoding/json drops both", a.name),
					"embed one of them, or declare the field in the struct itself"}
			case c.decided && obj == b.v:
				return &loss{st.Field(b.index[0]), at(b.v.Name()), fmt.Sprintf("its name there, %q, is that of %s too, so that encoding/json drops it", b.name, a.v.Name()),
					"give one of the two another name in its json tag"}
			case !c.decided:
				return &loss{st.Field(b.index[0]), at(b.v.Name()), fmt.Sprintf("its name there, %q, is that of %s too, so that encoding/json drops both", b.name, a.v.Name()),
					"give one of the two another name in its json tag"}
			}
		}
	}
	for _, f := range kept {
		if v := unsettable(st, f.index); v != nil {
			return &loss{st.Field(f.index[0]), at(v.Name()), "encoding/json cannot set an embedded pointer to a struct that is not exported",
				"embed the struct itself, or export its type"}
		}
		if l := lossInType(f.v.Type(), at(f.v.Name()), seen); l != nil {
			l.v = st.Field(f.index[0]) // shown at the field of the event
			return l
		}
	}
	return nil
}

// lossInType looks at what a field's type is made of.
func lossInType(t types.Type, path string, seen map[types.Type]bool) *loss {
	t = types.Unalias(t)
	switch u := t.Underlying().(type) {
	case *types.Pointer:
		return lossInType(u.Elem(), path, seen)
	case *types.Slice:
		return lossInType(u.Elem(), path+"[]", seen)
	case *types.Array:
		return lossInType(u.Elem(), path+"[]", seen)
	case *types.Map:
		if unmarshals(t) {
			return nil
		}
		return lossInType(u.Elem(), path+"[]", seen)
	case *types.Struct:
		return lossIn(t, u, path, seen)
	}
	return nil
}

// unsettable finds the embedded pointer on the way to a field that encoding/json cannot set.
func unsettable(st *types.Struct, index []int) *types.Var {
	for n, i := range index {
		f := st.Field(i)
		_, pointer := types.Unalias(f.Type()).(*types.Pointer)
		if pointer && f.Embedded() && !f.Exported() {
			return f
		}
		if n < len(index)-1 {
			st = structOf(f.Type())
		}
	}
	return nil
}

// codecs are the methods by which a type writes or reads itself, those that count first.
var codecs = [][]string{{"MarshalJSONTo", "MarshalJSON", "MarshalText"}, {"UnmarshalJSONFrom", "UnmarshalJSON", "UnmarshalText"}}

// promotedCodec finds an embedded field whose way of writing itself becomes that of the whole struct.
// custom says that the type writes itself, so that its fields do not matter.
func promotedCodec(t types.Type, st *types.Struct, at func(string) string) (l *loss, custom bool) {
	for _, names := range codecs {
		for _, name := range names {
			obj, index, _ := types.LookupFieldOrMethod(t, true, nil, name)
			m, ok := obj.(*types.Func)
			if !ok {
				continue
			}
			custom = true
			if len(index) == 1 {
				break
			}
			f := st.Field(index[0])
			why := fmt.Sprintf("its method %s is promoted, and encoding/json calls it for all of the struct", name)
			if _, isInterface := m.Signature().Recv().Type().Underlying().(*types.Interface); isInterface {
				return &loss{f, at(f.Name()), why, "name the field instead of embedding it"}, true
			}
			var lost []string
			kept, _ := jsonFields(st)
			for _, k := range kept {
				if k.index[0] != index[0] {
					lost = append(lost, k.v.Name())
				}
			}
			if len(lost) > 0 {
				slices.Sort(lost)
				return &loss{f, at(f.Name()), why + ": " + strings.Join(lost, ", ") + " would be lost",
					fmt.Sprintf("name the field (At %s), or write methods of the struct's own", types.TypeString(f.Type(), packageName))}, true
			}
			break
		}
	}
	return nil, custom
}

// dropped says why the field at a path of names does not travel as JSON, if it does not.
func dropped(t *types.Named, path []string) string {
	var current types.Type = t
	for _, name := range path {
		obj, index, _ := types.LookupFieldOrMethod(current, true, t.Obj().Pkg(), name)
		field, ok := obj.(*types.Var)
		if !ok {
			return ""
		}
		for typ := current; len(index) > 0; {
			st := structOf(typ)
			if _, custom := promotedCodec(typ, st, func(s string) string { return s }); custom {
				break // its methods decide
			}
			kept, _ := jsonFields(st)
			i := slices.IndexFunc(kept, func(k jsonField) bool {
				return len(k.index) <= len(index) && slices.Equal(k.index, index[:len(k.index)])
			})
			if i < 0 {
				return fmt.Sprintf("JSON leaves %s out, so that it is empty in every message", name)
			}
			typ, index = kept[i].v.Type(), index[len(kept[i].index):]
		}
		current = field.Type()
	}
	return ""
}
