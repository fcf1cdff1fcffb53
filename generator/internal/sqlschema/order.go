package sqlschema

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strings"
)

var (
	migrateUp = regexp.MustCompile(`^[0-9]+_.*\.up\.sql$`)
	// flyway's names: versioned, of a baseline, undoing and repeatable.
	flywayName = regexp.MustCompile(`^(?:([VBU])([0-9]+(?:[._][0-9]+)*)|(R))__(.*)\.sql$`)
)

// rollsBack reports whether a file rolls back, by its name.
func rollsBack(name string) bool {
	m := flywayName.FindStringSubmatch(name)
	return strings.HasSuffix(name, ".down.sql") || name == "down.sql" || m != nil && m[1] == "U"
}

// rollsBackBeside reports whether a file rolls back what another one of its folder applies, by their names.
func rollsBackBeside(name string, others map[string]bool) bool {
	for _, down := range []string{"-down.sql", "_down.sql"} {
		if rest, ok := strings.CutSuffix(name, down); ok && others[rest+strings.Replace(down, "down", "up", 1)] {
			return true
		}
	}
	return false
}

// flat reports whether the files of a folder are those of a tool that does not look into the folders below it.
func flat(files []migration) bool {
	return slices.ContainsFunc(files, func(m migration) bool { return len(m.tools) > 0 || migrateUp.MatchString(path.Base(m.Path)) })
}

// ordered brings migrations into the order in which they are applied: by the numbers in their names unless the tool
// that applies them has another rule.
func ordered(files []migration) []migration {
	has := func(t tool) bool {
		return slices.ContainsFunc(files, func(m migration) bool { return slices.Contains(m.tools, t) })
	}
	versioned := slices.ContainsFunc(files, func(m migration) bool {
		n := flywayName.FindStringSubmatch(path.Base(m.Path))
		return n != nil && n[1] != ""
	})
	switch {
	case versioned:
		return flyway(files)
	case has(dbmate), has(atlas):
		slices.SortStableFunc(files, func(a, b migration) int { return cmp.Compare(path.Base(a.Path), path.Base(b.Path)) })
	default:
		slices.SortStableFunc(files, func(a, b migration) int { return natural(a.Path, b.Path) })
	}
	return files
}

// flyway leaves out what is no migration to Flyway, and what its last baseline stands for.
func flyway(files []migration) []migration {
	type named struct {
		migration
		kind, description string
		version           []string
	}
	var all []named
	var baseline []string
	for _, f := range files {
		m := flywayName.FindStringSubmatch(path.Base(f.Path))
		if m == nil {
			continue
		}
		n := named{f, m[1] + m[3], m[4], strings.FieldsFunc(m[2], func(r rune) bool { return r == '.' || r == '_' })}
		if n.kind == "B" && (baseline == nil || compareVersions(baseline, n.version) < 0) {
			baseline = n.version
		}
		all = append(all, n)
	}
	all = slices.DeleteFunc(all, func(n named) bool {
		if n.kind == "R" || baseline == nil {
			return false
		}
		c := compareVersions(n.version, baseline)
		return c < 0 || c == 0 && n.kind != "B"
	})
	slices.SortStableFunc(all, func(a, b named) int {
		repeats := map[bool]int{true: 1}
		return cmp.Or(cmp.Compare(repeats[a.kind == "R"], repeats[b.kind == "R"]), compareVersions(a.version, b.version),
			cmp.Compare(a.description, b.description))
	})
	var out []migration
	for _, n := range all {
		out = append(out, n.migration)
	}
	return out
}

// compareVersions compares part by part, as numbers; parts that are missing are 0.
func compareVersions(a, b []string) int {
	part := func(v []string, i int) string {
		if i < len(v) {
			return v[i]
		}
		return ""
	}
	for i := range max(len(a), len(b)) {
		if c := compareNumbers(part(a, i), part(b, i)); c != 0 {
			return c
		}
	}
	return 0
}
