package leasesql

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"time"
)

// texts makes of each argument what every driver sends as it is: slices become PostgreSQL's text of an array.
func texts(args []any) ([]any, error) {
	out := make([]any, len(args))
	for i, a := range args {
		switch a := a.(type) {
		case string, int64:
			out[i] = a
		case []string:
			out[i] = array(a, size(a, 0, 4), quoted)
		case [][]byte:
			out[i] = array(a, size(a, 0, 7)+size(a, 0, 0), hexadecimal)
		case []int64:
			out[i] = array(a, 8*len(a), integer)
		case []time.Time:
			out[i] = array(a, 32*len(a), timestamp)
		default:
			return nil, fmt.Errorf("leasesql: a statement has an argument of type %T, which this version does not send", a)
		}
	}
	return out, nil
}

// size is how many bytes the elements have, with so many more for each.
func size[T string | []byte](elements []T, n, more int) int {
	for _, e := range elements {
		n += len(e) + more
	}
	return n
}

// array is the text of an array, of about n bytes.
func array[T any](elements []T, n int, write func([]byte, T) []byte) string {
	text := append(make([]byte, 0, n+2), '{')
	for i, e := range elements {
		if i > 0 {
			text = append(text, ',')
		}
		text = write(text, e)
	}
	return string(append(text, '}'))
}

func quoted(text []byte, s string) []byte {
	text = append(text, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			text = append(text, '\\')
		}
		text = append(text, s[i])
	}
	return append(text, '"')
}

func hexadecimal(text []byte, b []byte) []byte {
	return append(hex.AppendEncode(append(text, `"\\x`...), b), '"')
}

func integer(text []byte, n int64) []byte { return strconv.AppendInt(text, n, 10) }

// timestamp writes microseconds, the server's precision, cut off and not rounded as pgx does.
func timestamp(text []byte, t time.Time) []byte {
	t = t.UTC()
	if t.Year() < 1 { // long past, like the first year, and with a sign that the server does not read
		t = time.Time{}
	}
	return append(t.AppendFormat(append(text, '"'), "2006-01-02 15:04:05.000000Z"), '"')
}
