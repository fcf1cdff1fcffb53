package spec

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

// checkRedis holds //leasegen:redis against its consumer.
func (c *Consumer) checkRedis(a Annotations, diags *diag.List) bool {
	ok := true
	bad := func(s *Source, key, message, hint string) {
		ok = false
		diags.Add(s.Finding("LG0505", key, message, hint))
	}
	if a.Table != nil {
		bad(&a.Redis.Source, "", "the messages are the rows of a table already", "remove this line, or //leasegen:table")
	}
	if c.Per != "topic" && c.Per != "group" {
		bad(&c.Source, "per", fmt.Sprintf("per=%s does not read Redis streams of others", c.Per), "write per=topic or per=group")
	}
	if c.Has("lock") && c.Lock == "advisory" {
		bad(&c.Source, "lock", "Redis has no advisory locks", "remove it: lock=session is the default")
	}
	return ok
}

// longestStream is how long a topic may be.
const longestStream = 1024

// streamsProblem allows what Redis and the other backends' texts allow as a key: any UTF-8.
func streamsProblem(names []string) *problem {
	for i, n := range names {
		switch {
		case n == "":
			return &problem{"LG0508", "the name of a stream is empty", "write the keys of the streams, separated by single commas"}
		case !isText(n):
			return &problem{"LG0508", fmt.Sprintf("stream %s is not UTF-8 text without zero bytes", show(n)), "rename the stream"}
		case len(n) > longestStream:
			return &problem{"LG0508", fmt.Sprintf("the name of stream %s is %d bytes long", show(n), len(n)), fmt.Sprintf("at most %d are allowed", longestStream)}
		case slices.Contains(names[:i], n):
			return &problem{"LG0508", fmt.Sprintf("stream %s is given twice", show(n)), "keep one"}
		}
	}
	return nil
}

func fieldProblem(s string) *problem {
	switch {
	case s == "":
		return &problem{"LG0508", "the name of the field is empty", "write the name that the field has in the entries"}
	case !isText(s):
		return &problem{"LG0508", fmt.Sprintf("field %s is not UTF-8 text without zero bytes", show(s)), "rename the field"}
	}
	return nil
}

func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }
