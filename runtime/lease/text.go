package lease

import (
	"encoding"
	"fmt"
	"reflect"
)

// Text is v as text, for the keys and ids that generated code reads: a nil pointer is
// the empty text. Where MarshalText fails, Publish publishes no message and returns the
// error, and a message of a handler made with Once becomes a dead letter.
func Text(v encoding.TextMarshaler) string {
	if isNil(v) {
		return ""
	}
	b, err := v.MarshalText()
	if err != nil {
		panic(textError{fmt.Errorf("MarshalText of %T: %w", v, err)})
	}
	return string(b)
}

// String is what v's method String returns, or the empty text for a nil pointer, for the keys
// and ids that generated code reads.
func String(v fmt.Stringer) string {
	if isNil(v) {
		return ""
	}
	return v.String()
}

func isNil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}

// textError takes a failure of Text through a function that returns a string only.
type textError struct{ error }

func (e textError) Unwrap() error { return e.error }

// read calls the function that reads a key or an id.
func read[T any](from func(*T) string, v *T) (text string, err error) {
	defer func() {
		if r := recover(); r != nil {
			failed, ok := r.(textError)
			if !ok {
				panic(r)
			}
			err = failed.error
		}
	}()
	return from(v), nil
}
