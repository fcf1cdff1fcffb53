package lease

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"unicode/utf8"

	"github.com/leasegen/leasegen/runtime/backend"
)

// Handler binds one method of a consumer to the kind of message it takes. Generated
// code makes handlers with One, Batch, OneTx, BatchTx and Run; kind "" takes every
// kind that has no handler of its own.
type Handler struct {
	kind  string
	batch bool // calls take many messages
	tx    bool // calls take the backend's transaction
	// call decodes and handles raws, which are of one kind. For handlers that are not
	// batch it gets exactly one. A *decodeError says which one could not be decoded;
	// the user's method was not called then.
	call func(ctx context.Context, tx any, raws []backend.Raw, d delivery) error
	run  func(ctx context.Context, l Lease) error
	once *once
}

// One handles messages one by one, at least once, in order.
func One[T any](kind string, fn func(context.Context, Message[T]) error) Handler {
	row := cloner[T]()
	return Handler{kind: kind, call: func(ctx context.Context, _ any, raws []backend.Raw, d delivery) error {
		var m Message[T]
		if err := decode(&raws[0], d, row, &m); err != nil {
			return &decodeError{0, err}
		}
		if d.by != nil {
			return wrapOne(ctx, d.by, fn, m)
		}
		return fn(ctx, m)
	}}
}

// Batch handles messages of one kind many at a time, at least once, in order.
// A batch that fails is handled again one by one, so that one bad message does not
// hold up its neighbours.
func Batch[T any](kind string, fn func(context.Context, []Message[T]) error) Handler {
	row := cloner[T]()
	return Handler{kind: kind, batch: true, call: func(ctx context.Context, _ any, raws []backend.Raw, d delivery) error {
		ms, err := decodeAll(raws, d, row)
		if err != nil {
			return err
		}
		if d.by != nil {
			return wrapOne(ctx, d.by, fn, ms)
		}
		return fn(ctx, ms)
	}}
}

// OneTx handles messages one by one inside the transaction that also moves the
// cursor, so that effects written through tx happen exactly once. X is the
// transaction type of the backend.
func OneTx[X, T any](kind string, fn func(context.Context, X, Message[T]) error) Handler {
	row := cloner[T]()
	return Handler{kind: kind, tx: true, call: func(ctx context.Context, tx any, raws []backend.Raw, d delivery) error {
		var m Message[T]
		if err := decode(&raws[0], d, row, &m); err != nil {
			return &decodeError{0, err}
		}
		x, err := txAs[X](tx)
		if err != nil {
			return err
		}
		if d.by != nil {
			return wrapTwo(ctx, d.by, fn, x, m)
		}
		return fn(ctx, x, m)
	}}
}

// BatchTx is OneTx for many messages of one kind at a time.
func BatchTx[X, T any](kind string, fn func(context.Context, X, []Message[T]) error) Handler {
	row := cloner[T]()
	return Handler{kind: kind, batch: true, tx: true, call: func(ctx context.Context, tx any, raws []backend.Raw, d delivery) error {
		ms, err := decodeAll(raws, d, row)
		if err != nil {
			return err
		}
		x, err := txAs[X](tx)
		if err != nil {
			return err
		}
		if d.by != nil {
			return wrapTwo(ctx, d.by, fn, x, ms)
		}
		return fn(ctx, x, ms)
	}}
}

// Run holds a lease without a message source: fn is called when the lease is
// acquired, and its context is cancelled when ownership ends.
func Run(fn func(context.Context, Lease) error) Handler {
	return Handler{run: fn}
}

func txAs[X any](tx any) (X, error) {
	x, ok := tx.(X)
	if !ok {
		return x, fmt.Errorf("the handler takes a %s, the backend's transactions are %T", reflect.TypeFor[X](), tx)
	}
	return x, nil
}

// delivery is what a call says of its messages beside what a backend stores.
type delivery struct {
	epoch int64
	item  string   // the idempotency key of the one message of a handler made with Once; empty: its ID
	by    *wrapped // nil without middleware
}

// decodeError marks a message that no retry can help.
type decodeError struct {
	index int // in the raws of the call
	err   error
}

func (e *decodeError) Error() string { return e.err.Error() }
func (e *decodeError) Unwrap() error { return e.err }

// ErrorType names the error in telemetry.
func (e *decodeError) ErrorType() string { return "decode" }

func decodeAll[T any](raws []backend.Raw, d delivery, row func(T) T) ([]Message[T], error) {
	ms := make([]Message[T], len(raws))
	for i := range raws {
		if err := decode(&raws[i], d, row, &ms[i]); err != nil {
			return nil, &decodeError{i, err}
		}
	}
	return ms, nil
}

// decode fills m from r, and shares no memory with it: r may be decoded again. row copies a row
// that the source has decoded. Its errors name fields and types, never values.
func decode[T any](r *backend.Raw, d delivery, row func(T) T, m *Message[T]) error {
	m.ID, m.Topic, m.Key, m.Kind = r.ID, r.Topic, r.Key, r.Kind
	m.Headers, m.Attempt, m.Epoch, m.PublishedAt = maps.Clone(r.Headers), r.Attempt+1, d.epoch, r.PublishedAt
	m.IdempotencyKey = cmp.Or(d.item, r.ID)
	switch v := r.Value.(type) {
	case nil:
	case T:
		m.Payload = row(v)
		return nil
	case error: // why the source has no payload
		return v
	default:
		return fmt.Errorf("payload is a %T, want %s", v, reflect.TypeFor[T]())
	}
	switch p := any(&m.Payload).(type) {
	case *[]byte:
		*p = bytes.Clone(r.Payload)
		return nil
	case *json.RawMessage:
		if !json.Valid(r.Payload) {
			return errors.New("payload is not valid JSON")
		}
		*p = bytes.Clone(r.Payload)
		return nil
	}
	if len(r.Payload) == 0 {
		return errors.New("payload is empty")
	}
	if !utf8.Valid(r.Payload) {
		return errors.New("payload is not valid UTF-8")
	}
	if string(bytes.TrimSpace(r.Payload)) == "null" {
		return fmt.Errorf("payload is null, want %s", reflect.TypeFor[T]())
	}
	err := json.Unmarshal(r.Payload, &m.Payload)
	if err == nil {
		return nil
	}
	if te, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		// te.Value may carry the literal after the JSON type ("number 12.5").
		got := te.Value
		for i := range got {
			if got[i] == ' ' {
				got = got[:i]
				break
			}
		}
		if te.Field == "" {
			return fmt.Errorf("payload: want %s, got %s", te.Type, got)
		}
		return fmt.Errorf("%s: want %s, got %s", te.Field, te.Type, got)
	}
	if se, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("payload is not valid JSON at byte %d", se.Offset)
	}
	return fmt.Errorf("payload cannot be decoded into %s", reflect.TypeFor[T]())
}
