package generator

import (
	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/fsout"
)

// Functions that a command needs of a Result beyond this package.
type (
	// File is a generated file: where it belongs, and its content.
	File = fsout.File
	// Findings are what is wrong with the source, or with the disk.
	Findings = diag.List
	// Printer writes Findings as text, json or GitHub workflow commands.
	Printer = diag.Printer
	// Changes is what has to be done for the disk to be as generated.
	Changes = fsout.Changes
)

// Formats are the names that Printer.Format accepts.
func Formats() []string { return diag.Formats() }

// Closest returns the known word that word was probably meant to be.
func Closest(word string, known []string) (string, bool) { return diag.Closest(word, known) }

// Failure is an error of Generate as Findings, for readers that take no other form.
func Failure(err error) *Findings {
	l := &Findings{}
	l.Add(diag.Diagnostic{Code: "LG0703", Message: err.Error()})
	return l
}

// Plan compares a result with the disk. It writes no file; Changes.Apply does.
func Plan(r *Result) (*Changes, *Findings) {
	if len(r.Files)+len(r.Stale) == 0 {
		return &Changes{}, &Findings{}
	}
	return fsout.Plan(r.Root, r.Files, r.Stale)
}
