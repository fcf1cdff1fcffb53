package leaseredis

import (
	"context"
	"fmt"
	"reflect"
	"slices"
)

// SentByGo are the commands that are sent outside of scripts.
var SentByGo = slices.Concat(connecting, []string{"eval", "evalsha", "hget", "hkeys", "hset", "lpos", "set", "sismember", "sscan", "unlink", "xinfo", "xlen", "xrange", "xread", "xrevrange", "zcard", "zrange", "zrangebyscore", "zscan"})

// ShaOf is what the script of that name is called by.
func ShaOf(name string) string {
	f := reflect.ValueOf(scripts).FieldByName(name)
	if !f.IsValid() {
		panic(fmt.Sprintf("there is no script %q", name))
	}
	return f.Elem().FieldByName("sha").String()
}

// LooksDue returns looks.due of one view of a new process.
func LooksDue() func(last int64, n int) bool {
	var l looks
	return func(last int64, n int) bool { return l.due(viewPart{consumer: "c"}, last, n) }
}

// ScriptSources are all scripts, by name.
func ScriptSources() map[string]string {
	sources, all := map[string]string{}, reflect.ValueOf(scripts)
	for i := range all.NumField() {
		sources[all.Type().Field(i).Name] = all.Field(i).Elem().FieldByName("src").String()
	}
	return sources
}

// Reload asks the cluster for its topology.
func Reload(ctx context.Context, b *Backend) error { return b.reload(ctx, nil) }
