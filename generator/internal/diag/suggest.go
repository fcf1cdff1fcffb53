package diag

import (
	"fmt"
	"slices"
	"strings"
)

// Suggest says what was allowed instead of word: `did you mean "ttl"? known: grace,
// margin, ttl`. The question is left out when no known name is within two edits.
func Suggest(word string, known []string) string {
	sorted := slices.Sorted(slices.Values(known))
	if len(sorted) == 0 {
		return ""
	}
	list := "known: " + strings.Join(sorted, ", ")
	if best, ok := Closest(word, sorted); ok {
		return fmt.Sprintf("did you mean %q? %s", best, list)
	}
	return list
}

// Closest returns the known word with the fewest edits from word, ignoring case, if it
// is at most two away (one for words of up to three letters).
func Closest(word string, known []string) (string, bool) {
	if len(word) > 64 {
		return "", false
	}
	word = strings.ToLower(word)
	limit := min(2, max(1, len(word)/2))
	best, found := "", false
	for _, k := range known {
		if d := distance(word, strings.ToLower(k)); d <= limit {
			best, found, limit = k, true, d-1
		}
	}
	return best, found
}

// distance counts insertions, deletions, substitutions and swaps of neighbours.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
