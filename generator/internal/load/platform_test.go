package load

import "testing"

// TestTogether holds that constraints which some build meets are known from those that none does.
func TestTogether(t *testing.T) {
	m := &Module{}
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"", "", true},
		{"", "windows", true},
		{"linux", "windows", false},
		{"linux", "unix", true},
		{"unix", "windows || plan9", false},
		{"linux", "android", true}, // which implies it
		{"darwin && !ios", "ios", false},
		{"linux && amd64", "arm64", false},
		{"js", "amd64", false}, // no port
		{"cgo", "!cgo", false},
		{"cgo && linux", "!cgo || linux", true},
		{"integration", "", true},
		{"integration", "!integration && linux", false},
		{"a && (b || c)", "!b && !c", false},
		{"a && (b || c)", "!b && d && e", true},
		{"", "ignore", false},
		{"", "go1.18", true},
		{"", "!go1.18", false},
	} {
		if got := m.Together(c.a, c.b); got != c.want {
			t.Errorf("%q and %q: %v, want %v", c.a, c.b, got, c.want)
		}
	}
	if ps := m.Platforms([]string{"windows", "cgo"}); !ps[0].Here() || ps[0].String() != "" || len(ps) != 4 {
		t.Errorf("got %v", ps)
	}
}
