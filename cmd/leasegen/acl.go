package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/leasegen/leasegen/runtime/leaseredis"
)

func aclCommand() command {
	const short = "print the Redis command that gives a user what programs need"
	return databaseCommand("acl [flags] user", short, func(d *database) work {
		var streams []string
		d.fs.StringVar(&d.namespace, "namespace", "lg", "namespace of the keys")
		d.fs.Func("stream", "a `stream` that consumers with //leasegen:redis read; may be repeated", func(v string) error {
			streams = append(streams, v)
			return nil
		})
		return func(_ context.Context, e *env, rest []string) error {
			if len(rest) != 1 {
				return usagef("give the name of one user")
			}
			if strings.ContainsAny(rest[0], " \t\r\n\"'\x00") || rest[0] == "" {
				return usagef("%q cannot be the name of a user", rest[0])
			}
			if err := d.validNamespace(); err != nil {
				return err
			}
			return printACL(e.Stdout, rest[0], d.namespace, streams)
		}
	}, "acl shop", "acl shop -namespace orders -stream shop:orders", "acl shop | redis-cli -u redis://admin@host:6379")
}

// printACL prints a command for redis-cli. It sets no password.
func printACL(w io.Writer, user, namespace string, streams []string) error {
	line := "ACL SETUSER " + user + " on"
	for _, rule := range leaseredis.ACL(namespace, streams...) {
		if strings.ContainsAny(rule, `"'`) {
			rule = strconv.Quote(rule) // as redis-cli reads it
		}
		line += " " + rule
	}
	_, err := fmt.Fprintln(w, line)
	return err
}
