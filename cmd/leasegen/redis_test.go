package main

import (
	"strings"
	"testing"

	"github.com/leasegen/leasegen/internal/redistest"
)

// However a URL is broken, one line says what is wrong, and its password is not in it.
func TestBrokenRedisURL(t *testing.T) {
	const secret = "s3cr3t-pass"
	for _, dsn := range []string{
		"redis://u:" + secret + "@127.0.0.1:1/0",                                   // nobody listens
		"redis://u:" + secret + "@127.0.0.1:1/0?cluster=true",                      // nobody listens
		"rediss://u:" + secret + "@127.0.0.1:1?addr=127.0.0.1:2",                   // nobody listens
		"redis://u:" + secret + "@127.0.0.1:99999",                                 // no port
		"redis://u:" + secret + "@127.0.0.1:abc/0",                                 // no number
		"redis://u:" + secret + "@[::1/0",                                          // no host
		"redis://u:" + secret + "%zz@127.0.0.1/0",                                  // bad escape
		"redis://u:12/" + secret + "@127.0.0.1/0",                                  // a slash in the password
		"redis://u:" + secret + "/3@127.0.0.1/0",                                   // a slash in the password
		"redis://u:pass#" + secret + "@127.0.0.1/0",                                // a hash in the password
		"redis://u:12?" + secret + "@127.0.0.1/0",                                  // a question mark in the password
		"redis://127.0.0.1/" + secret,                                              // no database
		"redis://u:" + secret + "@127.0.0.1:1/0?dial_timeout=soon",                 // no duration
		"redis://u:" + secret + "@127.0.0.1:1/0?colour=blue",                       // no such option
		"redis://u:" + secret + "@127.0.0.1:1?cluster=true&addr=nowhere",           // no address
		"redis://u:" + secret + "@127.0.0.1:1?cluster=true&addr=[::1&read_only=no", // no address
		"redis://u:" + secret + "@no.such.host.invalid:6379",                       // no such host
	} {
		code, out, errs := leasegen(t, nil, "status", "-dsn", dsn)
		if code != exitError || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%s: exit %d, want one line:\n%s%s", strings.ReplaceAll(dsn, secret, "xxx"), code, out, errs)
		}
		if strings.Contains(errs, secret) {
			t.Errorf("the password is shown: %s", errs)
		}
		t.Log(strings.TrimSpace(errs))
	}
	// A wrong password, and one that the server takes for another user's.
	server := redistest.Shared(t)
	server.User(t, "op", "+ping")
	for _, user := range []string{"op:" + secret, ":" + secret} {
		code, _, errs := leasegen(t, map[string]string{"REDIS_URL": strings.Replace(server.URL(), "redis://", "redis://"+user+"@", 1)}, "status")
		if code != exitError || strings.Count(errs, "\n") != 1 || strings.Contains(errs, secret) {
			t.Errorf("exit %d, want one line without the password: %s", code, errs)
		}
	}
}

// No command makes a namespace, or guesses which is meant.
func TestRedisNamespaceIsNotMade(t *testing.T) {
	server := redistest.Shared(t)
	namespace := redistest.Namespace(t)
	vars := map[string]string{"LEASEGEN_DSN": server.URL()}
	code, _, errs := leasegen(t, vars, "status", "-namespace", namespace)
	if want := `leasegen status: there is no namespace "` + namespace + `" on this server: no program has run on it yet; another one is named by -namespace` + "\n"; code != exitError || errs != want {
		t.Errorf("exit %d, %swant %s", code, errs, want)
	}
	if n := server.Client(t).Exists(t.Context(), "{"+namespace+"0}:meta").Val(); n != 0 {
		t.Error("status has made the namespace")
	}
}

func TestRedisUsage(t *testing.T) {
	vars := map[string]string{"LEASEGEN_DSN": "redis://127.0.0.1:1"}
	for args, want := range map[string]string{
		"status -schema x":                      "leasegen status: -schema goes with PostgreSQL; Redis has -namespace",
		"status -namespace a_b":                 `leasegen status: -namespace "a_b": use lower-case letters, digits and dashes, at most 32`,
		"forget":                                "leasegen forget: give the name of a consumer",
		"forget a b":                            `leasegen forget: one consumer at a time, not ["a" "b"]`,
		"migrate -print -dsn redis://127.0.0.1": "leasegen migrate: " + noMigration,
	} {
		code, _, errs := leasegen(t, vars, strings.Fields(args)...)
		if code != exitError || errs != want+"\n" {
			t.Errorf("leasegen %s: exit %d, %s; want %s", args, code, errs, want)
		}
	}
	expect(t, mustRun(t, vars, "migrate"), noMigration+"\n")
	code, _, errs := leasegen(t, map[string]string{"LEASEGEN_DSN": "postgres://127.0.0.1:1/db"}, "status", "-namespace", "lg")
	if want := "leasegen status: -namespace goes with Redis; PostgreSQL has -schema\n"; code != exitError || errs != want {
		t.Errorf("exit %d, %s; want %s", code, errs, want)
	}
}
