package lease

import (
	"math/big"
	"reflect"
	"time"
)

// A message that is called again, after a rolled back transaction or a failed batch, comes from
// memory. Changes that a handler makes in place must not reach the next call, so each call gets
// a copy.

// cloner returns how a row of type T is copied. It is the row itself where it holds no memory that
// can be changed in place.
func cloner[T any]() func(T) T {
	t := reflect.TypeFor[T]()
	if !shares(t, map[reflect.Type]bool{}) {
		return func(row T) T { return row }
	}
	return func(row T) T {
		v := reflect.New(t).Elem()
		v.Set(clone(reflect.ValueOf(&row).Elem()))
		return v.Interface().(T)
	}
}

// shares reports that copies of a value share memory with it.
func shares(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] || t == reflect.TypeFor[time.Time]() {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface:
		return true
	case reflect.Array:
		return shares(t.Elem(), seen)
	case reflect.Struct:
		for f := range t.Fields() {
			if f.IsExported() && shares(f.Type, seen) {
				return true
			}
		}
	}
	return false
}

// clone copies v and all that it refers to, but for unexported fields.
func clone(v reflect.Value) reflect.Value {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return v
		}
		if n, ok := v.Interface().(*big.Int); ok {
			return reflect.ValueOf(new(big.Int).Set(n))
		}
		p := reflect.New(v.Type().Elem())
		p.Elem().Set(clone(v.Elem()))
		return p
	case reflect.Interface:
		if v.IsNil() {
			return v
		}
		i := reflect.New(v.Type()).Elem()
		i.Set(clone(v.Elem()))
		return i
	case reflect.Slice:
		if v.IsNil() {
			return v
		}
		s := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		for i := range v.Len() {
			s.Index(i).Set(clone(v.Index(i)))
		}
		return s
	case reflect.Array:
		a := reflect.New(v.Type()).Elem()
		for i := range v.Len() {
			a.Index(i).Set(clone(v.Index(i)))
		}
		return a
	case reflect.Map:
		if v.IsNil() {
			return v
		}
		m := reflect.MakeMapWithSize(v.Type(), v.Len())
		for it := v.MapRange(); it.Next(); {
			m.SetMapIndex(it.Key(), clone(it.Value()))
		}
		return m
	case reflect.Struct:
		s := reflect.New(v.Type()).Elem()
		s.Set(v)
		if v.Type() == reflect.TypeFor[time.Time]() {
			return s
		}
		for f := range v.Type().Fields() {
			if f.IsExported() {
				s.FieldByIndex(f.Index).Set(clone(v.FieldByIndex(f.Index)))
			}
		}
		return s
	}
	return v
}
