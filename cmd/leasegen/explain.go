package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/leasegen/leasegen/generator"
)

func explain(e *env, args []string) error {
	if len(args) > 1 {
		return errors.New("one directive or code at a time")
	}
	text, err := generator.Explain(strings.TrimPrefix(strings.Join(args, ""), "//leasegen:"))
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(e.Stdout, text)
	return err
}
