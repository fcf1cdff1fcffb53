package leasepg

import (
	"context"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/leasegen/leasegen/runtime/leasepg/pgtable"
)

// rowsOf runs a generated query that returns rows of the application's table. A row with a value that does not
// fit the type that was generated for its column, a NULL that a later migration allows, for example, has the reason in place of
// its content: it becomes a dead letter, and the rows beside it are handled.
func rowsOf(db pgtable.Querier, query func(pgtable.Querier) ([]pgtable.Row, error)) ([]pgtable.Row, error) {
	t := tolerant{db, map[int64]error{}}
	rows, err := query(t)
	for i := range rows {
		if unfit := t.unfit[rows[i].Position]; unfit != nil {
			rows[i].Row = unfit
		}
	}
	return rows, err
}

type tolerant struct {
	pgtable.Querier
	unfit map[int64]error // by position
}

func (t tolerant) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := t.Querier.Query(ctx, sql, args...)
	if err != nil {
		return rows, err
	}
	return &tolerantRows{Rows: rows, unfit: t.unfit}, nil
}

// tolerantRows scans as pgx.Rows does, but goes on after a column of the application's whose value does not fit: pgx
// closes the rows. Leasegen's own columns stand before these, the position among them.
type tolerantRows struct {
	pgx.Rows
	unfit map[int64]error
	plans []pgtype.ScanPlan
}

func (r *tolerantRows) Scan(dest ...any) error {
	fields, values := r.FieldDescriptions(), r.RawValues()
	if len(fields) != len(dest) || len(values) != len(dest) {
		return fmt.Errorf("%d columns with %d values are scanned into %d fields: generate again", len(fields), len(values), len(dest))
	}
	if r.plans == nil { // each row has the same types
		for i, d := range dest {
			r.plans = append(r.plans, r.Conn().TypeMap().PlanScan(fields[i].DataTypeOID, fields[i].Format, d))
		}
	}
	var position *int64
	for i, d := range dest {
		err := r.plans[i].Scan(values[i], d)
		switch {
		case err != nil && (position == nil || hopeless(r.plans[i], values[i])):
			return fmt.Errorf("%w; its type is not known to the connection, or has changed: register it in the pool's AfterConnect "+
				"(LoadType and RegisterType), or generate again", pgx.ScanArgError{ColumnIndex: i, FieldName: fields[i].Name, Err: err})
		case err != nil:
			want := reflect.TypeOf(d).Elem()
			if values[i] == nil {
				r.unfit[*position] = fmt.Errorf("column %s: is NULL, want %s", fields[i].Name, want)
			} else {
				r.unfit[*position] = fmt.Errorf("column %s: its value does not fit %s", fields[i].Name, want)
			}
			return nil
		case position == nil && fields[i].Name == "position":
			position, _ = d.(*int64)
		}
	}
	return nil
}

// hopeless reports that no value of a column's type can be scanned. Every row would fail, so the consumer waits instead.
// pgtype has two such plans: noPlan for a type that it cannot turn into the field's, and scannerPlan, which hands a field that
// scans by itself (pgtype.UUID, for example) a value of the wrong codec. A NULL does not show the type.
func hopeless(plan pgtype.ScanPlan, value []byte) bool {
	switch reflect.TypeOf(plan) {
	case noPlan:
		return true
	case scannerPlan:
		return value != nil
	}
	return false
}

var (
	noPlan      = reflect.TypeOf(pgtype.NewMap().PlanScan(0, pgx.BinaryFormatCode, new(chan int)))
	scannerPlan = reflect.TypeOf(pgtype.NewMap().PlanScan(pgtype.Int8OID, pgx.BinaryFormatCode, new(pgtype.UUID)))
)
