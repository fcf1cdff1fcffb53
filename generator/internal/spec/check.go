package spec

import (
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

// bad adds a finding at the value of key.
func (s *Source) bad(diags *diag.List, code, key, message, hint string, related ...diag.Related) {
	pos, end := s.Span(key)
	diags.Add(diag.Diagnostic{Code: code, Pos: pos, End: end, Message: message, Hint: hint, Related: related})
}

// checkTopics holds topics against per.
func (c *Consumer) checkTopics(diags *diag.List) bool {
	switch {
	case c.Per == "cluster" && c.Has("topics"):
		c.bad(diags, "LG0505", "topics", "per=cluster has no message source, but topics are given", "remove topics, or write per=topic or per=group")
		return false
	case c.Per != "cluster" && !c.Has("topics"):
		pos, end := c.Span("")
		diags.Add(diag.Diagnostic{Code: "LG0109", Pos: pos, End: end,
			Message: fmt.Sprintf("//leasegen:consumer with per=%s needs the argument topics", c.Per), Hint: "write topics=PATTERN[,PATTERN…]"})
		return false
	}
	return true
}

// Fill copies from d what c, l, r and q leave open. A nil d has nothing; for a directive
// that the consumer does not have, pass a zero struct.
func (d *Defaults) Fill(c *Consumer, l *Lease, r *Retry, q *DLQ) {
	if d == nil {
		return
	}
	fill(c, &d.Consumer)
	fill(l, &d.Lease)
	fill(r, &d.Retry)
	fill(q, &d.DLQ)
}

func fill[T any](directive, defaults *T) {
	to, from := reflect.ValueOf(directive).Elem(), reflect.ValueOf(defaults).Elem()
	for _, a := range argsOf(to.Type(), nil, "") {
		if o, ok := source(from).set[a.Key]; ok && !source(to).Has(a.Key) {
			to.FieldByIndex(a.index).Set(from.FieldByIndex(a.index))
			source(to).put(a.Key, o)
		}
	}
}

// Check holds the values of one consumer's directives against each other, after Fill.
// It reports whether all is well.
func Check(c *Consumer, l *Lease, r *Retry, q *DLQ, diags *diag.List) bool {
	ok := true
	bad := func(s *Source, key, message, hint string, related ...diag.Related) {
		ok = false
		s.bad(diags, "LG0505", key, message, hint, related...)
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
	if c.Per == "cluster" {
		for _, key := range []string{"workers", "batch", "unknown"} {
			if o, ok := c.set[key]; ok && o.directive.Name == "consumer" {
				bad(&c.Source, key, fmt.Sprintf("per=cluster has no messages, so %s means nothing", key), "remove it")
			}
		}
		if q.Directive.Name == "dlq" {
			bad(&q.Source, "", "per=cluster has no messages, so //leasegen:dlq means nothing", "remove the line")
		}
	}
	return ok
}

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
		s.bad(diags, p.code, "name", fmt.Sprintf("the name made from type %s is not allowed: %s", typeName, p.message), "write name=NAME")
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
