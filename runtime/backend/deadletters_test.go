package backend_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

func TestReasonPattern(t *testing.T) {
	for reason, want := range map[string]string{
		"":                         "",
		"no carrier":               "no carrier",
		"carrier: 503 after 1.25s": "carrier: * after *.*s",
		"row12of7":                 "row*of*",
		"order 3f2b8c1e-0000-4aaa-9bbb-0123456789ab is gone": "order * is gone",
		"order 3f2b8c1e-0000-4aaa-9bbb-0123456789abc":        "order *-*-*aaa-*bbb-*",
		"abcdefab-abcd-abcd-abcd-abcdefabcdef":               "*",
		"commit deadbeef42, sha 0cafebabe":                   "commit *, sha *",
		"defaced effaced deadbeef":                           "defaced effaced deadbeef",
		"a*b 7*8":                                            "a*b *",
		"naïve ünïcode ٣ 12":                                 "naïve ünïcode ٣ *",
		"\xff1\xff":                                          "\xff*\xff",
		`quote " ' \ % _ 9`:                                  `quote " ' \ % _ *`,
		strings.Repeat("x", 1000):                            strings.Repeat("x", 299) + "*",
		strings.Repeat("é", 1000):                            strings.Repeat("é", 149) + "*",
	} {
		got := backend.ReasonPattern(reason)
		if got != want {
			t.Errorf("%q: got %q, want %q", reason, got, want)
		}
		if !backend.MatchTopic([]string{got}, reason) {
			t.Errorf("%q is not matched by its pattern %q", reason, got)
		}
	}
}

func FuzzReasonPattern(f *testing.F) {
	for _, s := range []string{"carrier: 503", "3f2b8c1e-0000-4aaa-9bbb-0123456789ab", "a*1", "\xff\xff", strings.Repeat("é1", 200), "deadbeef1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, reason string) {
		p := backend.ReasonPattern(reason)
		switch {
		case !backend.MatchTopic([]string{p}, reason):
			t.Errorf("%q is not matched by its pattern %q", reason, p)
		case len(p) > 300:
			t.Errorf("the pattern of %q has %d bytes", reason, len(p))
		case strings.ContainsAny(p, "0123456789") || strings.Contains(p, "**"):
			t.Errorf("the pattern of %q is %q", reason, p)
		case utf8.ValidString(reason) && !utf8.ValidString(p):
			t.Errorf("the pattern of %q is cut within a character", reason)
		case backend.ReasonPattern(p) != p:
			t.Errorf("the pattern of %q is %q, and of that %q", reason, p, backend.ReasonPattern(p))
		}
	})
}

func TestDeadLetterGroupingIsBounded(t *testing.T) {
	var c backend.DeadLetterGrouping
	at := time.Unix(1000, 0)
	words := func(i int) string {
		return strings.NewReplacer("0", "a", "1", "b", "2", "c", "3", "d", "4", "e", "5", "f", "6", "g", "7", "h", "8", "i", "9", "j").Replace(fmt.Sprint(i))
	}
	for i := range 5000 {
		c.Add(operate.DeadLetterGroup{Consumer: "c", Kind: "k", Reason: "why " + words(i), Count: 1, Oldest: at, Newest: at, Example: "1"})
	}
	for i := range 7 {
		died := at.Add(time.Duration((i+3)%7) * time.Second)
		c.Add(operate.DeadLetterGroup{Consumer: "c", Kind: "k", Reason: "why a", Count: 2, Oldest: died, Newest: died, Example: fmt.Sprint("e", i)})
	}
	got := c.Answer(false)
	if len(got.Groups) != 100 || got.Total != 5014 || !got.More {
		t.Errorf("%d groups of %d dead letters, more: %v", len(got.Groups), got.Total, got.More)
	}
	want := operate.DeadLetterGroup{Consumer: "c", Kind: "k", Reason: "why a", Count: 15, Oldest: at, Newest: at.Add(6 * time.Second), Example: "e3"}
	if got.Groups[0] != want {
		t.Errorf("the largest is %+v", got.Groups[0])
	}
	var one backend.DeadLetterGrouping
	for i := range 3 {
		one.Add(operate.DeadLetterGroup{Consumer: fmt.Sprint("c", i%2), Reason: fmt.Sprint("why ", i), Count: 1, Oldest: at, Newest: at})
	}
	if got := one.Answer(false); len(got.Groups) != 2 || got.Groups[0].Count != 2 || got.Groups[0].Reason != "why *" || got.More {
		t.Errorf("%+v", got)
	}
	if !one.Answer(true).More {
		t.Error("that there are more is not said")
	}
}

func TestSelectsByTextAndAge(t *testing.T) {
	now := time.Unix(5000, 0)
	d := operate.DeadLetterInfo{Consumer: "c", Kind: "k", Key: "Cust-ÄÖ", Reason: "Carrier: 503*", DeadAt: now.Add(-time.Minute)}
	for _, c := range []struct {
		f    operate.DeadLetterFilter
		want bool
	}{
		{operate.DeadLetterFilter{Text: "cARRIER: 50"}, true},
		{operate.DeadLetterFilter{Text: "cust-ÄÖ"}, true},
		{operate.DeadLetterFilter{Text: "cust-äö"}, false},
		{operate.DeadLetterFilter{Text: "3*"}, true},
		{operate.DeadLetterFilter{Text: "r*3"}, false},
		{operate.DeadLetterFilter{Kind: "k"}, true},
		{operate.DeadLetterFilter{Kind: "K"}, false},
		{operate.DeadLetterFilter{MinAge: time.Minute, MaxAge: time.Minute}, true},
		{operate.DeadLetterFilter{MinAge: time.Minute + 1}, false},
		{operate.DeadLetterFilter{MaxAge: time.Minute - 1}, false},
	} {
		if got := backend.Selects(c.f, &d, now); got != c.want {
			t.Errorf("%+v: %v", c.f, got)
		}
	}
}

func TestPlaces(t *testing.T) {
	for _, parts := range [][]string{{"", "", ""}, {"a", "b\x00\xff", "12"}, {strings.Repeat("é", 500), "*", "/"}} {
		got, err := backend.DecodePlace(backend.EncodePlace(parts...), 3)
		if err != nil || !slices.Equal(got, parts) {
			t.Errorf("%q became %q, %v", parts, got, err)
		}
	}
	for _, bad := range []string{"", "!", "7", backend.EncodePlace("a", "b"), backend.EncodePlace("a", "b", "c", "d")} {
		if _, err := backend.DecodePlace(bad, 3); err == nil {
			t.Errorf("%q is taken for a place", bad)
		}
	}
}
