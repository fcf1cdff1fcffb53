package load

import (
	"go/parser"
	"go/token"
	"testing"
)

func TestConstraint(t *testing.T) {
	for _, c := range []struct{ name, head, want string }{
		{"orders.go", "", ""},
		{"linux.go", "", ""}, // a name without a word before it demands no system
		{"orders_linux.go", "", "linux"},
		{"orders_amd64.go", "", "amd64"},
		{"orders_linux_amd64.go", "", "linux && amd64"},
		{"orders_amd64_linux.go", "", "linux"},
		{"orders_unix.go", "", ""}, // unix is a tag, but not one of names
		{"orders_other.go", "//go:build !linux\n\n", "!linux"},
		{"orders_linux.go", "// Licence.\n\n//go:build a || b\n\n", "linux && (a || b)"},
		{"orders_windows_arm64.go", "//go:build cgo\n\n", "windows && arm64 && cgo"},
		{"orders.go", "// Package p is no constraint: //go:build x\n", ""},
	} {
		f, err := parser.ParseFile(token.NewFileSet(), c.name, c.head+"package p\n\n//go:build late\n", parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if got := Constraint(f, "/some_linux/dir/"+c.name); got != c.want {
			t.Errorf("%s with %q: %q, want %q", c.name, c.head, got, c.want)
		}
	}
}
