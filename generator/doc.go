// Package generator turns annotated Go packages into generated files.
//
// The pipeline, which Generate shows in one function:
//
//	scan     list the packages that match, read their files, keep those with directives  load.List, scan
//	parse    take the directives apart and decode them                                   resolve.Parse, directive, spec
//	sql      make the queries for tables; sqlc checks them and turns them into Go        table.Generate, sqlschema, sqlc
//	load     type-check what annotated declarations are made of, once, from source       load.Module.Check
//	resolve  match directives and types; the result is plain data (package ir)           resolve.Resolve
//	name     choose every identifier, or refuse what is taken                            resolve.Names, names
//	emit     write Go from that data                                                     emit
//	verify   type-check the packages with the output, on every platform that differs     verify
//	write    compare with what is there and replace what differs                         Plan, fsout
//
// The packages are those below internal; functions of this package have no prefix. An argument of a directive is a field of a
// struct in package spec. A finding is a code in package diag and a call of Findings.Add in the step that finds it.
//
// All but the last step are a pure function of the source: they write no file, print
// no line and run none of the user's code; sqlc works in a scratch directory. Every step goes on after a finding, so
// that one run reports all of them; no file is emitted if there are any.
package generator
