// Package rows has the rules of the contract for backends that keep each session and each lease whole: in memory, in a file,
// as documents. [Rows] are that state with the methods that change it; the backend adds the clock, the messages and the
// storing. Package leasemem and examples/filebackend are built on it; servers that have a language of their own are not.
package rows

import (
	"iter"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

// Rows are the sessions, consumers, leases and dead letters of a backend that keeps each of them whole: in memory, in a
// file, as documents. Their methods are those of Ownership, Log and Commits that bear the same names, and do what the
// contract says of them at the time At. The backend has the clock, the messages, and the step in which rows change
// together: a method that returns an error may have noted in the rows that a session has expired, and no other change.
//
// Rows go through JSON. They are not for concurrent use, and what they return is the caller's. Of their arguments they
// keep slices and maps.
type Rows struct {
	At        time.Time                    // the present, which the backend sets
	Sessions  map[string]*Session          `json:",omitempty"` // by id; the dead too, until they are forgotten
	Consumers map[string]*Consumer         `json:",omitempty"` // by name
	Leases    map[string]map[string]*Lease `json:",omitempty"` // by consumer and resource
	Dead      map[string]*Dead             `json:",omitempty"` // by consumer and message
	Changed   *Rows                        `json:"-"`          // if not nil, it gets the rows that methods change
	Log       Messages                     `json:"-"`          // the backend's

	// Handovers and Replays rise with each change that a feed reports as News.Ownership and News.Parked. Changes that time alone
	// changes is not among it.
	Handovers, Replays int `json:"-"`
}

// Messages is a log as Rows need it.
type Messages interface {
	// Message returns the message of that id, or nil.
	Message(id string) Message
	// Unread yields the messages of a resource after a position that match the consumer's patterns; those of a topic
	// need not.
	Unread(c backend.ConsumerInfo, resource string, from Position) iter.Seq2[Position, Message]
}

// Message is a message as the backend keeps it.
type Message interface {
	// Raw copies it, without a payload of more than maxPayload bytes.
	Raw(maxPayload int) backend.Raw
}

// Session is a session.
type Session struct {
	backend.SessionSpec
	Opened, Beat, Expires time.Time
	Ended                 bool // closed, replaced, or found to have expired
}

// Consumer is a consumer as it was registered last, with the patterns of all its members.
type Consumer struct {
	backend.ConsumerInfo
	Start  Position             // where new resources begin
	Wanted map[string]time.Time // the patterns, and when a member was last seen to have them
	Paused time.Time            `json:",omitzero"` // since when; zero: it is not
}

// Lease is a resource of a consumer.
type Lease struct {
	backend.Ref
	Cursor           Position
	Idle             bool      // a stream that is not wanted: see Streamer
	Session, Attempt string    // of the Acquire that took it; empty when it was given back. The session may be dead.
	Since            time.Time // when it was taken or given back last
	Expires          time.Time // of a lease with LockRow; else zero
	Seq              int64     // of the last progress in this epoch
	Parked           []*Parked // in the order in which they were parked first
	LastParked       int64     // the greatest Number so far
	Suspicion        int
	Mark             string
	MarkCount        int
	MarkEpoch        int64 // the last one that set the mark
}

// Position is a Cursor of a log whose messages are numbered from 1: the number of the last one passed.
type Position int64

// Parked is a parked message.
type Parked struct {
	backend.Park
	Number      int64 // rises in the order in which messages of the lease are parked first
	Due         time.Time
	FirstFailed time.Time // zero until it failed
	Since       time.Time // when it was set aside, or its Attempt or Error last changed
	Message     Message   `json:"-"` // nil: the log still has it
}

// Dead is a dead letter. Its payload and headers are those of the message.
type Dead struct {
	operate.DeadLetterInfo
	Message Message `json:"-"` // nil: the log still has it
}

// New returns the rows of an empty store.
func New() *Rows {
	return &Rows{Sessions: map[string]*Session{}, Consumers: map[string]*Consumer{},
		Leases: map[string]map[string]*Lease{}, Dead: map[string]*Dead{}}
}

// Merge puts the rows of one that was Changed in their place. Nil is a row that is gone.
func (r *Rows) Merge(changed *Rows) {
	merge(r.Sessions, changed.Sessions)
	merge(r.Consumers, changed.Consumers)
	merge(r.Dead, changed.Dead)
	for consumer, leases := range changed.Leases {
		if r.Leases[consumer] == nil {
			r.Leases[consumer] = map[string]*Lease{}
		}
		merge(r.Leases[consumer], leases)
	}
}

func merge[Row any](table, rows map[string]*Row) {
	for key, row := range rows {
		if table[key] = row; row == nil {
			delete(table, key)
		}
	}
}

// Save stores a lease, which may be new.
func (r *Rows) Save(consumer string, l *Lease) {
	for _, rows := range []*Rows{r, r.Changed} {
		if rows == nil {
			continue
		}
		if rows.Leases[consumer] == nil {
			rows.Leases[consumer] = map[string]*Lease{}
		}
		rows.Leases[consumer][l.Resource] = l
	}
}

func (r *Rows) saveSession(id string, s *Session) {
	if merge(r.Sessions, map[string]*Session{id: s}); r.Changed != nil {
		r.Changed.Sessions[id] = s
	}
}

func (r *Rows) saveConsumer(c *Consumer) {
	if r.Consumers[c.Name] = c; r.Changed != nil {
		r.Changed.Consumers[c.Name] = c
	}
}

func (r *Rows) saveDead(id string, d *Dead) {
	if merge(r.Dead, map[string]*Dead{id: d}); r.Changed != nil {
		r.Changed.Dead[id] = d
	}
}
