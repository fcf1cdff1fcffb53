package sqlschema

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// tool is a program that applies migrations, told by the marks that it leaves in them.
type tool string

const (
	goose      tool = "goose"
	dbmate     tool = "dbmate"
	sqlMigrate tool = "sql-migrate"
	tern       tool = "tern"
	atlas      tool = "atlas"
)

// mark is where a part of a file begins that is applied, or one that rolls back.
type mark struct {
	at   int // offset in the file
	up   bool
	tool tool
}

// badMark is a line that a reader takes for a mark, and the tool does not.
type badMark struct {
	at   int
	line string
	tool tool
	want string
}

// The marks as the tools' own parsers know them. A line that only looks like one of them is refused: the tool would stop
// at it, or take it for a comment and apply what follows.
var (
	dbmateMark     = regexp.MustCompile(`(?m)^--\s*migrate:(up|down)(\s*$|\s+\S+)`)
	likeDBMate     = regexp.MustCompile(`(?i)^\s*--+\s*migrate\s*:\s*down\b`)
	likeSQLMigrate = regexp.MustCompile(`(?i)^\s*--+\s*\+\s*migrate\s*down\b`)
	likeGoose      = regexp.MustCompile(`(?i)^\s*--.*\+\s*goose.*\bdown\b`)
	likeTern       = regexp.MustCompile(`(?i)^\s*--+\s*create\s+above\s*/\s*drop\s+below\b`)
	atlasArchive   = regexp.MustCompile(`\A\s*-- atlas:txtar\s*\n`)
	atlasFile      = regexp.MustCompile(`^-- (.+) --$`)
)

const ternSeparator = "---- create above / drop below ----"

// gooseWords are the annotations of goose.
var gooseWords = []string{"up", "down", "statementbegin", "statementend", "no transaction", "envsub on", "envsub off"}

// up keeps of a migration what is applied, and of the rest the ends of its lines alone, so that those that
// follow keep their numbers. It returns the tools whose marks the file has.
func up(content []byte) (kept []byte, tools []tool, err error) {
	marks, bad := findMarks(content)
	if len(bad) > 0 {
		b := slices.MinFunc(bad, func(a, b badMark) int { return cmp.Compare(a.at, b.at) })
		return nil, nil, fmt.Errorf("line %d: %q is no mark of a rollback to %s; write %q",
			1+bytes.Count(content[:b.at], []byte("\n")), b.line, b.tool, b.want)
	}
	for _, m := range marks {
		if !slices.Contains(tools, m.tool) {
			tools = append(tools, m.tool)
		}
	}
	if len(marks) == 0 {
		return unmarked(content), nil, nil
	}
	from, applied := 0, marks[0].tool != sqlMigrate && marks[0].tool != atlas // those two pass over what stands before
	for _, m := range append(marks, mark{at: len(content)}) {
		if applied {
			kept = append(kept, content[from:m.at]...)
		} else {
			kept = append(kept, bytes.Repeat([]byte("\n"), bytes.Count(content[from:m.at], []byte("\n")))...)
		}
		from, applied = m.at, m.up
	}
	if last := marks[len(marks)-1]; !last.up {
		kept = kept[:len(kept)-bytes.Count(content[last.at:], []byte("\n"))]
	}
	return unmarked(kept), tools, nil
}

// sqlcMark is what sqlc takes for the mark of a rollback, which is more than the tools do.
var sqlcMark = regexp.MustCompile(`(?im)^(-- \+goose down|-- \+migrate down|---- create above / drop below ----|-- migrate:down).*$`)

// unmarked leaves out comments behind which sqlc would not read on.
func unmarked(content []byte) []byte { return sqlcMark.ReplaceAll(content, nil) }

// findMarks returns the marks of a file in their order.
func findMarks(content []byte) (marks []mark, bad []badMark) {
	for _, m := range dbmateMark.FindAllSubmatchIndex(content, -1) {
		marks = append(marks, mark{m[0], string(content[m[2]:m[3]]) == "up", dbmate})
	}
	if i := bytes.Index(content, []byte(ternSeparator)); i >= 0 {
		marks = append(marks, mark{i, false, tern})
	}
	known := map[int]bool{}
	for _, m := range marks {
		known[m.at] = true
	}
	archive, at := atlasArchive.Match(content), 0
	for raw := range bytes.Lines(content) {
		line := strings.TrimRight(string(raw), "\r\n")
		refuse := func(t tool, want string) { bad = append(bad, badMark{at, strings.TrimRight(line, " \t"), t, want}) }
		switch word, isGoose := gooseWord(line); {
		case isGoose && (word == "up" || word == "down"):
			marks = append(marks, mark{at, word == "up", goose})
		case isGoose:
		case likeGoose.MatchString(line):
			refuse(goose, "-- +goose Down")
		case strings.HasPrefix(line, "-- +migrate "):
			switch first, _, _ := strings.Cut(strings.Join(strings.Fields(line[len("-- +migrate "):]), " "), " "); {
			case first == "Up" || first == "Down":
				marks = append(marks, mark{at, first == "Up", sqlMigrate})
			case likeSQLMigrate.MatchString(line):
				refuse(sqlMigrate, "-- +migrate Down")
			}
		case likeSQLMigrate.MatchString(line):
			refuse(sqlMigrate, "-- +migrate Down")
		case likeDBMate.MatchString(line) && !known[at]:
			refuse(dbmate, "-- migrate:down")
		case likeTern.MatchString(line) && !strings.Contains(line, ternSeparator):
			refuse(tern, ternSeparator)
		case archive:
			if m := atlasFile.FindStringSubmatch(line); m != nil {
				marks = append(marks, mark{at, m[1] == "migration.sql", atlas})
			}
		}
		at += len(raw)
	}
	slices.SortStableFunc(marks, func(a, b mark) int { return cmp.Compare(a.at, b.at) })
	return marks, bad
}

// gooseWord returns the annotation that a line is to goose, which takes dashes and space anywhere in it, but none before.
func gooseWord(line string) (string, bool) {
	if !strings.HasPrefix(line, "--") || !strings.Contains(line, "+goose") {
		return "", false
	}
	word := strings.ToLower(strings.TrimSpace(strings.Replace(strings.ReplaceAll(line, "--", ""), "+goose", "", 1)))
	return word, slices.Contains(gooseWords, word)
}
