package emit

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/leasegen/leasegen/generator/internal/ir"
	"github.com/leasegen/leasegen/generator/internal/names"
)

// describeRedis says what has one owner, for a consumer of streams that others write to.
func describeRedis(c *ir.Consumer, order string) string {
	shown := make([]string, len(c.Redis.Streams))
	for i, s := range c.Redis.Streams {
		shown[i] = plain(s)
	}
	last := len(shown) - 1
	list := strings.Join(shown[:last], ", ") + " and " + shown[last]
	switch {
	case last == 0:
		return fmt.Sprintf("one replica at a time works on the Redis stream %s, %s.", shown[0], order)
	case c.Per == ir.PerGroup:
		return fmt.Sprintf("one replica at a time works on all of the Redis streams %s, %s.", list, order)
	}
	return fmt.Sprintf("each of the Redis streams %s is worked on by one replica at a time, %s.", list, order)
}

// plain shows a name in a comment: as it is, or quoted, if it is not plain ASCII.
func plain(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return strconv.QuoteToASCII(s)
	}
	return s
}

// streamSource tells the runtime which streams to read, and how.
func streamSource(r *ir.Redis) *jen.Statement {
	var s fields
	s.add("Names", literals(r.Streams))
	s.text("Kind", r.Kind)
	s.text("Key", r.Key)
	s.text("Payload", r.Payload)
	return jen.Qual(names.LeaseRedis, "StreamSource").Add(lines("{", "}", s...))
}
