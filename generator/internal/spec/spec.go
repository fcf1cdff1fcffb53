// Package spec defines every directive and its arguments, once: as a struct whose tags
// carry key, default, limits and help. The decoder, leasegen explain,
// docs/directives.md and what is set of the runtime's lease.Spec are derived from these structs.
//
// Tags: arg is the key; required marks what has no default; default is shown, never
// filled in, because defaults belong to the runtime; min, max and enum bound the value;
// form names the check of a string; nodefault keeps an argument out of
// //leasegen:defaults; help is one sentence. spec is the field of lease.Spec that the argument sets, and consts are the
// runtime's names for enum. zero marks an argument whose 0 is -1 for the runtime, because 0 means the default there; of
// others 0 leaves the field alone.
package spec

import (
	"go/token"
	"time"

	"github.com/leasegen/leasegen/generator/internal/diag"
	"github.com/leasegen/leasegen/generator/internal/directive"
)

// Consumer makes a struct a consumer. A field that is not set is zero.
type Consumer struct {
	Source
	Name        string        `arg:"name" default:"the type's name, words joined by _" form:"consumer" nodefault:"true" help:"Shared by all replicas of the consumer; changing it starts a new consumer."`
	Per         string        `arg:"per" required:"true" enum:"topic,group,partition,stream,cluster" nodefault:"true" help:"The unit with exactly one owner: a topic, the group, a partition of the keys, a stream with work, the singleton."`
	Topics      []string      `arg:"topics" form:"topics" default:"none; required with per=topic, group and partition" nodefault:"true" help:"Patterns of the topics consumed, separated by commas; * stands for any run of characters."`
	Input       []string      `arg:"input" form:"topics" default:"none: the method Streams names the streams" nodefault:"true" help:"With per=stream: patterns of the topics consumed; the keys of their messages are the streams."`
	Lock        string        `arg:"lock" spec:"Lock" consts:"LockSession,LockAdvisory,LockRow" default:"session; with per=cluster advisory" enum:"session,advisory,row" help:"The tie of ownership: the heartbeat of the process, a lock of its connection, or an expiry of each stream's."`
	From        string        `arg:"from" spec:"From" consts:"FromBeginning,FromNow" default:"beginning" enum:"beginning,now" help:"Where the consumer begins when it first runs: at the oldest message, or at those published from then on."`
	Capacity    int           `arg:"capacity" spec:"Capacity" default:"no bound; with per=stream 32" min:"1" max:"2147483647" help:"Topics, partitions or streams that a process owns at most; what no process has room for waits."`
	Poll        time.Duration `arg:"poll" spec:"Poll" default:"5s" min:"1ms" help:"With per=stream: how often the method Streams is asked."`
	Idle        time.Duration `arg:"idle" spec:"Idle" default:"5s" min:"1ms" help:"With input: how long a stream without work stays with its owner."`
	Workers     int           `arg:"workers" spec:"Workers" default:"1" min:"1" max:"1024" help:"Messages of one resource handled at once; messages with one key never are. Not with transaction handlers."`
	Batch       int           `arg:"batch" spec:"Batch" default:"100" min:"1" max:"10000" help:"Messages read, handled and committed together."`
	Drain       time.Duration `arg:"drain" spec:"Drain" default:"10s" min:"1ms" help:"How long a stopping process lets running handlers finish."`
	Unknown     string        `arg:"unknown" spec:"Unknown" consts:"UnknownDeadLetter,UnknownSkip" default:"deadletter" enum:"deadletter,skip" help:"The fate of messages of a kind without a handler."`
	UnknownWait time.Duration `arg:"unknown_wait" spec:"UnknownWait" zero:"-1" default:"10m" min:"0s" help:"How long a message that only another version of the consumer takes waits for it; then it is a dead letter."`
	// Constructor, and Event.Publish, are for packages that have a function of the name already.
	Constructor string `arg:"constructor" default:"New and the type's name" form:"function" nodefault:"true" help:"Name of the generated function; for a package that has a function of the default name."`
}

// Event makes a struct an event: a payload with a kind.
type Event struct {
	Source
	Name string `arg:"name" default:"the type's name, words joined by dots" form:"event" nodefault:"true" help:"The kind of the messages; publishers and consumers of all services share it."`
	Key  string `arg:"key" default:"none: the messages of a resource are one key; per=partition spreads them first" form:"path" nodefault:"true" help:"Field, or path of fields (Customer.ID), whose value is the ordering key: it decides on partition and stream."`
	ID   string `arg:"id" default:"none" form:"path" nodefault:"true" help:"Field, or path of fields, whose value is the message's id: a topic takes one event with it in 7 days."`
	// Publish is like Consumer.Constructor.
	Publish string `arg:"publish" default:"Publish and the type's name" form:"function" nodefault:"true" help:"Name of the generated function; for a package that has a function of the default name."`
}

// Lease says how long a silent process keeps what it owns.
type Lease struct {
	Source
	TTL    time.Duration `arg:"ttl" spec:"TTL" default:"15s" min:"1s" max:"24h" help:"How long a silent process keeps its leases."`
	Margin time.Duration `arg:"margin" spec:"Margin" default:"a tenth of ttl, at least 250ms" min:"1ms" help:"How long before the ttl a holder stops believing; at most half the ttl."`
	Grace  time.Duration `arg:"grace" spec:"Grace" default:"0s" min:"0s" help:"How long the leases of a dead process stay untaken beyond the ttl, for effects that cannot be fenced."`
}

// Retry says how failed messages are retried.
type Retry struct {
	Source
	Max    int           `arg:"max" spec:"Retry.Max" default:"8" min:"1" max:"2147483647" help:"Attempts in all before a message becomes a dead letter."`
	Min    time.Duration `arg:"min" spec:"Retry.Min" default:"200ms" min:"1ns" help:"Wait before the second attempt; it doubles from attempt to attempt."`
	Cap    time.Duration `arg:"cap" spec:"Retry.Cap" default:"1m, or min if that is longer" min:"1ns" help:"Longest wait between attempts; at least min."`
	Jitter float64       `arg:"jitter" spec:"Retry.Jitter" zero:"-1" default:"0.2" min:"0" max:"1" help:"Fraction of the wait that is random."`
	Order  string        `arg:"order" spec:"Retry.Order" consts:"OrderKey,OrderBlock,OrderNone" default:"key" enum:"key,block,none" help:"Messages that wait with a failed one: later ones of its key, the whole resource, or none."`
}

// DLQ bounds the dead letters that are kept.
type DLQ struct {
	Source
	Keep time.Duration `arg:"keep" spec:"DeadLetters.Keep" default:"0s, for ever" min:"0s" help:"How long dead letters are kept."`
	Max  int           `arg:"max" spec:"DeadLetters.Max" default:"0, no bound; on Redis 10000" min:"0" max:"2147483647" help:"How many dead letters are kept; the oldest go first, counted and logged."`
}

// Once makes a consumer execute each item once, whatever number of messages it comes in.
type Once struct {
	Source
	Key       string        `arg:"key" required:"true" form:"path" nodefault:"true" help:"Field, or path of fields, of every event handled, whose value names the item."`
	OnUnknown string        `arg:"on_unknown" default:"retry" enum:"retry,park" help:"The fate of an item whose execution a crash cut off: executed again, or made a dead letter."`
	Keep      time.Duration `arg:"keep" spec:"OnceKeep" default:"0s, for ever" min:"0s" help:"How long executed items are remembered."`
}

// Table makes a consumer read a table of the application instead of leasegen's log.
type Table struct {
	Source
	Name     string   `arg:"name" required:"true" form:"table" nodefault:"true" help:"The table, with its schema, as the database stores them: app.outbox; without a schema it is in public."`
	Schema   []string `arg:"schema" required:"true" form:"files" nodefault:"true" help:"Folders of migrations, or .sql files, from the module's root, with commas between; ../ leads into the repository."`
	Position string   `arg:"position" default:"id" form:"column" nodefault:"true" help:"Column of integers that rise from row to row: an identity or serial column."`
	XID      string   `arg:"xid" default:"xid" form:"column" nodefault:"true" help:"Column of type xid8 that defaults to pg_current_xact_id(): it tells rows that were committed late."`
	Topic    string   `arg:"topic" default:"none; required with per=topic" form:"column" nodefault:"true" help:"Column that names a row's topic."`
	Key      string   `arg:"key" default:"none: all rows are one key; required with per=partition" form:"column" nodefault:"true" help:"Column with a row's ordering key."`
	Kind     string   `arg:"kind" default:"none" form:"column" nodefault:"true" help:"Column that names what has happened; the handler finds it in Message.Kind."`
	Where    string   `arg:"where" default:"none: every row is a message" form:"where" nodefault:"true" help:"SQL condition on the columns. Rows that do not meet it when they are read are passed over for ever."`
	Slots    int      `arg:"slots" default:"256" min:"1" max:"16384" nodefault:"true" help:"With per=partition: how many partitions keys are spread over. Not to be changed once it has run."`
	Package  string   `arg:"package" default:"leasedb" form:"package" nodefault:"true" help:"Folder and package, below the consumer's, of the generated queries and the row's type."`
}

// Redis makes a consumer read Redis streams that others write to instead of leasegen's log.
type Redis struct {
	Source
	Streams []string `arg:"streams" required:"true" form:"streams" nodefault:"true" help:"The keys of the streams, separated by commas. With per=topic each is a topic of its own."`
	Kind    string   `arg:"kind" default:"kind; a single method takes every entry" form:"field" nodefault:"true" help:"Field of an entry that names what has happened; it decides which method takes the entry."`
	Key     string   `arg:"key" default:"key" form:"field" nodefault:"true" help:"Field with an entry's ordering key; entries without it are one key."`
	Payload string   `arg:"payload" default:"payload" form:"field" nodefault:"true" help:"Field with the message as JSON; of an entry without it, all fields make a JSON object of strings."`
}

// Defaults holds, for all consumers of a package, what their own directives leave open.
// Its arguments are those of the other directives with their name before them, as in
// lease_ttl=15s.
type Defaults struct {
	Source
	Consumer Consumer `prefix:"consumer"`
	Lease    Lease    `prefix:"lease"`
	Retry    Retry    `prefix:"retry"`
	DLQ      DLQ      `prefix:"dlq"`
	Once     Once     `prefix:"once"`
}

// Annotations are the directives of one consumer. Those that it does not have are zero.
type Annotations struct {
	Consumer *Consumer
	Lease    *Lease
	Retry    *Retry
	DLQ      *DLQ
	Once     *Once
	Table    *Table // nil: the consumer does not read a table
	Redis    *Redis // nil: the consumer does not read streams of others
}

// Source remembers where each argument was set. A value taken over from
// //leasegen:defaults points there.
type Source struct {
	Directive directive.Directive
	set       map[string]origin
}

// origin is one argument that was set, in the directive it was set in.
type origin struct {
	directive directive.Directive
	arg       directive.Arg
}

// Given reports whether the directive itself stands at the declaration.
func (s *Source) Given() bool { return s.Directive.Name != "" }

// Own reports whether the argument was set here, not by defaults.
func (s *Source) Own(key string) bool {
	o, ok := s.set[key]
	return ok && o.directive.Name == s.Directive.Name
}

// Has reports whether the argument was set, here or by defaults.
func (s *Source) Has(key string) bool {
	_, ok := s.set[key]
	return ok
}

// Text returns the value of an argument as it is written, empty if it was not set.
func (s *Source) Text(key string) string { return s.set[key].arg.Value }

// Span returns the start and end of an argument's value; for one that was not set,
// those of the directive's name.
func (s *Source) Span(key string) (pos, end token.Position) {
	if o, ok := s.set[key]; ok {
		return o.directive.Position(o.arg.ValuePos), o.directive.Position(o.arg.End)
	}
	d := s.Directive
	return d.Position(d.Pos), d.Position(d.NamePos + token.Pos(len(d.Name)))
}

// Finding is one about the value of an argument, or, if it was not set, about the directive.
func (s *Source) Finding(code, key, message, hint string, related ...diag.Related) diag.Diagnostic {
	pos, end := s.Span(key)
	return diag.Diagnostic{Code: code, Pos: pos, End: end, Message: message, Hint: hint, Related: related}
}
