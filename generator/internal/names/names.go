// Package names chooses every identifier of the output. Exported names are never
// changed silently: where one is taken already, that is a finding. Import and
// parameter names give way instead.
package names

import (
	"cmp"
	"go/build/constraint"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dave/jennifer/jen"

	"github.com/leasegen/leasegen/generator/internal/fsout"
	"github.com/leasegen/leasegen/generator/internal/ir"
)

// Paths of the packages that generated code may name. They are strings on purpose:
// the generator does not depend on the runtime.
const (
	Lease      = "github.com/leasegen/leasegen/runtime/lease"
	LeasePG    = "github.com/leasegen/leasegen/runtime/leasepg"
	PGTable    = "github.com/leasegen/leasegen/runtime/leasepg/pgtable"
	LeaseRedis = "github.com/leasegen/leasegen/runtime/leaseredis"
	PGX        = "github.com/jackc/pgx/v5"
)

// ABI is the constant of the runtime that generated code refers to, see lease.ABI1.
const ABI = "ABI1"

// Handlers and Register are declared once in every package that has a consumer; where its
// consumers are under several build constraints, with a Suffix for each.
const (
	Handlers = "LeasegenHandlers"
	Register = "RegisterLeasegen"
)

// RegisterFile is the name of the file with Register and a suffix. It sorts last in its directory.
func RegisterFile(suffix string) string {
	var b strings.Builder
	b.WriteString(fsout.Register)
	for _, r := range suffix {
		if unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String() + fsout.Suffix
}

// Suffix is a build constraint as a part of a name: linux && !cgo gives LinuxAndNotCgo. Of no
// constraint it is empty.
func Suffix(expr string) string {
	e, err := constraint.Parse("//go:build " + expr)
	if err != nil {
		return ""
	}
	var of func(constraint.Expr) string
	of = func(e constraint.Expr) string {
		switch e := e.(type) {
		case *constraint.AndExpr:
			return of(e.X) + "And" + of(e.Y)
		case *constraint.OrExpr:
			return of(e.X) + "Or" + of(e.Y)
		case *constraint.NotExpr:
			return "Not" + of(e.X)
		case *constraint.TagExpr:
			var b strings.Builder
			for word := range strings.FieldsFuncSeq(e.Tag, func(r rune) bool { return r == '_' || r == '.' }) {
				b.WriteString(Title(strings.ToLower(word)))
			}
			return b.String()
		}
		return ""
	}
	return of(e)
}

// Predeclared are the predeclared identifiers that generated code relies on.
func Predeclared() []string { return []string{"error", "string", "nil", "int64", "uint64", "true"} }

// Bytes is the payload of a handler that takes any message, and Uint8s is the same where the package
// declares byte itself.
const (
	Bytes  = "[]byte"
	Uint8s = "[]uint8"
)

// Constructor is the name of the function that makes the consumer of a type. An
// unexported type has an unexported constructor.
func Constructor(typ string) string { return prefixed("New", "new", typ) }

// Publish is the name of the function that publishes events of a type.
func Publish(typ string) string { return prefixed("Publish", "publish", typ) }

func prefixed(exported, unexported, typ string) string {
	if token.IsExported(typ) {
		return exported + typ
	}
	return unexported + Title(typ)
}

// Title is a name with a capital.
func Title(name string) string {
	r, n := utf8.DecodeRuneInString(name)
	return string(unicode.ToUpper(r)) + name[n:]
}

// File chooses the names of imports, parameters and locals of one output file.
// scope holds the identifiers of the package, which an import cannot share.
func File(f *ir.File, scope map[string]bool) {
	f.Imports = imports(f, scope)
	taken := map[string]bool{}
	for _, i := range f.Imports {
		taken[i.Name] = true
	}
	for i := range f.Events {
		e := &f.Events[i]
		e.Locals = locals(taken, map[string]bool{e.Type.Name: true}, "ctx", "to", "topic", "events", "e")
	}
	if f.Register != nil {
		register(f.Register, taken)
	}
	for i := range f.Consumers {
		c := &f.Consumers[i]
		for j, h := range c.Handlers {
			if h.Payload.Name == Bytes && h.Payload.Path == "" && scope["byte"] {
				c.Handlers[j].Payload.Name = Uint8s
			}
		}
		c.Locals = locals(taken, own(f, c), "be", "h", "opts", "e", "ctx", "db", "p", "rows", "r", "now")
	}
}

// register chooses the locals of a register's function, which calls the constructors.
func register(r *ir.Register, taken map[string]bool) {
	for _, c := range r.Consumers {
		taken[c.Constructor] = true
	}
	roles := []string{"g", "be", "h", "opts", "err"}
	for i := range r.Consumers {
		roles = append(roles, "c"+strconv.Itoa(i+1), "err"+strconv.Itoa(i+1))
	}
	r.Locals = locals(taken, nil, roles...)
}

// locals gives each role a name that hides no identifier of the function's body.
func locals(taken, types map[string]bool, roles ...string) map[string]string {
	out := make(map[string]string, len(roles))
	for _, role := range roles {
		out[role] = Unused(role, func(name string) bool { return taken[name] || types[name] })
	}
	return out
}

// own are the types of f's package that the functions of a consumer name: its own, and its payloads.
func own(f *ir.File, c *ir.Consumer) map[string]bool {
	types := map[string]bool{c.Type.Name: true}
	for _, h := range c.Handlers {
		if h.Payload.Path == f.PkgPath {
			types[h.Payload.Name] = true
		}
	}
	return types
}

// imports names the packages that f refers to, in a fixed order of precedence:
// first the runtime and the standard library, then the payloads' packages by path.
func imports(f *ir.File, scope map[string]bool) []ir.Import {
	var out []ir.Import
	seen := map[string]bool{f.PkgPath: true, "": true}
	used := map[string]bool{}
	add := func(importPath, name string) {
		if seen[importPath] {
			return
		}
		seen[importPath] = true
		// jennifer renames imports that are reserved words to it; choosing first keeps
		// its choice and ours the same.
		local := Unused(name, func(n string) bool { return used[n] || scope[n] || jen.IsReservedWord(n) })
		used[local] = true
		out = append(out, ir.Import{Path: importPath, Name: local, Alias: local != assumed(importPath)})
	}
	for _, p := range []string{Lease, LeasePG, PGTable, LeaseRedis, PGX, "context", "time", "strconv"} {
		add(p, assumed(p))
	}
	if f.Register != nil {
		add("errors", "errors")
	}
	for _, t := range payloads(f) {
		add(t.Path, t.PkgName)
	}
	return out
}

// assumed is the name that goimports takes a package to have as long as it has only seen its
// path. Where that is wrong it writes the name before the path, and so does leasegen: a
// generated file stays as it is when an editor runs goimports on it.
func assumed(importPath string) string {
	base := path.Base(importPath)
	if n, ok := strings.CutPrefix(base, "v"); ok {
		if _, err := strconv.Atoi(n); err == nil && path.Dir(importPath) != "." {
			base = path.Base(path.Dir(importPath))
		}
	}
	base = strings.TrimPrefix(base, "go-")
	if i := strings.IndexFunc(base, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }); i >= 0 {
		base = base[:i]
	}
	return base
}

// Unused returns want, or want with the first number that makes it free.
func Unused(want string, taken func(string) bool) string {
	name := want
	for i := 2; taken(name); i++ {
		name = want + strconv.Itoa(i)
	}
	return name
}

// payloads are the payload types of a file's handlers, by import path.
func payloads(f *ir.File) []ir.Type {
	var out []ir.Type
	for _, c := range f.Consumers {
		for _, h := range c.Handlers {
			out = append(out, h.Payload)
		}
	}
	slices.SortFunc(out, func(a, b ir.Type) int { return cmp.Compare(a.Path, b.Path) })
	return out
}
