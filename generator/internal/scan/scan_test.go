package scan

import (
	"os"
	"strings"
	"testing"
)

func TestHasDirective(t *testing.T) {
	for _, tc := range []struct {
		src  string
		want bool
	}{
		{"", false},
		{"package x\n\nfunc f() {}\n", false},
		{"// Please release the lease of the general.\n", false},
		{"//leasegen:consumer per=topic\n", true},
		{"// leasegen:consumer\n", true},
		{"//Leasegen:event\n", true},
		{"//LEASEGEN:event\n", true},
		{"//lease-gen:event\n", true},
		{"//lease_gen:event\n", true},
		{"//leasegen : event\n", true},
		{"//leasegen\u00a0:event\n", true},
		{"//lease\u200bgen:event\n", true},
		{"/* leasegen:event */\n", true},
		{"leas", false},
		{"release leasegen:", true}, // the first lease is not the last
		{"leaseg\nlease-\u200bgen:", true},
		{"the leasegen command\n", false},
		{"//lease:consumer per=group\n", true},
		{"// lease:retry max=3\n", true},
		{"//leasegen event\n", true},
		{"x\n// leasegen retry max=3\n", true},
		{"//lease-gen.event\n", true},
		{"//leasgen:event\n", true},
		{"// release\n//laesegen:event\n", true},
		{"//nolint:all\n//go:generate leasegen\n//leases:x\n", false},
	} {
		if got := HasDirective([]byte(tc.src)); got != tc.want {
			t.Errorf("HasDirective(%q) = %v, want %v", tc.src, got, tc.want)
		}
	}
}

func BenchmarkHasDirective(b *testing.B) {
	src, err := os.ReadFile("scan.go")
	if err != nil {
		b.Fatal(err)
	}
	src = []byte(strings.Repeat(strings.ReplaceAll(string(src), "lease", "claim"), 100))
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		if HasDirective(src) {
			b.Fatal("found what is not there")
		}
	}
}
