// Package ir is what resolve found out and emit writes: plain data, free of
// syntax trees, types and formatting. Everything is ordered by file and offset.
package ir

import (
	"slices"
	"time"
)

// File is one output file: what the source file beside it declares, or a package's Register.
type File struct {
	Dir     string // relative to the module root, with slashes; "." is the root
	Source  string // orders.go; of a Register the files of its consumers, with ", " between
	Output  string // orders_leasegen.go
	PkgPath string
	PkgName string
	// Constraint is the source's build constraint as an expression, empty if none.
	Constraint string
	Events     []Event
	Consumers  []Consumer
	// Register is nil but in a file of its own.
	Register *Register
	// Imports gives every package the output names its name there.
	Imports []Import
}

// Register is the function that adds all consumers of a package that are built under one
// constraint to a group.
type Register struct {
	Func, Handlers string // the names of the function and of its struct
	Consumers      []Consumer
	// Others are the functions for consumers of the package under other constraints.
	Others []Other
	// Locals are the names of the function's parameters, by role.
	Locals map[string]string
}

// Other is a function that adds consumers under a constraint; the constraint is empty if none.
type Other struct{ Func, Constraint string }

// Import is one package and how the output calls it.
type Import struct {
	Path  string
	Name  string
	Alias bool // Name stands before the path
}

// Type names a type: a declared one, or a predeclared composite such as []byte when Path is empty.
type Type struct {
	Path    string // import path
	PkgName string // the package's own name
	Name    string
}

// Event is an annotated payload struct.
type Event struct {
	Type Type
	Kind string // its name in the log
	Key  Field  // the ordering key
	ID   Field  // the message's id
	// Publish is the name of the generated function.
	Publish string
	// Locals are the names of the function's parameters and locals, by role.
	Locals map[string]string
}

// Field is a field of an event that is read as a string. The zero Field is none.
type Field struct {
	Path []string // Customer, ID
	Kind FieldKind
	Addr bool // its method has a pointer receiver
}

// FieldKind says how a field becomes a string.
type FieldKind int

const (
	FieldString   FieldKind = iota + 1 // a string
	FieldNamed                         // a type whose underlying type is string
	FieldSigned                        // any signed integer
	FieldUnsigned                      // any unsigned integer
	FieldText                          // a type with MarshalText
	FieldStringer                      // a type with String
	FieldTime                          // a time.Time, which is read in UTC
)

// Per says what has exactly one owner.
type Per int

const (
	PerTopic Per = iota + 1
	PerGroup
	PerPartition
	PerStream
	PerCluster
)

// Consumer is an annotated handler struct.
type Consumer struct {
	Type     Type
	Name     string
	Per      Per
	Topics   []string
	Streams  bool   // the method Streams names the streams
	Table    *Table // read instead of the log, if not nil
	Redis    *Redis // read instead of the log, if not nil
	Handlers []Handler

	Settings []Setting

	// Constructor is the name of the generated function.
	Constructor string
	// Locals are the names of the function's parameters, by role.
	Locals map[string]string
}

// Setting is a field of the runtime's Spec that the annotations set.
type Setting struct {
	Field string // or a field of a struct within: Retry.Max
	Value any    // int, float64, Duration or Const
}

// Const names a constant of the runtime.
type Const string

// Duration is a duration and how the annotation spells it, as in 1m30s.
type Duration struct {
	time.Duration
	Text string
}

// Table is a table of the application as a source of messages, and the package that holds
// its queries.
type Table struct {
	Query               string // begins the names of the queries
	Name, Position, XID string // as in SQL
	Topic               string // column whose values are resources, with PerTopic
	Slots               int    // with PerPartition
	Key, Slot           string // the column that decides, and the expression of a row's slot
	Filtered            bool
	Row                 Type
}

// Redis is streams that others write to as a source of messages. Fields that the
// annotations do not name are empty.
type Redis struct {
	Streams            []string
	Kind, Key, Payload string
}

// Parallel reports whether messages of one resource are handled at once.
func (c *Consumer) Parallel() bool {
	return slices.ContainsFunc(c.Settings, func(s Setting) bool { n, _ := s.Value.(int); return s.Field == "Workers" && n > 1 })
}

// Postgres reports whether the consumer needs PostgreSQL.
func (c *Consumer) Postgres() bool { return c.Tx() || c.Table != nil }

// Tx reports whether any handler joins the backend's transaction.
func (c *Consumer) Tx() bool {
	return slices.ContainsFunc(c.Handlers, func(h Handler) bool { return h.Form == OneTx || h.Form == BatchTx })
}

// Form is the shape of a handler's signature.
type Form int

const (
	One Form = iota + 1
	Batch
	OneTx
	BatchTx
	Run
)

// Handler is one method of a consumer.
type Handler struct {
	Method  string
	Form    Form
	Kind    string // empty: every kind without a handler of its own; unused by Run
	Payload Type   // unused by Run
	// Once names the item that is executed once; none if messages are handled as they come.
	Once     Field
	OncePark bool // what has ended unknown is set aside
}
