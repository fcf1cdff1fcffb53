package sqltext

import (
	"slices"
	"strings"
	"testing"
)

func TestTokens(t *testing.T) {
	for text, want := range map[string]string{
		`CREATE TABLE "Order" (id int)`:                 `create table "Order" ( id int )`,
		`select 'it''s', E'a\'b', $$x;y$$, $t$a$$b$t$;`: `select 'it's' , 'a'b' , 'x;y' , 'a$$b' ;`,
		"a -- one ; two\nb /* c /* d */ ; */ e":         "a b e",
		`"a""b".c`:                                      `"a"b" . c`,
		`x::int[] >= 1_000.5`:                           `x : : int [ ] > = 1_000.5`,
		`SELECT 'open`:                                  `select !'open`,
		`é_1 $1`:                                        `é_1 $ 1`,
	} {
		var got []string
		for _, tok := range Tokens(text) {
			switch {
			case tok.Kind == Unterminated:
				tok.Text = "!" + tok.Text
			case tok.Kind == String:
				tok.Text = "'" + tok.Text + "'"
			case tok.Quoted:
				tok.Text = `"` + tok.Text + `"`
			}
			got = append(got, tok.Text)
		}
		if joined := strings.Join(got, " "); joined != want {
			t.Errorf("%s\ngot  %s\nwant %s", text, joined, want)
		}
	}
}

func TestConditionProblem(t *testing.T) {
	for _, good := range []string{
		"status = 'ready'", "a @> '{\"b\": 1}'::jsonb", "body ? 'x'", "amount > 0 AND (b OR NOT c)", "note = 'a;b -- c'",
		"kind = ANY (ARRAY['a', 'b'])", `"select" = 1`, "x.update = 2", "d = date '2020-01-01'",
	} {
		if why := ConditionProblem(good); why != "" {
			t.Errorf("%s: %s", good, why)
		}
	}
	for _, bad := range []string{
		"", "  ", "a; b", "a -- b", "a /* b */", "a = $1", "a = @b", "sqlc.arg(a)", "(a", "a)", "a = 'b", "a IN (SELECT 1)",
		"lg_item = 1", "$$a", "true) OR (true",
	} {
		if ConditionProblem(bad) == "" {
			t.Errorf("%q is allowed", bad)
		}
	}
}

func TestColumnsOf(t *testing.T) {
	for text, want := range map[string]string{
		"status = 'ready' AND n > 0":                                   "status n",
		"lower(kind) LIKE 'a%' OR body->>'x' IS NOT NULL":              "kind body",
		"at > date '2020-01-01' AND x::text = 'y' AND CAST(b AS text)": "x b",
		"extract(epoch from made) > 3 AND made < current_timestamp":    "made",
		`"at" = 1 AND deleted_at IS NULL AND a IN ('b')`:               "at deleted_at a",
	} {
		if got := ColumnsOf(text); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s: %v, want %s", text, got, want)
		}
	}
}

func FuzzTokens(f *testing.F) {
	for _, s := range []string{"'", "$a$", `"a""`, "/*/*", "E'\\", "--", "$", "a$b$c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		Tokens(text)
		ConditionProblem(text)
		ColumnsOf(text)
	})
}
