package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/leasegen/leasegen/generator"
)

func explain(_ context.Context, e *env, args []string) int {
	topic := ""
	switch {
	case len(args) > 1:
		fmt.Fprintln(e.Stderr, "leasegen explain: one directive or code at a time")
		return exitError
	case len(args) == 1 && (args[0] == "-h" || args[0] == "-help" || args[0] == "--help"):
		fmt.Fprintln(e.Stdout, "usage: leasegen explain [directive or code]\nWithout an argument it lists the directives and the codes.")
		return exitOK
	case len(args) == 1:
		topic = strings.TrimPrefix(args[0], "//leasegen:")
	}
	text, err := generator.Explain(topic)
	if err != nil {
		fmt.Fprintf(e.Stderr, "leasegen explain: %s\n", err)
		return exitError
	}
	fmt.Fprint(e.Stdout, text)
	return exitOK
}
