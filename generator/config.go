package generator

import "time"

// Config says what to generate.
type Config struct {
	// Dir is where patterns are resolved; "" is the working directory.
	Dir string
	// Patterns name packages of one module as the go command does; none means ".".
	// Nested modules are not entered.
	Patterns []string
	// Tags are build tags, separated by commas.
	Tags string
	// SQLC is the sqlc to run for tables; "" is the one in PATH, or else the one that the
	// module has as a tool.
	SQLC string
}

// Result is what Generate found out.
type Result struct {
	// Root is the module's directory, absolute. File names below are relative to it,
	// with slashes.
	Root string
	// Files is everything that should exist, sorted by path. It is empty if Diags has
	// findings that are not warnings.
	Files []File
	// Stale are files of leasegen that should not exist any more, sorted. Each has the
	// suffix and the header of an output and lies in a package that loaded cleanly.
	Stale []string
	// Diags are the findings about the source.
	Diags *Findings
	// Packages is how many packages something was type-checked of: those with directives, and what they need.
	Packages int
	// Timings are the steps of the pipeline in order.
	Timings []Timing
}

// Timing is how long one step took.
type Timing struct {
	Name string
	Took time.Duration
}
