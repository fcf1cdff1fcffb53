package lease_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
	"github.com/leasegen/leasegen/runtime/operate"
)

// hostile is an error whose methods do what they like.
type hostile struct {
	text   func() string
	as     func(any) bool
	is     func(error) bool
	unwrap func() error
}

func (h *hostile) Error() string {
	if h.text != nil {
		return h.text()
	}
	return "hostile"
}

func (h *hostile) As(target any) bool { return h.as != nil && h.as(target) }

func (h *hostile) Is(target error) bool { return h.is != nil && h.is(target) }

func (h *hostile) Unwrap() error {
	if h.unwrap != nil {
		return h.unwrap()
	}
	return nil
}

// pointed is an error that cannot be asked for its text when it is nil.
type pointed struct{ text string }

func (p *pointed) Error() string { return p.text }

// listed is an error that cannot be compared.
type listed []string

func (l listed) Error() string { return strings.Join(l, " ") }

// worded is a value that cannot be printed.
type worded struct{}

func (worded) String() string { panic("no words") }

// attacks are what a handler may do to the process it runs in. gate is closed at the end.
func attacks(gate <-chan struct{}) map[string]func() error {
	fails := func(h hostile) func() error { return func() error { return &h } }
	never := func() { <-gate }
	return map[string]func() error{
		"an error of a pointer that is nil":     func() error { var p *pointed; return p },
		"RetryAfter of no error":                func() error { return lease.RetryAfter(time.Millisecond, nil) },
		"RetryAfter of a pointer that is nil":   func() error { var p *pointed; return lease.RetryAfter(time.Millisecond, p) },
		"RetryAfter of the past":                func() error { return lease.RetryAfter(math.MinInt64, errors.New("past")) },
		"RetryAfter and DeadLetter":             func() error { return errors.Join(lease.RetryAfter(time.Hour, nil), lease.DeadLetter("")) },
		"DeadLetter without a reason":           func() error { return lease.DeadLetter("") },
		"an error that wraps nothing":           func() error { return fmt.Errorf("%w", nil) },
		"an error that cannot be compared":      func() error { return listed{"a"} },
		"an error with a long text":             func() error { return errors.New(strings.Repeat("\x00\xff\n", 1<<20)) },
		"an error whose Error panics":           fails(hostile{text: func() string { panic("text") }}),
		"an error whose Error ends its routine": fails(hostile{text: func() string { runtime.Goexit(); return "" }}),
		"an error whose As panics":              fails(hostile{as: func(any) bool { panic("as") }}),
		"an error whose As says yes":            fails(hostile{as: func(any) bool { return true }}),
		"an error whose Is panics":              fails(hostile{is: func(error) bool { panic("is") }}),
		"an error whose Is says yes":            fails(hostile{is: func(error) bool { return true }}),
		"an error whose Unwrap panics":          fails(hostile{unwrap: func() error { panic("unwrap") }}),
		"an error whose Error hangs":            fails(hostile{text: func() string { never(); return "" }}),
		"an error whose As hangs":               fails(hostile{as: func(any) bool { never(); return false }}),
		"an error whose Unwrap hangs":           fails(hostile{unwrap: func() error { never(); return nil }}),
		"a panic with nil":                      func() error { panic(nil) },
		"a panic with an error that panics":     func() error { panic(&hostile{text: func() string { panic("text") }}) },
		"a panic with a value that panics":      func() error { panic(worded{}) },
		"a panic with a function":               func() error { panic(func() {}) },
		"a panic with ErrSessionLost":           func() error { panic(backend.ErrSessionLost) },
		"the end of its routine":                func() error { runtime.Goexit(); return nil },
	}
}

// The process survives whatever a handler does with one message: that one becomes a dead letter,
// or waits if the handler's error never says what it is, and all others are handled.
func TestHostileHandlers(t *testing.T) {
	forms := map[string]func(f func(m lease.Message[note]) error) lease.Handler{
		"one": func(f func(m lease.Message[note]) error) lease.Handler {
			return lease.One("note", func(_ context.Context, m lease.Message[note]) error { return f(m) })
		},
		"tx": func(f func(m lease.Message[note]) error) lease.Handler {
			return lease.OneTx("note", func(_ context.Context, _ *leasemem.Tx, m lease.Message[note]) error { return f(m) })
		},
		"batch": func(f func(m lease.Message[note]) error) lease.Handler {
			return lease.Batch("note", func(_ context.Context, ms []lease.Message[note]) error {
				var err error
				for _, m := range ms {
					if e := f(m); e != nil {
						err = e
					}
				}
				return err
			})
		},
	}
	for name := range attacks(nil) {
		for form, handler := range forms {
			t.Run(name+"/"+form, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					be, gate := leasemem.New(), make(chan struct{})
					attack := attacks(gate)[name]
					alone := func(n *note) string { return fmt.Sprint(n.N) }
					publish(t, be, "x", 0, 5, alone)
					publish(t, be, "y", 0, 5, alone)
					var got seen
					start(t, newConsumer(t, be, lease.Spec{
						Handlers: []lease.Handler{handler(func(m lease.Message[note]) error {
							if m.Topic == "x" && m.Payload.N == 2 {
								return attack()
							}
							got.add(m.Topic, m.Payload.N)
							return nil
						})},
						Retry: lease.Retry{Max: 3, Min: 10 * time.Millisecond, Cap: 20 * time.Millisecond},
					}))
					t.Cleanup(func() { close(gate) }) // before the end of Run
					all := func(topic string, want ...int) func() bool {
						return func() bool {
							ns := got.of(topic)
							slices.Sort(ns)
							return slices.Equal(slices.Compact(ns), want)
						}
					}
					eventually(t, "the neighbours on another topic", all("y", 0, 1, 2, 3, 4))
					if strings.Contains(name, "hangs") {
						return
					}
					eventually(t, "the neighbours on its topic", all("x", 0, 1, 3, 4))
					eventually(t, "one dead letter", func() bool { return len(deadLetters(t, be)) == 1 })
					publish(t, be, "x", 5, 6, alone)
					eventually(t, "the next message", all("x", 0, 1, 3, 4, 5))
				})
			})
		}
	}
}

// A message that waits for ever does not make the process look for it all the time.
func TestRetryAfterForEver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var f faults
		asked := 0
		f.on("FetchParked", before(func(context.Context) error {
			if asked++; asked > 1000 {
				time.Sleep(time.Second) // so that time passes in a loop without a pause
			}
			return nil
		}))
		mem := leasemem.New()
		publish(t, mem, "x", 0, 3, func(n *note) string { return fmt.Sprint(n.N) })
		var got seen
		start(t, newConsumer(t, f.share(mem), lease.Spec{Handlers: one(func(_ context.Context, m lease.Message[note]) error {
			if m.Payload.N == 1 {
				return lease.RetryAfter(math.MaxInt64, errors.New("not in this life"))
			}
			got.add(m.Topic, m.Payload.N)
			return nil
		})}))
		eventually(t, "the neighbours", func() bool { return got.count() == 2 })
		pass(time.Minute)
		if asked > 100 {
			t.Fatalf("parked messages were looked for %d times within a minute", asked)
		}
		if s := status(t, mem); s.ParkedKeys != 1 {
			t.Fatalf("%d keys wait, want 1", s.ParkedKeys)
		}
	})
}

// Changes that a call makes in place do not reach the next call of the same message.
func TestHandlersThatChangeWhatTheyGet(t *testing.T) {
	spoil := func(payload []byte, headers map[string]string) {
		for i := range payload {
			payload[i] = 'X'
		}
		clear(headers)
		headers["h"] = "spoilt"
	}
	for name, handler := range map[string]func(take func(payload []byte, headers map[string]string) error) lease.Handler{
		"one": func(take func([]byte, map[string]string) error) lease.Handler {
			return lease.One("note", func(_ context.Context, m lease.Message[[]byte]) error { return take(m.Payload, m.Headers) })
		},
		"raw JSON": func(take func([]byte, map[string]string) error) lease.Handler {
			return lease.One("note", func(_ context.Context, m lease.Message[json.RawMessage]) error { return take(m.Payload, m.Headers) })
		},
		"batch": func(take func([]byte, map[string]string) error) lease.Handler {
			return lease.Batch("note", func(_ context.Context, ms []lease.Message[[]byte]) error {
				var err error
				for i := range ms {
					err = errors.Join(err, take(ms[i].Payload, ms[i].Headers))
				}
				return err
			})
		},
		"tx": func(take func([]byte, map[string]string) error) lease.Handler {
			return lease.OneTx("note", func(_ context.Context, _ *leasemem.Tx, m lease.Message[[]byte]) error {
				return take(m.Payload, m.Headers)
			})
		},
		"batch tx": func(take func([]byte, map[string]string) error) lease.Handler {
			return lease.BatchTx("note", func(_ context.Context, _ *leasemem.Tx, ms []lease.Message[[]byte]) error {
				var err error
				for i := range ms {
					err = errors.Join(err, take(ms[i].Payload, ms[i].Headers))
				}
				return err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				be := leasemem.New()
				es := make([]lease.Event, 4)
				for i := range es {
					es[i] = lease.Event{Topic: "x", Kind: "note", Key: fmt.Sprint(i), Payload: fmt.Appendf(nil, `{"N":%d}`, i), Headers: map[string]string{"h": fmt.Sprint(i)}}
				}
				if err := be.Publish(t.Context(), es); err != nil {
					t.Fatal(err)
				}
				var mu sync.Mutex
				calls := map[string]int{}
				start(t, newConsumer(t, be, lease.Spec{
					Handlers: []lease.Handler{handler(func(payload []byte, headers map[string]string) error {
						mu.Lock()
						defer mu.Unlock()
						text := string(payload)
						if want := fmt.Sprintf(`{"N":%s}`, headers["h"]); text != want {
							t.Errorf("a call got payload %s and header %q", text, headers["h"])
						}
						calls[text]++
						n := calls[text]
						spoil(payload, headers)
						if text == `{"N":2}` && n < 4 {
							return errors.New("not yet")
						}
						return nil
					})},
					Retry: lease.Retry{Max: 8, Min: 10 * time.Millisecond, Cap: 20 * time.Millisecond},
				}))
				drained(t, be)
				mu.Lock()
				defer mu.Unlock()
				if len(calls) != 4 || calls[`{"N":2}`] < 4 {
					t.Errorf("calls: %v", calls)
				}
			})
		})
	}
}

// blocking is what observers and loggers do that should not.
var blocking = map[string]func(){
	"blocks for 12 s":  func() { time.Sleep(12 * time.Second) },
	"panics":           func() { panic("observer") },
	"ends its routine": func() { runtime.Goexit() },
}

type logHandler struct{ do func() }

func (h logHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (h logHandler) Handle(context.Context, slog.Record) error { h.do(); return nil }
func (h logHandler) WithAttrs([]slog.Attr) slog.Handler        { return h }
func (h logHandler) WithGroup(string) slog.Handler             { return h }

// Observers and loggers cost their own information, never leases or messages.
func TestHostileObserversAndLoggers(t *testing.T) {
	for name, do := range blocking {
		for what, opt := range map[string]lease.Option{
			"observer": lease.WithObserver(operate.ObserverFunc(func(operate.Observation) { do() })),
			"logger":   lease.WithLogger(slog.New(logHandler{do})),
		} {
			t.Run(what+" "+name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					t.Cleanup(func() { time.Sleep(24 * time.Hour) }) // last: for the rest of the observations
					be := leasemem.New()
					publish(t, be, "x", 0, 10, func(n *note) string { return fmt.Sprint(n.N) })
					publish(t, be, "y", 0, 10, nil)
					var got seen
					stop := start(t, newConsumer(t, be, lease.Spec{
						TTL: 3 * time.Second,
						Handlers: one(func(_ context.Context, m lease.Message[note]) error {
							switch {
							case m.Topic == "x" && m.Payload.N == 3 && m.Attempt == 1:
								return errors.New("once")
							case m.Topic == "x" && m.Payload.N == 5:
								panic("always")
							}
							got.add(m.Topic, m.Payload.N)
							return nil
						}),
						Retry: lease.Retry{Max: 3, Min: 10 * time.Millisecond, Cap: 20 * time.Millisecond},
					}, opt))
					eventually(t, "all are handled but one, which is a dead letter", func() bool {
						return got.count() == 19 && len(deadLetters(t, be)) == 1
					})
					epochs := func() map[string]int64 {
						out := map[string]int64{}
						ls, err := be.Leases(t.Context(), "a", 10)
						if err != nil {
							t.Fatal(err)
						}
						for _, l := range ls {
							out[l.Resource] = l.Epoch
						}
						return out
					}
					before := epochs()
					pass(2 * time.Minute)
					publish(t, be, "y", 10, 11, nil)
					eventually(t, "the next message", func() bool { return got.count() == 20 })
					if after := epochs(); fmt.Sprint(after) != fmt.Sprint(before) {
						t.Errorf("leases were lost: epochs %v, before %v", after, before)
					}
					began := time.Now()
					stop()
					if took := time.Since(began); took > 30*time.Second {
						t.Errorf("Run took %v to return", took)
					}
				})
			})
		}
	}
}
