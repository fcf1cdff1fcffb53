package main

import (
	"strings"
	"testing"
)

func TestPlaintextIsWarnedOf(t *testing.T) {
	for dsn, want := range map[string]bool{
		"redis://:secret@10.0.0.1:6379/0":         true,
		"redis://user:secret@cache.internal/0":    true,
		"redis://[2001:db8::1]:6379/0":            true,
		"rediss://user:secret@cache.internal/0":   false,
		"redis://127.0.0.1:6379/0":                false,
		"redis://[::1]:6379/0":                    false,
		"redis://localhost:6379/0":                false,
		"redis://:secret@127.9.9.9:6379/0":        false,
		"redis://127.0.0.1.example.com:6379/0":    true,
		"redis://localhost.example.com:6379/0":    true,
		"redis://user:secret@\x1b[2J.example.com": false, // no URL: refused before
	} {
		var out strings.Builder
		(&env{Stderr: &out}).warnRedis(dsn)
		if got := strings.Contains(out.String(), "not encrypted"); got != want || strings.Contains(out.String(), "secret") {
			t.Errorf("%s: %q", dsn, out.String())
		}
	}
	for host, want := range map[string]bool{"": true, "/var/run/postgresql": true, "::1": true, "192.168.0.7": false, "db": false} {
		if got := onMachine(host); got != want {
			t.Errorf("onMachine(%q) = %v", host, got)
		}
	}
}
