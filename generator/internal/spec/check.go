package spec

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

// Runs reports whether the consumer has a Run method instead of messages.
func (c *Consumer) Runs() bool {
	// Topics of a stream are a finding of their own, of somebody who has messages in mind.
	return c.Per == "cluster" || c.Per == "stream" && !c.Has("input") && !c.Has("topics")
}

// Patterns are the topics consumed, whichever argument names them.
func (c *Consumer) Patterns() []string { return slices.Concat(c.Topics, c.Input) }

// EffectiveLock is the lock that was set, or else the default of per.
func (c *Consumer) EffectiveLock() string {
	if c.Has("lock") {
		return c.Lock
	}
	return locks(c.Per)[0]
}

// locks are the ways to hold ownership that go with per, the default first.
func locks(per string) []string {
	switch per {
	case "group":
		return []string{"session", "advisory"}
	case "stream":
		return []string{"session", "row"}
	case "cluster":
		return []string{"advisory", "session"}
	}
	return []string{"session"}
}

// CheckSource holds topics and input against per, or against the directives that take their place.
func (c *Consumer) CheckSource(table, redis bool, diags *diag.List) bool {
	ok := true
	contradiction := func(key, message, hint string) {
		ok = false
		diags.Add(c.Finding("LG0505", key, message, hint))
	}
	if table || redis {
		messages, directive := "rows of a table", "table"
		if !table {
			messages, directive = "entries of Redis streams", "redis"
		}
		for _, key := range []string{"topics", "input"} {
			if c.Has(key) {
				contradiction(key, "the messages are the "+messages+", but "+key+" is given", "remove it, or remove //leasegen:"+directive)
			}
		}
		return ok
	}
	switch c.Per {
	case "cluster":
		if c.Has("topics") {
			contradiction("topics", "per=cluster has no message source, but topics are given", "remove topics, or write per=topic or per=group")
		}
		if c.Has("input") {
			contradiction("input", "per=cluster has no message source, but input is given", "remove input, or write per=stream")
		}
	case "stream":
		if c.Has("topics") {
			contradiction("topics", "per=stream does not take topics", "write input=PATTERN[,PATTERN…]: the keys of the messages are the streams")
		}
	default:
		if c.Has("input") {
			contradiction("input", fmt.Sprintf("per=%s does not take input", c.Per), "write topics=PATTERN[,PATTERN…], or per=stream")
		} else if !c.Has("topics") {
			ok = false
			diags.Add(c.Finding("LG0109", "", fmt.Sprintf("//leasegen:consumer with per=%s needs the argument topics", c.Per),
				"write topics=PATTERN[,PATTERN…]"))
		}
	}
	return ok
}

// meaningless says why an argument of //leasegen:consumer has no effect on c; "" if it does mean something.
func (c *Consumer) meaningless(key string) string {
	per := "per=" + c.Per
	switch key {
	case "batch", "unknown", "unknown_wait", "from":
		if c.Runs() {
			return c.noMessages()
		}
	case "workers":
		if c.Runs() {
			return c.noMessages()
		}
		if c.Per == "stream" {
			return per + " handles the messages of a stream one after the other"
		}
	case "capacity":
		if c.Per == "group" || c.Per == "cluster" {
			return per + " has one resource"
		}
	case "poll":
		if c.Per != "stream" || !c.Runs() {
			return per + c.withInput() + " has no method Streams to ask"
		}
	case "idle":
		if c.Per == "stream" && c.Runs() {
			return "a stream is given back when Run returns"
		}
		if c.Per != "stream" {
			return per + " keeps what it owns while it is idle"
		}
	}
	return ""
}

// noMessages says that c has no messages.
func (c *Consumer) noMessages() string {
	if c.Per == "stream" {
		return "per=stream without input has no messages"
	}
	return "per=" + c.Per + " has no messages"
}

func (c *Consumer) withInput() string {
	if c.Has("input") {
		return " with input"
	}
	return ""
}

// Fill copies from d what a leaves open, and what means something to it. A nil d is empty.
func (d *Defaults) Fill(a Annotations) {
	if d == nil {
		return
	}
	fill(a.Consumer, &d.Consumer, func(key string) bool {
		if key == "lock" {
			return slices.Contains(locks(a.Consumer.Per), d.Consumer.Lock) && (a.Redis == nil || d.Consumer.Lock != "advisory")
		}
		return a.Consumer.meaningless(key) == ""
	})
	fill(a.Lease, &d.Lease, nil)
	fill(a.Retry, &d.Retry, nil)
	if !a.Consumer.Runs() {
		fill(a.DLQ, &d.DLQ, nil)
	}
	if a.Once.Given() {
		fill(a.Once, &d.Once, nil)
	}
}

// fill copies the arguments that directive leaves open, those that may be.
func fill[T any](directive, defaults *T, may func(key string) bool) {
	to, from := reflect.ValueOf(directive).Elem(), reflect.ValueOf(defaults).Elem()
	for _, a := range argsOf(to.Type(), nil, "") {
		if o, ok := source(from).set[a.Key]; ok && !source(to).Has(a.Key) && (may == nil || may(a.Key)) {
			to.FieldByIndex(a.index).Set(from.FieldByIndex(a.index))
			source(to).put(a.Key, o)
		}
	}
}

// Check holds the values of one consumer's directives against each other, after Fill.
// It reports whether all is well.
func Check(a Annotations, diags *diag.List) bool {
	c, l, r := a.Consumer, a.Lease, a.Retry
	ok := true
	bad := func(s *Source, key, message, hint string, related ...diag.Related) {
		ok = false
		diags.Add(s.Finding("LG0505", key, message, hint, related...))
	}
	if a.Table != nil && !c.checkTable(a.Table, diags) {
		return false // what else is wrong may follow from it
	}
	if a.Redis != nil && !c.checkRedis(a, diags) {
		return false
	}
	if l.Has("margin") {
		ttl, from := 15*time.Second, "the default ttl of 15s" // as in lease.Spec
		if l.Has("ttl") {
			ttl, from = l.TTL, fmt.Sprintf("ttl=%s", short(l.TTL))
		}
		if l.Margin > ttl/2 {
			bad(&l.Source, "margin", fmt.Sprintf("margin=%s is more than half of %s", short(l.Margin), from),
				fmt.Sprintf("at most %s", short(ttl/2)), l.related("ttl")...)
		}
	}
	if r.Has("cap") {
		least, from := 200*time.Millisecond, "the default min of 200ms"
		if r.Has("min") {
			least, from = r.Min, fmt.Sprintf("min=%s", short(r.Min))
		}
		if r.Cap < least {
			bad(&r.Source, "cap", fmt.Sprintf("cap=%s is below %s", short(r.Cap), from),
				"the longest wait is at least the shortest", r.related("min")...)
		}
	}
	if allowed := locks(c.Per); c.Has("lock") && !slices.Contains(allowed, c.Lock) {
		bad(&c.Source, "lock", fmt.Sprintf("lock=%s does not go with per=%s", c.Lock, c.Per),
			fmt.Sprintf("per=%s takes lock=%s", c.Per, strings.Join(allowed, " or lock=")))
	}
	for _, key := range sortedKeys(c.set) {
		if why := c.meaningless(key); why != "" {
			bad(&c.Source, key, fmt.Sprintf("%s, so %s has no effect", why, key), "remove it")
		}
	}
	if c.Runs() {
		for _, s := range []*Source{&a.DLQ.Source, &a.Once.Source} {
			if s.Given() {
				bad(s, "", fmt.Sprintf("%s, so //leasegen:%s has no effect", c.noMessages(), s.Directive.Name), "remove the line")
			}
		}
	}
	return ok
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// related points to where the other value was set, if it was.
func (s *Source) related(key string) []diag.Related {
	if !s.Has(key) {
		return nil
	}
	pos, _ := s.Span(key)
	return []diag.Related{{Pos: pos, Message: key + " at"}}
}

// short prints a duration without zero units: 1m0s is 1m.
func short(d time.Duration) string {
	s := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if len(s) > len(zero) && s[len(s)-len(zero):] == zero {
			s = s[:len(s)-len(zero)+1]
		}
	}
	return s
}

// EffectiveName returns the consumer's name, by default that of its type in snake case.
// A default that is not allowed is reported.
func (c *Consumer) EffectiveName(typeName string, diags *diag.List) (string, bool) {
	return effectiveName(&c.Source, c.Name, typeName, "_", 63, diags)
}

// EffectiveName returns the event's name, by default the words of its type joined by
// dots. A default that is not allowed is reported.
func (e *Event) EffectiveName(typeName string, diags *diag.List) (string, bool) {
	return effectiveName(&e.Source, e.Name, typeName, ".", 100, diags)
}

func effectiveName(s *Source, given, typeName, sep string, longest int, diags *diag.List) (string, bool) {
	if s.Has("name") {
		return given, true
	}
	derived := joinWords(typeName, sep)
	if p := nameProblem(derived, longest); p != nil {
		diags.Add(s.Finding(p.code, "name",
			fmt.Sprintf("the name made from type %s is not allowed: %s", typeName, p.message), "write name=NAME"))
		return derived, false
	}
	return derived, true
}

// joinWords splits a Go name into its words: HTTPOrderPlaced gives http, order, placed.
func joinWords(name, sep string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if r == '_' {
			continue
		}
		lowerBefore := i > 0 && !unicode.IsUpper(runes[i-1])
		lowerAfter := i > 0 && i+1 < len(runes) && unicode.IsLower(runes[i+1])
		if b.Len() > 0 && (runes[i-1] == '_' || unicode.IsUpper(r) && (lowerBefore || lowerAfter)) {
			b.WriteString(sep)
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
