package lease_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

// name is text by a method with a pointer receiver, and fails where it is empty.
type name struct{ s string }

var errNameless = errors.New("nameless")

func (n *name) MarshalText() ([]byte, error) {
	if n.s == "" {
		return nil, errNameless
	}
	return []byte(n.s), nil
}

func (n *name) UnmarshalText(b []byte) error { n.s = string(b); return nil }

type shape int

func (s shape) String() string { return strings.Repeat("x", int(s)) }

// named is an event whose key does not travel, so that no error of encoding covers it.
type named struct {
	Name  name   `json:"-"`
	Ref   *name  `json:"-"`
	Shape *shape `json:"-"`
}

type published []lease.Event

func (p *published) Publish(_ context.Context, events []lease.Event) error {
	*p = append(*p, events...)
	return nil
}

// A key or an id whose MarshalText fails ends the call of Publish, with the error, before
// anything is published.
func TestPublishTextFails(t *testing.T) {
	byName := func(n *named) string { return lease.Text(&n.Name) }
	for what, typ := range map[string]lease.EventType[named]{"key": {Kind: "k", Key: byName}, "id": {Kind: "k", ID: byName}} {
		var got published
		err := lease.Publish(t.Context(), &got, "x", typ, []named{{Name: name{"a"}}, {}})
		want := "lease: publish k to x: the " + what + " of event 1: MarshalText of *lease_test.name: nameless"
		if !errors.Is(err, errNameless) || err.Error() != want || len(got) > 0 {
			t.Errorf("%v, %d published, want %q", err, len(got), want)
		}
	}
}

// Nil pointers are the empty text, as a key: no key; a panic of other code is not swallowed.
func TestPublishTextNil(t *testing.T) {
	var got published
	two := shape(2)
	typ := lease.EventType[named]{Kind: "k", Key: func(n *named) string { return lease.Text(n.Ref) + lease.String(n.Shape) }}
	if err := lease.Publish(t.Context(), &got, "x", typ, []named{{}, {Ref: &name{"a"}, Shape: &two}}); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Key != "" || got[1].Key != "axx" {
		t.Errorf("%+v", got)
	}
	defer func() {
		if recover() != "other" {
			t.Error("a panic was swallowed")
		}
	}()
	typ.Key = func(*named) string { panic("other") }
	_ = lease.Publish(t.Context(), &got, "x", typ, []named{{}})
}

// A message whose item has no text becomes a dead letter at once, with the reason.
func TestItemWithoutTextBecomesADeadLetter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		be := leasemem.New()
		publish(t, be, "x", 0, 2, nil)
		calls := 0
		h := lease.Once(lease.One("note", func(context.Context, lease.Message[note]) error { calls++; return nil }),
			func(n *note) string { return lease.Text(&name{strings.Repeat("a", n.N)}) }, lease.OnUnknownRetry)
		start(t, newConsumer(t, be, lease.Spec{Handlers: []lease.Handler{h}}))
		pass(time.Second)
		dead := deadLetters(t, be)
		if want := "the name of the item cannot be read: MarshalText of *lease_test.name: nameless"; len(dead) != 1 || dead[0].Reason != want || calls != 1 {
			t.Errorf("%d calls, %+v, want %q", calls, dead, want)
		}
	})
}
