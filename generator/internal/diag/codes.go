package diag

// Entry describes one code. Codes are stable: one that is given up is not used again.
type Entry struct {
	Code    string
	Title   string
	Explain string // what it means and how to fix it; line breaks have no meaning
}

// Codes returns the catalogue in the order of the codes, with the packages that report most of a group.
// A test demands that a golden or a script of testdata shows each code.
func Codes() []Entry {
	return []Entry{
		// LG01: syntax, reported by directive; of arguments by spec.
		{"LG0101", "unknown directive", `There is no directive of that name. leasegen explain lists those that exist.`},
		{"LG0102", "malformed argument", `An argument is key=value: no spaces around the equals sign, and the value is not empty.
A value that holds spaces needs quotes around the whole argument: "key=a b".`},
		{"LG0103", "misplaced or unterminated quotes", `Quotes stand around a whole argument, as in "key=a b", never around the value alone
(key="a b" would be read as two arguments). They are Go string literals and end on the same line.`},
		{"LG0104", "unknown argument", `The directive has no argument of that name. leasegen explain NAME lists its arguments.`},
		{"LG0105", "comment that looks like a directive", `A directive is written //leasegen:name, in lower case: no space after the slashes, none around
the colon, no hyphen. Anything close to it that Go would read as an ordinary comment is
refused, because it would otherwise be ignored in silence.`},
		{"LG0106", "hidden character", `A directive holds printable characters, separated by ordinary spaces. Tabs, control characters,
non-breaking and zero-width spaces and bidirectional controls are refused: they cannot be seen in review.
Bytes that are not UTF-8 are refused with all of the file (LG0701).`},
		{"LG0107", "duplicate argument", `An argument is given twice in one directive. Keep one.`},
		{"LG0108", "duplicate directive", `A directive is given twice for one declaration. Join the two lines.`},
		{"LG0109", "missing argument", `The directive needs this argument; it has no default.`},
		{"LG0110", "line too long", `A directive line is at most 64 KiB long.`},

		// LG02: placement, reported by directive.
		{"LG0201", "directive on the wrong declaration", `Directives stand in the doc comment of a struct type (defaults: of the package clause). Functions,
methods, variables, constants, imports, interfaces, aliases and fields take none.`},
		{"LG0202", "detached directive", `A blank line separates the directive from the declaration below it, so Go does not see it as part of
the doc comment. Remove the blank line.`},
		{"LG0203", "directive after code", `A directive has a line of its own, above the declaration; behind code it is an ordinary comment.`},
		{"LG0204", "directive in a block comment", `A directive is a line comment (//leasegen:name). Inside /* */ it has no meaning.`},
		{"LG0205", "directive on a local type", `Types declared inside a function cannot be named by generated code. Move the type to package level.`},
		{"LG0206", "directive in the wrong place", `//leasegen:defaults stands above a package clause, all other directives above a struct type.`},

		// LG03: types and signatures, reported by resolve.
		{"LG0301", "directive without a consumer", `//leasegen:lease, retry, dlq, once, table and redis say more about a consumer; they stand beside //leasegen:consumer on one struct.`},
		{"LG0302", "wrong signature", `A method whose name begins with Handle is a handler if it takes messages, and has one of four forms:
func(context.Context, lease.Message[X]) error, the same with []lease.Message[X], and both with a pgx.Tx before
the message. A consumer with per=cluster has one method, Run: func(context.Context, lease.Lease) error. So has one
with per=stream and without input, beside Streams: func(context.Context) ([]string, error).
Rename a method that is not meant as a handler. One without a message in its signature is none, and left alone.`},
		{"LG0303", "no handler", `A consumer needs at least one exported method whose name begins with Handle, or, with per=cluster, or
per=stream without input, the method Run. Methods of embedded structs count.`},
		{"LG0304", "looks like a handler", `The method has a handler's signature, but its name is not Handle and a word (or Run): it would never be
called, and no other method takes the messages. Or it has the name, and takes an event or a context, but no message. Rename it, or change its signature.`},
		{"LG0305", "payload is not an event", `Handlers take lease.Message[X], where X is a struct with //leasegen:event, of any package, by value. Messages
of all kinds without a handler of their own go to a handler of json.RawMessage or []byte, if there is one.`},
		{"LG0306", "payload that JSON cannot carry", `Events travel as JSON by the rules of encoding/json. Channels, functions, complex numbers, unsafe pointers, interfaces with methods and maps
whose keys are not strings cannot be decoded, unless their type has an UnmarshalJSON or UnmarshalText method
or the field is left out with json:"-". Nor does what encoding/json drops in silence come through: the other fields of a
struct that embeds time.Time, or anything else whose MarshalJSON is promoted; two fields of one name; the fields of an
embedded pointer to a struct that is not exported.`},
		{"LG0307", "generic type", `Consumers and events are plain structs. Declare a struct that embeds the instance you need.`},
		{"LG0308", "two handlers for one kind", `A message goes to one handler. Two methods of this consumer take the same event, or both take everything else.`},
		{"LG0309", "handler does not go with per=", `Run belongs to consumers without messages: per=cluster, and per=stream without input. Handle methods belong to
all others.`},
		{"LG0310", "workers with transaction handlers", `A transaction handler's transaction also moves the cursor, one step at a time: several workers cannot share it.`},
		{"LG0311", "field not usable", `The key and the id of an event, and the key of //leasegen:once, name an exported field of the event, or one inside
its structs, that is reached without following a pointer. It is a string or an integer, or its type has the method MarshalText
or String, which is asked in this order: uuid.UUID, for example. A nil pointer to such a type is no key; an error of MarshalText is
one of Publish. A time is read in UTC. The key of once is a field of every event that the consumer's methods take, and one that
is part of the JSON.`},
		{"LG0312", "ambiguous handler", `Two embedded structs have a method of this name at the same depth. Go then promotes neither, and the handler
would be missing without a word. Declare the method on the consumer itself.`},
		{"LG0313", "streams need one source", `The streams of a consumer with per=stream are either the keys of the messages of input=, for Handle methods, or
what its method Streams returns, for Run. Neither of the two, or both, is a mistake.`},
		{"LG0314", "event without a key", `With per=stream the key of a message says which stream it belongs to. An event of this module that such a
consumer handles needs key= at its //leasegen:event.`},
		{"LG0315", "once with a batch", `With //leasegen:once each message is decided on by itself, so its handlers take one message: with or without a
transaction, but not a slice.`},
		{"LG0316", "transaction on Redis", `A handler that takes a pgx.Tx joins the PostgreSQL transaction that moves the cursor. The cursor of a consumer with
//leasegen:redis is in Redis: its handlers take messages at least once, see //leasegen:once for effects that must not repeat.`},
		{"LG0317", "PostgreSQL and Redis in one package", `RegisterLeasegen makes all consumers of its package on one backend. Consumers with a pgx.Tx or //leasegen:table need
PostgreSQL, those with //leasegen:redis need Redis; give them packages of their own.`},
		{"LG0320", "name of a function not allowed", `constructor= and publish= name a function that leasegen declares in the package: a Go name that is not a keyword,
not one of Go's own such as string or error, and not one of the few that generated code uses for its parameters.`},

		// LG04: names, reported by resolve.
		{"LG0401", "name is taken", `leasegen declares NewX for consumer X, PublishX for event X, and LeasegenHandlers and RegisterLeasegen in every
package with a consumer (with a suffix for each build constraint, where there are several). It never changes these names by itself:
write constructor=NAME at the consumer or publish=NAME at the event, or rename what has the name.`},
		{"LG0402", "predeclared name is hidden", `The package declares error, string, nil, true, int64 or uint64 itself. Go cannot refer to its own ones there any more,
and generated code needs them.`},
		{"LG0403", "two consumers of one name", `Consumers of one name share leases, cursors and dead letters. Names are compared over all packages of the module,
whichever of them a run is for; of those that it is not for the first 20,000 files are read.`},
		{"LG0404", "two events of one name", `Messages of one kind are decoded into one type. Names are compared over all packages of the module,
whichever of them a run is for; of those that it is not for the first 20,000 files are read.`},
		{"LG0405", "type without a name", `A struct named _ cannot be referred to by generated code.`},
		{"LG0406", "two advisory locks of one key", `PostgreSQL knows an advisory lock by 64 bits only, a hash of the consumer's name. The hashes of two names are
the same, so the two consumers would shut each other out. Another name has another hash.`},
		{"LG0410", "two build constraints of one name", `Where the consumers of a package are under several build constraints, each constraint has a RegisterLeasegen of
its own, named after it: linux && !cgo gives RegisterLeasegenLinuxAndNotCgo. Two constraints that differ in brackets or
punctuation only would give one name.`},
		{"LG0411", "output is the register's", `zz_register_leasegen.go holds RegisterLeasegen, for all consumers of the package. A source named zz_register.go would
give the same file.`},

		// LG05: values, reported by spec.
		{"LG0501", "value of the wrong type", `The value cannot be read. Durations are a number with a unit (15s, 200ms, 1m30s), numbers are plain
decimal digits.`},
		{"LG0502", "value out of range", `The value can be read, but is below the least or above the greatest that is allowed.`},
		{"LG0503", "unknown choice", `The argument takes one of a few words; leasegen explain NAME lists them.`},
		{"LG0504", "name not allowed", `Names of consumers and events start with a lower-case letter; lower-case letters, digits, dots, hyphens
and underscores follow. A consumer's name has at most 63 bytes, an event's at most 100. Names are plain
ASCII so that no two look alike, and short enough that no database cuts them off. Names of tables and columns are letters, digits and
underscores, as the database stores them: OrderID is the column that SQL calls "OrderID".`},
		{"LG0505", "values that contradict each other", `Each value is fine, but not together with another one; the message names both.`},
		{"LG0506", "topic pattern not allowed", `Topics are a list of patterns separated by commas. A pattern is made of printable ASCII characters without
spaces and quotes; * stands for any run of characters, dots and slashes included. Each pattern is given once. What is a wildcard
elsewhere is refused, because it would stand for itself: a word >, #, + or ?, alternatives {a,b}, a class [ab], % at the end, ^ or ! at the beginning, and \.`},
		{"LG0507", "path not allowed", `A key or an id is the name of an exported field of the event, or a path of such names with dots: Customer.ID. The paths of
schema= lead from the module's root to folders or files, with slashes, and with .. at the beginning only.`},
		{"LG0508", "name of a stream or field not allowed", `Redis streams are given by their keys, with commas between, each once, and fields by their names in the entries. They
are UTF-8 text without zero bytes, streams of at most 1,024 bytes; a name with spaces needs quotes around the whole argument:
"streams=my stream". Braces, colons and wildcards stand for themselves.`},

		// LG06: output, reported by fsout.
		{"LG0601", "file was written by hand", `leasegen would write to a file that does not begin with its header line. Files without the header are
never overwritten: rename the file or, if it was generated, restore its first line or delete it.`},
		{"LG0602", "file of another generator", `leasegen would write to a file that carries the header of another generator. Rename one of the two.`},
		{"LG0603", "link in the output path", `The output file, or a directory of the module that leads to it, is a symbolic link. leasegen writes only regular files inside
the module. Replace the link with the real thing.`},
		{"LG0604", "not a regular file", `A directory, pipe, socket or device stands where an output file goes. Move it away.`},
		{"LG0605", "output not writable", `The output file or its directory cannot be written by this user. Change the permissions.`},
		{"LG0606", "output path not allowed", `An output path has to lie inside the module, with elements of at most 255 bytes, and no two output
paths may differ in case only.`},
		{"LG0607", "writing failed", `The system refused a write, for example because the disk is full. All files are as they were before.`},
		{"LG0608", "generated file out of date", `leasegen -check has found a generated file that is missing, differs from what would be generated, or is
left over. Run leasegen on the same packages and commit what it writes.`},

		// LG07: loading, reported by load and verify.
		{"LG0701", "syntax error", `A file of the package cannot be parsed. leasegen's own outputs do not matter here: they may be broken or missing.`},
		{"LG0702", "type error", `Something that an annotated declaration is made of does not type-check, so its types cannot be relied upon. Function
bodies and other declarations are not looked at, and what leasegen is about to declare counts as declared. Where
outputs are about to be deleted, every declaration of the package has to do without them.`},
		{"LG0703", "package cannot be loaded", `The go command reports a problem with the package, such as an import that no module provides.
go list -e -deps PACKAGE shows it as well.`},
		{"LG0704", "directives in an excluded file", `Build constraints keep the file from being compiled here, so it gets no generated file. Pass -tags, or run
leasegen on the system that the file is for. A file that was generated for it before is left alone.`},
		{"LG0705", "directives in a test file", `Generated code is part of the package, which cannot refer to what its tests declare.`},
		{"LG0706", "no directives", `No package that matches the patterns has a //leasegen: directive, so there is no work to do.`},
		{"LG0710", "runtime not required", `Generated code imports the runtime, github.com/leasegen/leasegen/runtime/lease and, where it is needed, leasepg or
leaseredis. go.mod has to require the module, or vendor has to hold the packages: go get says which.`},
		{"LG0711", "another runtime", `Generated code names a constant of the runtime that it was generated for, lease.ABI1, and functions of it. The
version of the runtime that go.mod requires does not have them: use the same version of leasegen and of its runtime.`},
		{"LG0712", "import of generated code not found", `Generated code imports a package that no module of go.mod provides. Most often sqlc makes it the type of a column, as
github.com/pgvector/pgvector-go of a vector. Require its module, or leave the column to another table.`},
		{"LG0713", "old version of the language", `Generated code uses generics, which Go has since 1.18. The go line of go.mod says which version of the language
is compiled.`},
		{"LG0714", "handler of some platforms only", `The generated file is compiled wherever the file with the struct is, and binds the handlers that this run has found. A
handler in a file that other platforms or tags have, or leave out, would be missing there or never be called.
Declare handlers in files without a build constraint of their own, or give the struct's file the same one.`},
		{"LG0719", "generated code would not compile", `The generated files were type-checked beside the package's declarations, and something does not fit that leasegen
has no finding of its own for. No file was written. Please report it, with the declaration.`},

		// LG08: tables, reported by table.
		{"LG0801", "sqlc cannot be run", `Consumers of a table need sqlc, which checks their queries against the migrations and makes Go of them.
It is the program that -sqlc or LEASEGEN_SQLC names, or the one in PATH, or a tool of the module (go get -tool
github.com/sqlc-dev/sqlc/cmd/sqlc). The same version everywhere writes the same bytes.`},
		{"LG0802", "schema cannot be made out", `The folders and files that schema= names are read in the order in which the tool applies them that their names and
marks show, by default by the numbers in their names, without what rolls back, and sqlc builds the schema from them. The
first line of the details says where it could not. A line that only looks like the mark of a rollback is refused: its tool
would apply what follows. Files are read in the module, or with .. in the repository around it (the folder with .git, or else go.work).`},
		{"LG0803", "no such table or column", `The migrations make no table or column of that name, or one whose type does not fit its use: a topic is never NULL,
and a topic, or a key with per=partition, is a text, an integer or a uuid.`},
		{"LG0804", "table without a usable xid", `Rows that commit late are found by the transaction that wrote them. The table needs a column of type xid8 with
DEFAULT pg_current_xact_id(), which is drawn before the row's position: declare it before the position's column, or, in a
table that exists, add the trigger shown. Rows without an xid count as long committed. An index on the column keeps reads quick.`},
		{"LG0805", "position does not rise", `A cursor passes rows in the order of their position, so it has to be an integer that is never NULL and that a sequence
with CACHE 1 hands out: an identity or serial column.`},
		{"LG0806", "condition not allowed", `where= is one SQL condition on the columns of the table, in PostgreSQL's own grammar. It takes no parameters, subqueries,
comments or semicolons, no functions over many rows, and no names that begin with lg_. It is of type boolean, names a column,
and compares what can be compared; columns stand alone, without the table before them, in double quotes if they have capitals.`},
		{"LG0807", "two rows of one name", `Two tables of one name, of different schemas, would have rows of one type in one package. Write package=NAME at one.`},
	}
}

// Lookup returns the entry of a code.
func Lookup(code string) (Entry, bool) {
	for _, e := range Codes() {
		if e.Code == code {
			return e, true
		}
	}
	return Entry{}, false
}
