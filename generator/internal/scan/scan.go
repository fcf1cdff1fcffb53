// Package scan decides from a file's text alone whether it is worth loading. It sees
// near misses too, so that a misspelt directive is reported rather than never looked at.
package scan

import (
	"bytes"
	"regexp"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

var mark = regexp.MustCompile(`(?i)lease[\p{Cf}_-]*gen[\s\pZ\p{Cf}]*:|` +
	`//[\s\pZ\p{Cf}+@]*lease([\p{Cf}_-]*gen[ \t\pZ\p{Cf}./-]+|:[ \t]*)[a-z]`)

// HasDirective reports whether src may hold a directive or a near miss of one: "leasegen"
// or "lease-gen" in any case, then a colon, or a word behind it in a comment that begins
// with it, or a directive of a tool whose name is all but that. Comments and string literals are not told apart.
func HasDirective(src []byte) bool {
	if i := candidate(src); i >= 0 && mark.Match(src[lineStart(src, i):]) {
		return true
	}
	return misspelt(src)
}

// candidate returns where "lease" stands before a colon, or before a g with what cannot be seen, or a hyphen,
// between them, or -1. Many files are about leases or releases, and the expression is slow.
func candidate(src []byte) int {
	for i := 0; i+len("leaseg") <= len(src); i++ {
		if src[i]|0x20 != 'l' || src[i+1]|0x20 != 'e' || src[i+2]|0x20 != 'a' || src[i+4]|0x20 != 'e' {
			continue
		}
		n := i + len("lease")
		for n < len(src) && (src[n] == '_' || src[n] == '-' || src[n] >= 0x80) {
			n++
		}
		if n < len(src) && (src[n] == ':' || src[n]|0x20 == 'g') {
			return i
		}
	}
	return -1
}

// lineStart returns where the line of src[i] begins.
func lineStart(src []byte, i int) int { return bytes.LastIndexByte(src[:i], '\n') + 1 }

// misspelt reports whether src holds //NAME: for a NAME that is leasegen but for a slip.
func misspelt(src []byte) bool {
	for {
		i := bytes.Index(src, []byte("//"))
		if i < 0 {
			return false
		}
		src = src[i+2:]
		n := 0
		for n < len(src) && n <= 10 && ('a' <= src[n] && src[n] <= 'z' || '0' <= src[n] && src[n] <= '9') {
			n++
		}
		if n >= 6 && n <= 10 && n < len(src) && src[n] == ':' {
			if _, near := diag.Closest(string(src[:n]), []string{"leasegen"}); near {
				return true
			}
		}
	}
}
