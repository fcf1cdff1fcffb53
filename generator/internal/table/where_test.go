package table

import (
	"errors"
	"testing"

	"github.com/leasegen/leasegen/generator/internal/sqlc"
	"github.com/leasegen/leasegen/internal/sqlctest"
)

// TestConditions: PostgreSQL's grammar says what a condition is, and what cannot be one on these columns is refused.
func TestConditions(t *testing.T) {
	runner, err := sqlc.Find(t.Context(), sqlctest.Path(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	columns := []sqlc.Column{{Name: "status", Type: "text"}, {Name: "amount", Type: "int4"}, {Name: "price", Type: "numeric"}, {Name: "made", Type: "timestamptz"},
		{Name: "OrderID", Type: "uuid"}, {Name: "body", Type: "jsonb"}, {Name: "tags", Type: "text", Array: true}, {Name: "flag", Type: "bool"},
		{Name: "mood", Type: "app.mood", Values: []string{"happy", "sad"}}, {Name: "precision", Type: "int4"}, {Name: "addr", Type: "app.addr"}, {Name: "day", Type: "date"}}
	for text, want := range map[string]string{
		// Refused before, by words that were taken for columns or for statements.
		"amount::double precision > 1":                                                                  "",
		"made::timestamp with time zone > now() - interval '1' day":                                     "",
		"made::timestamp without time zone > timestamp '2020-01-01'":                                    "",
		"substring(status from 1 for 2) = 'ab'":                                                         "",
		"trim(both 'x' from status) = 'a' AND position('a' in status)>1":                                "",
		"overlay(status placing 'a' from 1) = 'b'":                                                      "",
		"cast(amount as double precision) > 1.5":                                                        "",
		"status is nfc normalized":                                                                      "",
		"status::character varying(3) = 'abc'":                                                          "",
		"extract(epoch from made) > 3 and made at time zone 'utc' < now() and made < current_timestamp": "",
		"case when flag then true else false end":                                                       "",
		"(addr).city = 'x'":                                                                             "",
		"\"precision\" = 1 and precision = 2":                                                           "",
		"status collate \"C\" < 'a'":                                                                    "",
		"\"OrderID\" = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'":                                          "",
		"body @> '{\"b\": 1}' and body ? 'x' and body->>'kind' = 'paid' and tags @> array['x'] and amount = any (array[1, 2])": "",
		"flag and not flag is true or coalesce(flag, false) or starts_with(status, 'a')":                                       "",
		"mood = 'happy' and mood in ('sad') and price between 1 and 2.5 and amount in (1, 2) and amount = '1'":                 "",
		"day <= made and amount < price and status || 'x' = 'yx' and amount + 1 > 2 and status is distinct from null":          "",
		// Accepted before.
		"status":                   "the condition, or a part of it, is of type text, not boolean",
		"amount + 1":               "the condition, or a part of it, is of type number, not boolean",
		"flag and 1":               "the condition, or a part of it, is of type number, not boolean",
		"flag or body->'x'":        "the condition, or a part of it, is of type json, not boolean",
		"status::text":             "the condition, or a part of it, is of type text, not boolean",
		"status = 5":               "the condition compares a text with a number",
		"status > amount":          "the condition compares a text with a number",
		"amount = 'abc'":           "the condition compares a number with 'abc'",
		"not amount in (1, 'abc')": "the condition compares a number with 'abc'",
		"flag = 1":                 "the condition compares a bool with a number",
		"flag = 'maybe'":           "the condition compares a bool with 'maybe'",
		"\"OrderID\" = 'x1'":       "the condition compares a uuid with 'x1'",
		"mood = 'hapy'":            "the condition compares column mood with 'hapy', which is none of its values",
		"tags = 1":                 "the condition compares an array with a number",
		"made between 1 and 2":     "the condition compares a time with a number",
		"status = null":            "a comparison with NULL is never true",
		"o.status = 'a'":           "the condition names o.status",
		"other.status = 'a'":       "the condition names other.status",
		"outbox.* is null":         "the condition names outbox.*",
		"count(*) > 1":             "count is not about one row",
		"sum(amount) over () > 1":  "sum is not about one row",
		"unnest(tags) = 'a'":       "unnest is not about one row",
		"true":                     "the condition names no column of app.outbox, so that it is the same for every row",
		"1 = 2":                    "the condition names no column of app.outbox, so that it is the same for every row",
		"amount in (values (1))":   "the condition holds a subquery: it is about the row alone",
		"exists (table x)":         "the condition holds a subquery: it is about the row alone",
		// Columns.
		"state = 'a'":             "table app.outbox has no column state",
		"lower(state) = 'a'":      "table app.outbox has no column state",
		"state::text = 'a'":       "table app.outbox has no column state",
		"OrderID = 'x'":           "table app.outbox has no column orderid",
		"flag = any (array[nay])": "table app.outbox has no column nay",
		// No text leaves the condition.
		"status = = 'a'":                        `syntax error at or near "="`,
		"true) or (true":                        `syntax error at or near ")"`,
		"flag])[1] or (array[flag":              "the condition is not one expression",
		"flag])::t(array[flag":                  "the condition is not one expression",
		"flag, flag":                            "the condition is not one expression",
		"flag order by 1":                       `syntax error at or near "order"`,
		"flag])[1]; select (array[flag":         "the condition is more than one statement",
		"flag -- ":                              "syntax error at end of input",
		"flag /*":                               "unterminated /* comment at or near \"/*])[1]\"",
		"status = 'a":                           "unterminated quoted string at or near \"'a])[1]\"",
		"e\u0301E'\\' or flag])[1] or (array['": "unterminated quoted string at or near \"'])[1]\"",
	} {
		got := ""
		tree, err := runner.Condition(t.Context(), text)
		if problems, refused := errors.AsType[sqlc.Problems](err); refused {
			got = problems[0].Message
		} else if err != nil {
			t.Fatal(err)
		} else if found := wrong(tree, "app.outbox", columns); len(found) > 0 {
			got = found[0].message
			if len(found) > 1 || found[0].hint == "" {
				t.Errorf("%s: %q", text, found)
			}
		}
		if got != want {
			t.Errorf("%s\ngot  %s\nwant %s", text, got, want)
		}
	}
}
