package leaseredis

import "slices"

// SentByGo are the commands that are sent outside of scripts.
var SentByGo = slices.Concat(connecting, []string{"eval", "evalsha", "hget", "hkeys", "set", "sismember", "sscan", "unlink", "xlen", "xrange", "xrevrange", "zcard", "zrange", "zrangebyscore"})
