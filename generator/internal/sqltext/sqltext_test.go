package sqltext

import (
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
		"kind = ANY (ARRAY['a', 'b'])", `"select" = 1`, "x.update = 2", "d = date '2020-01-01'", "made::timestamp with time zone > now()", "update = 1",
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

func FuzzTokens(f *testing.F) {
	for _, s := range []string{"'", "$a$", `"a""`, "/*/*", "E'\\", "--", "$", "a$b$c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		Tokens(text)
		ConditionProblem(text)
	})
}
