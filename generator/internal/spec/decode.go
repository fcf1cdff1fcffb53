package spec

import (
	"fmt"
	"go/token"
	"reflect"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/directive"
)

// Decode turns d into the struct of its name: *Consumer, *Event, *Lease, *Retry, *DLQ,
// *Once, *Table, *Redis or *Defaults. Errors are added to diags. ok is false if anything was; the
// struct, when there is one, then holds what could be read.
func Decode(d directive.Directive, diags *diag.List) (v any, ok bool) {
	info, known := Lookup(d.Name)
	dec := &decoder{info: info, d: d, diags: diags, ok: !d.Incomplete, given: map[string]*directive.Arg{}}
	if !known {
		dec.report("LG0101", d.NamePos, d.NamePos+token.Pos(len(d.Name)),
			fmt.Sprintf("unknown directive %q", directive.Prefix+d.Name), diag.Suggest(d.Name, Names()))
		return nil, false
	}
	value := reflect.New(info.typ)
	dec.value = value.Elem()
	source(dec.value).Directive = d
	for _, arg := range d.Args {
		dec.arg(arg)
	}
	for _, a := range info.Args {
		if a.Required && !d.Incomplete && dec.given[a.Key] == nil {
			dec.report("LG0109", d.Pos, d.NamePos+token.Pos(len(d.Name)),
				fmt.Sprintf("%s%s needs the argument %s", directive.Prefix, d.Name, a.Key), fmt.Sprintf("write %s=%s", a.Key, sample(a)))
		}
	}
	return value.Interface(), dec.ok
}

// sample shows what a value looks like.
func sample(a ArgInfo) string {
	if a.Enum != nil {
		return strings.Join(a.Enum, "|")
	}
	return strings.ToUpper(a.Key)
}

type decoder struct {
	info  Info
	d     directive.Directive
	diags *diag.List
	value reflect.Value
	ok    bool
	// given are the arguments that were named, rightly or not.
	given map[string]*directive.Arg
}

func (dec *decoder) report(code string, from, to token.Pos, message, hint string, related ...diag.Related) {
	dec.ok = false
	dec.diags.Add(diag.Diagnostic{
		Code: code, Message: message, Hint: hint, Related: related,
		Pos: dec.d.Position(from), End: dec.d.Position(to),
	})
}

func (dec *decoder) arg(arg directive.Arg) {
	keyEnd := arg.KeyPos + token.Pos(len(arg.Key))
	a, known := dec.info.arg(arg.Key)
	if !known {
		message := fmt.Sprintf("unknown argument %q for %s%s", arg.Key, directive.Prefix, dec.info.Name)
		dec.report("LG0104", arg.KeyPos, min(keyEnd, arg.End), message, dec.info.suggest(arg.Key))
		return
	}
	if first := dec.given[arg.Key]; first != nil {
		dec.report("LG0107", arg.KeyPos, keyEnd, fmt.Sprintf("argument %q is given twice", arg.Key), "keep one",
			diag.Related{Pos: dec.d.Position(first.KeyPos), Message: "first at"})
		return
	}
	dec.given[arg.Key] = &arg
	if arg.Flag {
		dec.report("LG0102", arg.KeyPos, keyEnd, fmt.Sprintf("argument %q has no value", arg.Key), fmt.Sprintf("write %s=%s", arg.Key, sample(a)))
		return
	}
	v, bad := a.parse(arg.Value)
	if bad != nil {
		dec.report(bad.code, arg.ValuePos, arg.End, a.Key+": "+bad.message, bad.hint)
		return
	}
	field := dec.value.FieldByIndex(a.index)
	field.Set(v.Convert(field.Type()))

	// In defaults the field belongs to a directive within; both know where it was set.
	key := a.Key
	if len(a.index) > 1 {
		inner := dec.value.Field(a.index[0])
		_, short, _ := strings.Cut(key, "_")
		source(inner).Directive = dec.d
		source(inner).put(short, origin{dec.d, arg})
	}
	source(dec.value).put(key, origin{dec.d, arg})
}

// source returns the Source embedded in a directive's struct.
func source(v reflect.Value) *Source {
	return v.FieldByName("Source").Addr().Interface().(*Source)
}

func (s *Source) put(key string, o origin) {
	if s.set == nil {
		s.set = map[string]origin{}
	}
	s.set[key] = o
}
