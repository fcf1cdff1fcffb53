package leasepg

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// reserved are the words of PostgreSQL that name no column or table without quotes, up to PostgreSQL 18.
const reserved = ` all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation column ` +
	`concurrently constraint create cross current_catalog current_date current_role current_schema current_time current_timestamp ` +
	`current_user default deferrable desc distinct do else end except false fetch for foreign freeze from full grant group having ` +
	`ilike in initially inner intersect into is isnull join lateral leading left like limit localtime localtimestamp natural not ` +
	`notnull null offset on only or order outer overlaps placing primary references returning right select session_user similar some ` +
	`symmetric system_user table tablesample then to trailing true union unique user using variadic verbose when where window with `

// ident is a name for a statement that people read, in quotes where it needs them.
func ident(name string) string {
	plain := name != "" && !strings.Contains(reserved, " "+name+" ")
	for i, r := range name {
		plain = plain && ('a' <= r && r <= 'z' || r == '_' || i > 0 && '0' <= r && r <= '9')
	}
	if plain {
		return name
	}
	return pgx.Identifier{name}.Sanitize()
}

// printed is the table's name, as ident has it.
func (t *tableSource) printed() string {
	schema, name, _ := strings.Cut(t.Table, ".")
	return ident(schema) + "." + ident(name)
}
