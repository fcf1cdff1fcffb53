package leaseredis

import (
	"maps"
	"slices"
	"strings"
)

// commands are all that this package sends, in scripts or outside, with what Check tries them on: KEY
// is a string, so that those for other types have no effect; NONE does not exist.
var commands = map[string][]string{
	"del":              {"NONE"},
	"eval":             {"return 1", "1", "KEY"},
	"evalsha":          {strings.Repeat("0", 40), "1", "KEY"},
	"exists":           {"KEY"},
	"get":              {"KEY"},
	"hdel":             {"KEY", "f"},
	"hexists":          {"KEY", "f"},
	"hget":             {"KEY", "f"},
	"hgetall":          {"KEY"},
	"hincrby":          {"KEY", "f", "1"},
	"hkeys":            {"KEY"},
	"hlen":             {"KEY"},
	"hmget":            {"KEY", "f"},
	"hrandfield":       {"KEY"},
	"hset":             {"KEY", "f", "v"},
	"lindex":           {"KEY", "0"},
	"llen":             {"KEY"},
	"lpop":             {"KEY"},
	"lpos":             {"KEY", "v"},
	"lrange":           {"KEY", "0", "0"},
	"lrem":             {"KEY", "0", "v"},
	"ltrim":            {"KEY", "0", "0"},
	"pexpire":          {"KEY", "60000"},
	"publish":          {"CHANNEL", "probe"},
	"rpush":            {"KEY", "v"},
	"sadd":             {"KEY", "m"},
	"scard":            {"KEY"},
	"set":              {"KEY", "v", "EX", "60"},
	"sismember":        {"KEY", "m"},
	"smembers":         {"KEY"},
	"smismember":       {"KEY", "m"},
	"spop":             {"KEY"},
	"srandmember":      {"KEY"},
	"srem":             {"KEY", "m"},
	"sscan":            {"KEY", "0"},
	"time":             {},
	"type":             {"KEY"},
	"unlink":           {"NONE"},
	"xadd":             {"KEY", "NOMKSTREAM", "*", "f", "v"},
	"xdel":             {"KEY", "0-1"},
	"xinfo":            {"STREAM", "KEY"},
	"xlen":             {"KEY"},
	"xrange":           {"KEY", "-", "+"},
	"xread":            {"COUNT", "1", "STREAMS", "KEY", "0"},
	"xrevrange":        {"KEY", "+", "-"},
	"xsetid":           {"KEY", "0-1"},
	"xtrim":            {"KEY", "MAXLEN", "0"},
	"zadd":             {"KEY", "1", "m"},
	"zcard":            {"KEY"},
	"zcount":           {"KEY", "0", "0"},
	"zinter":           {"1", "KEY"},
	"zmscore":          {"KEY", "m"},
	"zrange":           {"KEY", "0", "0"},
	"zrangebyscore":    {"KEY", "0", "0"},
	"zrem":             {"KEY", "m"},
	"zrevrangebyscore": {"KEY", "0", "0"},
	"zscan":            {"KEY", "0"},
	"zscore":           {"KEY", "m"},
}

// connecting are the commands that the client itself sends, and what Check looks at.
var connecting = []string{"hello", "ping", "info", "subscribe", "unsubscribe", "cluster|slots", "command", "asking", "readonly",
	"client|id", "client|list", "client|setname"}

// globless writes a name as a pattern that matches no other, but that any character may
// be where a space is: rules have none.
var globless = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`,
	" ", "?", "\t", "?", "\n", "?", "\v", "?", "\f", "?", "\r", "?")

// ACL returns the rules of the least that a user of the namespace needs, in the language of ACL
// SETUSER; New's default namespace is lg. Streams are those that others write to and consumers
// read, see StreamSource.
//
//	client.ACLSetUser(ctx, "app", append([]string{"on", ">" + password}, leaseredis.ACL("lg")...)...)
//
// The command leasegen acl prints them as a command for redis-cli.
// go-redis sends more when it connects (CLIENT SETINFO), which may fail. Some of what is here only a
// cluster needs.
func ACL(namespace string, streams ...string) []string {
	rules := []string{"resetkeys", "resetchannels", "-@all"}
	for digits := range 3 {
		tag := "{" + namespace + strings.Repeat("[0-9]", digits+1) + "}:"
		rules = append(rules, "~"+tag+"*", "&"+tag+"news")
	}
	for _, s := range streams {
		rules = append(rules, "~"+globless.Replace(s))
	}
	for _, c := range slices.Sorted(maps.Keys(commands)) {
		rules = append(rules, "+"+c)
	}
	for _, c := range connecting {
		rules = append(rules, "+"+c)
	}
	return rules
}
