// Package generator turns annotated Go packages into generated files.
//
// The pipeline, which Generate shows in one function:
//
//	scan     list the packages that match, read their files, keep those with directives
//	parse    take the directives apart and decode them
//	sql      make the queries for tables, and have sqlc check them and turn them into Go
//	load     type-check what annotated declarations are made of, once, from source, and nothing else
//	resolve  match directives and types; the result is plain data
//	name     choose every identifier, or refuse what is taken
//	emit     write Go from that data
//	verify   type-check the packages with what was emitted, on every platform that differs
//	write    compare with what is there and replace what differs (package fsout)
//
// All but the last step are a pure function of the source: they write no file, print
// nothing and run nothing of the user's code; sqlc works in a scratch directory. Every step goes on after a finding, so
// that one run reports all of them; nothing is emitted if there are any.
package generator
