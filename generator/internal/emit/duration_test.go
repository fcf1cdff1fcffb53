package emit

import (
	"testing"
	"time"

	"github.com/leasegen/leasegen/generator/internal/ir"
)

// TestDurations: a duration comes out in the units that the annotation has.
func TestDurations(t *testing.T) {
	for text, want := range map[string]string{
		"90s": "90 * time.Second", "60s": "60 * time.Second", "1m": "time.Minute", "1m30s": "time.Minute + 30*time.Second",
		"1h30m": "time.Hour + 30*time.Minute", "720h": "720 * time.Hour", "1440m": "1440 * time.Minute", "1000ms": "1000 * time.Millisecond",
		"0h90s": "90 * time.Second", "05s": "5 * time.Second", "+5s": "5 * time.Second", "2h1ms3us4ns": "2*time.Hour + time.Millisecond + 3*time.Microsecond + 4*time.Nanosecond",
		"3\u00b5s": "3 * time.Microsecond", "3\u03bcs": "3 * time.Microsecond", "30s1m": "30*time.Second + time.Minute",
		"1.5h": "90 * time.Minute", "0.5s": "500 * time.Millisecond", "1h0.5m": "3630 * time.Second", ".5s": "500 * time.Millisecond", "1.h": "time.Hour",
		"2540400h": "2540400 * time.Hour",
	} {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := duration(ir.Duration{Duration: d, Text: text}).GoString(); got != want {
			t.Errorf("%s comes out as %s, want %s", text, got, want)
		}
	}
}
