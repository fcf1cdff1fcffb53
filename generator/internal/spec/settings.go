package spec

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/leasegen/leasegen/generator/internal/ir"
)

// Settings are the fields of the runtime's Spec that the annotations set, in the order of the directives and their
// arguments. The runtime has the defaults.
func (a *Annotations) Settings() []ir.Setting {
	var all []ir.Setting
	if !a.Consumer.Has("lock") && a.Consumer.EffectiveLock() == "advisory" { // the default of per=cluster
		all = append(all, ir.Setting{Field: "Lock", Value: ir.Const("LockAdvisory")})
	}
	for _, directive := range []any{a.Consumer, a.Lease, a.Retry, a.DLQ, a.Once} {
		v := reflect.ValueOf(directive).Elem()
		for i := range v.NumField() {
			if s, ok := setting(source(v), v.Type().Field(i).Tag, v.Field(i)); ok {
				all = append(all, s)
			}
		}
	}
	return all
}

// setting is what one argument sets.
func setting(from *Source, tag reflect.StructTag, v reflect.Value) (s ir.Setting, ok bool) {
	key := tag.Get("arg")
	if s.Field = tag.Get("spec"); s.Field == "" || !from.Has(key) {
		return s, false
	}
	if v.IsZero() {
		s.Value = -1
		return s, tag.Get("zero") != ""
	}
	switch x := v.Interface().(type) {
	case string:
		s.Value = ir.Const(strings.Split(tag.Get("consts"), ",")[slices.Index(strings.Split(tag.Get("enum"), ","), x)])
	case time.Duration:
		s.Value = ir.Duration{Duration: x, Text: from.Text(key)}
	default:
		s.Value = x
	}
	return s, true
}
