package main

import (
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// shellWords cuts a line as a shell does, up to where its output goes elsewhere.
func shellWords(line string) (words []string) {
	line = regexp.MustCompile(` [|>] .*`).ReplaceAllString(line, "")
	for _, w := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(line, -1) {
		words = append(words, strings.Trim(w, "'"))
	}
	return words
}

// Each command has examples, and they are commands: only a missing database may stop them.
func TestExamples(t *testing.T) {
	for _, c := range commands() {
		if len(c.examples) == 0 && c.name() != "version" {
			t.Errorf("%s has no example", c.name())
		}
		for _, x := range c.examples {
			args := shellWords(x)
			if args[0] != c.name() {
				t.Errorf("%s is an example of %s", x, c.name())
			}
			if c.flagsFirst { // it would generate
				fs, _ := c.flags(&env{Getenv: func(string) string { return "" }})
				if _, err := c.parse(fs, args[1:]); err != nil {
					t.Errorf("%s: %v", x, err)
				}
				continue
			}
			if i := slices.Index(args, "-dsn"); i >= 0 {
				args = slices.Delete(args, i, i+2)
			}
			code, _, errs := leasegen(t, nil, args...)
			if code != exitOK && !strings.Contains(errs, "no database named") {
				t.Errorf("leasegen %s: exit %d, %s", x, code, errs)
			}
		}
	}
}

func TestVersion(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: "v1.2.3"}}
	expect(t, versionOf(info), "leasegen v1.2.3 go1.26.8")
	info.Settings = []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "0f1e"}, {Key: "vcs.time", Value: "2026-03-04T12:00:00Z"}}
	expect(t, versionOf(info), "leasegen v1.2.3 (git 0f1e of 2026-03-04T12:00:00Z) go1.26.8")
	info.Settings = append(info.Settings, debug.BuildSetting{Key: "vcs.modified", Value: "true"})
	expect(t, versionOf(info), "leasegen v1.2.3 (git 0f1e of 2026-03-04T12:00:00Z, modified) go1.26.8")
	expect(t, versionOf(&debug.BuildInfo{}), "leasegen (devel)")
	for _, word := range []string{"version", "-version", "--version"} {
		if out := mustRun(t, nil, word); !strings.HasPrefix(out, "leasegen ") || strings.Count(out, "\n") != 1 {
			t.Errorf("%s: %s", word, out)
		}
	}
}

// A word that is neither a command nor a package is answered with the commands; a path, or a close one, is not.
func TestCommandThatIsNone(t *testing.T) {
	all := "; commands are " + strings.Join(commandNames(), ", ") + "\n"
	for arg, want := range map[string]string{
		"lag":     "note: there is no command lag, and no such package" + all,
		"statuss": "note: statuss is taken for a package; did you mean the command \"status\"?\n",
		"./lag":   "",
		"x.y/lag": "",
	} {
		code, _, errs := leasegen(t, nil, arg)
		if code != exitError || want != "" && !strings.Contains(errs, want) || want == "" && strings.Contains(errs, "command lag") {
			t.Errorf("leasegen %s: exit %d\n%swant %s", arg, code, errs, want)
		}
	}
}
