package backend

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// maxName is how long a consumer's name may be, in bytes.
const maxName = 63

// CheckNames reports the first of these names that no consumer may have: one that is empty, longer than 63 bytes or not
// UTF-8, or that has a character which cannot be seen or changes how others are seen: a control character, a space other than
// the ordinary one, a bidirectional override, a variation selector. Backends call it first in Check, OpenSession and
// Register, so that all of them refuse the same names. Their operators take any name: what was stored under one can still be
// seen and forgotten.
func CheckNames(consumers ...string) error {
	for _, name := range consumers {
		if problem := nameProblem(name); problem != "" {
			return fmt.Errorf("lease: consumer %.64q: %s", name, problem)
		}
	}
	return nil
}

// nameProblem says why a consumer cannot have this name; empty if it can.
func nameProblem(name string) string {
	switch {
	case name == "":
		return "the name is empty; give the consumer one"
	case len(name) > maxName:
		return fmt.Sprintf("the name is %d bytes long, at most %d are allowed; give the consumer a shorter name", len(name), maxName)
	case !utf8.ValidString(name):
		return "the name is not UTF-8; give the consumer another name"
	}
	for _, r := range name {
		if !unicode.IsPrint(r) || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) {
			return fmt.Sprintf("the name has the character %U, which cannot be seen or changes how others are seen; give the consumer another name", r)
		}
	}
	return ""
}
