// Package pgtable is what generated code says to package leasepg of a table of the application that a consumer reads
// (//leasegen:table). Programs do not call it.
package pgtable

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Source makes a consumer read a table of the application instead of leasegen's log:
// its rows are the messages. Generated code fills it in, with functions around the queries
// that sqlc has made for that table, and sets it as lease.Spec.Source.
//
// The table is read with the same cursor as the log, so it has to keep the log's two rules:
// every insert draws its xid before its position, and positions are drawn one by one. What
// is not so is reported by Register, with the statement that fixes it.
//
// The functions are called by many goroutines at once.
type Source struct {
	// Table is the table's schema and name, as in app.outbox.
	Table string
	// Position, XID and Topic are columns: the increasing number, the xid8, and the one whose
	// values are the resources of a PerTopic consumer (empty for others).
	Position, XID, Topic string
	// Slots is how many partitions a PerPartition consumer has, Key the column whose hash
	// decides, and Slot the expression that gives a row's; zero for others.
	Slots     int
	Key, Slot string
	// Filtered says that rows are left out, so that positions without a message are passed.
	Filtered bool

	// Now returns the table's present: a cursor behind all that is there.
	Now func(context.Context, Querier) (Now, error)
	// News tells which resources have rows that a cursor has not passed.
	News func(context.Context, Querier, NewsParams) ([]News, error)
	// Topics lists the resources of a PerTopic consumer; nil for others.
	Topics func(context.Context, Querier) ([]string, error)
	// Heads returns how far a read of many resources goes, and Read its rows. Both are
	// called in one snapshot, with the same parameters.
	Heads func(context.Context, Querier, HeadsParams) ([]Head, error)
	Read  func(context.Context, Querier, ReadParams) ([]Row, error)
	// Rows returns the rows at the positions given, with a copy as JSON.
	Rows func(context.Context, Querier, []int64) ([]Row, error)
}

// Querier is what code made by sqlc runs queries on.
type Querier interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	Query(context.Context, string, ...any) (pgx.Rows, error)
	QueryRow(context.Context, string, ...any) pgx.Row
}

// Now is the present of a table.
type Now struct {
	Position int64  // the greatest one
	Snap     string // of the statement
	X        string // an xid drawn after Snap
	Foreign  bool   // rows carry xids of another cluster
}

// NewsParams is a cursor and how many rows beyond it to look at.
type NewsParams struct {
	Position int64
	Max      int64
	Late     []string // xids
}

// News is a resource with news, or, with Snap, how far the statement has looked.
type News struct {
	Resource string
	Snap     string
	Position int64
	X        string // empty when there is none beyond the cursor
}

// HeadsParams are resources and how far each has been read. Scan is how many rows of
// one resource are looked at.
type HeadsParams struct {
	Items     []int32
	Resources []string
	Positions []int64
	Scan      int64
}

// Head is how far a read of one resource goes.
type Head struct {
	Item   int32
	Top    int64  // position of the last row looked at; 0 when there is none
	Looked int64  // rows looked at
	Snap   string // of the statement
	X      string // an xid drawn after Snap; empty when there is no row
}

// ReadParams asks for the rows of many resources: those that were late, which are found
// by xid; further pages of such; and those beyond a position.
type ReadParams struct {
	LateItems     []int32
	LateResources []string
	LateUpto      []int64
	LateXids      []string
	LateLimits    []int64

	PagedItems     []int32
	PagedResources []string
	PagedAfter     []int64
	PagedUpto      []int64
	PagedSnaps     []string
	PagedLateSnaps []string
	PagedLimits    []int64

	Items     []int32
	Resources []string
	Positions []int64
	Limits    []int64
	Scan      int64
}

// Row is a row as a message. Part and Item are set by Read, JSON by Rows.
type Row struct {
	Part, Item       int32
	Position         int64
	Topic, Key, Kind string
	JSON             string
	Row              any // sqlc's type, or an error in its place
}

// Rows converts what a generated query returned.
func Rows[A, B any](rows []A, err error, convert func(A) B) ([]B, error) {
	if err != nil {
		return nil, err
	}
	out := make([]B, len(rows))
	for i := range rows {
		out[i] = convert(rows[i])
	}
	return out, nil
}
