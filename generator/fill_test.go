package generator

// fillSource fills events, and compares those that come back.
const fillSource = `// Package fill fills events, and compares those that come back.
package fill

import (
	"context"
	"encoding"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

var (
	mu     sync.Mutex
	sent   = map[string]any{}
	wanted = map[string]bool{}
	done   = make(chan string, 10000)
)

// Bytes is []byte, whatever a package calls byte.
type Bytes = []byte

// Text is what bytes say.
func Text(b []byte) string { return string(b) }

// New is an event with all of its fields set.
func New[T any](kind string, handled bool) T {
	var v T
	set(reflect.ValueOf(&v).Elem(), 0)
	mu.Lock()
	defer mu.Unlock()
	sent[kind] = v
	if handled {
		wanted[kind] = true
	}
	return v
}

// Got compares an event with the one that was published.
func Got(kind string, v any) {
	mu.Lock()
	want := sent[kind]
	mu.Unlock()
	if diff := differ(kind, reflect.ValueOf(want), reflect.ValueOf(v)); diff != "" {
		fmt.Fprintf(os.Stderr, "%s: published %+v, received %+v\n", diff, want, v)
		os.Exit(1)
	}
	done <- kind
}

// Run publishes all events and waits for those that have a handler.
func Run(probes ...func(lease.Backend, *lease.Group) (func(context.Context) error, error)) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	be := leasemem.New()
	g := lease.NewGroup()
	var publish []func(context.Context) error
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	for _, p := range probes {
		f, err := p(be, g)
		check(err)
		publish = append(publish, f)
	}
	for _, f := range publish {
		check(f(ctx))
	}
	go func() {
		if err := g.Run(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	for len(wanted) > 0 {
		select {
		case kind := <-done:
			delete(wanted, kind)
		case <-ctx.Done():
			fmt.Fprintln(os.Stderr, "not handled:", wanted)
			os.Exit(1)
		}
	}
}

func set(v reflect.Value, depth int) {
	if !v.CanSet() && v.Kind() != reflect.Struct || depth > 4 {
		return
	}
	if v.CanAddr() && v.Addr().CanInterface() {
		switch x := v.Addr().Interface().(type) {
		case *time.Time:
			*x = time.Unix(1700000000, 5000).UTC()
			return
		case *json.RawMessage:
			*x = json.RawMessage("{\"a\":1}")
			return
		case encoding.TextUnmarshaler:
			for _, s := range []string{"127.0.0.1", "7", "2024-05-06T07:08:09Z"} {
				if x.UnmarshalText([]byte(s)) == nil {
					return
				}
			}
		}
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("s", depth))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(depth + 1))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(depth + 1))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(depth) + 0.5)
	case reflect.Interface:
		if v.NumMethod() == 0 {
			v.Set(reflect.ValueOf("any"))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		set(v.Elem(), depth+1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		set(v.Index(0), depth+1)
	case reflect.Array:
		for i := range v.Len() {
			set(v.Index(i), depth+1)
		}
	case reflect.Map:
		key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		set(key, depth+1)
		set(elem, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, elem)
	case reflect.Struct:
		for i := range v.NumField() {
			set(v.Field(i), depth+1)
		}
	}
}

var codec = reflect.TypeFor[json.Marshaler]()

// differ says where two values differ in what travels.
func differ(path string, a, b reflect.Value) string {
	if a.IsValid() != b.IsValid() || a.IsValid() && a.Type() != b.Type() {
		return path
	}
	if !a.IsValid() {
		return ""
	}
	t := a.Type()
	switch {
	case t == reflect.TypeFor[time.Time]():
		if !a.Interface().(time.Time).Equal(b.Interface().(time.Time)) {
			return path
		}
		return ""
	case t.Kind() == reflect.Struct && (t.Implements(codec) || t.Implements(reflect.TypeFor[encoding.TextMarshaler]())) ||
		t.Kind() == reflect.Struct && reflect.PointerTo(t).Implements(codec):
		if fmt.Sprint(a.Interface()) != fmt.Sprint(b.Interface()) {
			return path
		}
		return ""
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface:
		if a.IsNil() || b.IsNil() {
			if a.IsNil() != b.IsNil() {
				return path
			}
			return ""
		}
		return differ(path, a.Elem(), b.Elem())
	case reflect.Slice, reflect.Array:
		if a.Len() != b.Len() {
			return path
		}
		for i := range a.Len() {
			if d := differ(fmt.Sprint(path, "[", i, "]"), a.Index(i), b.Index(i)); d != "" {
				return d
			}
		}
		return ""
	case reflect.Map:
		if fmt.Sprintf("%v", a) != fmt.Sprintf("%v", b) {
			return path
		}
		return ""
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(t) {
			g, ok := t.FieldByName(f.Name)
			if !ok || !reflect.DeepEqual(g.Index, f.Index) || !f.IsExported() || dropped(t, f.Index) {
				continue
			}
			if f.Anonymous && f.Tag.Get("json") == "" && plain(f.Type) {
				continue // its fields follow
			}
			x, err1 := a.FieldByIndexErr(f.Index)
			y, err2 := b.FieldByIndexErr(f.Index)
			if err1 != nil || err2 != nil {
				if (err1 == nil) != (err2 == nil) {
					return path + "." + f.Name
				}
				continue
			}
			if d := differ(path+"."+f.Name, x, y); d != "" {
				return d
			}
		}
		return ""
	}
	if !reflect.DeepEqual(a.Interface(), b.Interface()) {
		return path
	}
	return ""
}

// plain reports whether a type is a struct that JSON takes apart.
func plain(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(codec)
}

// dropped reports whether a json:"-" is on the way to a field.
func dropped(t reflect.Type, index []int) bool {
	for _, i := range index {
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		f := t.Field(i)
		if f.Tag.Get("json") == "-" {
			return true
		}
		t = f.Type
	}
	return false
}
`
