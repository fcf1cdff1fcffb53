package leaseredis

import (
	"fmt"
	"testing"
)

// unreadItems are topics of which none was read.
func unreadItems(name string, n int) (items []*fetchedItem) {
	for i := range n {
		it := &fetchedItem{ins: make([]input, 1), reads: []*read{{key: fmt.Sprint(name, i)}}}
		it.Limit = 20
		items = append(items, it)
	}
	return items
}

// readUnread plays a Fetch of streams that have n entries of that size each. It returns how many rounds there were until each was
// read, and the most entries that one round asked for.
func readUnread(s *sizes, items []*fetchedItem, n, size int) (rounds, most int) {
	r := s.ration()
	for len(items) > 0 {
		upto := r.plan(items, s)
		if upto == 0 {
			return rounds, most
		}
		asked := 0
		for _, it := range items[:upto] {
			asked += it.now[0].count
			for range min(n, it.now[0].count) {
				it.now[0].entries = append(it.now[0].entries, entry{body: make([]byte, size)})
			}
		}
		r.spent(items[:upto], s)
		items, rounds, most = items[upto:], rounds+1, max(most, asked)
	}
	return rounds, most
}

// Small entries in many streams let the next Fetch read as many at once; large ones do not, nor do small ones that were read a while ago.
func TestStreamsThatWereNotReadAreReadAsTheOthersLetExpect(t *testing.T) {
	s := &sizes{of: map[string]sized{}}
	if rounds, _ := readUnread(s, unreadItems("a", 1000), 5, 200); rounds > 7 {
		t.Errorf("the first Fetch of 1000 small streams took %d rounds", rounds)
	}
	if rounds, most := readUnread(s, unreadItems("b", 1000), 5, 200); rounds > 5 || most > 2048 {
		t.Errorf("the second one took %d rounds of up to %d entries", rounds, most)
	}
	if rounds, most := readUnread(s, unreadItems("c", 250), 5, 200); rounds > 2 || most <= fetchStreams {
		t.Errorf("250 streams took %d rounds of up to %d entries: the first did not let the second read more of each", rounds, most)
	}
	if _, most := readUnread(s, unreadItems("large", 250), 1, 1<<20); most > fetchStreams+fetchUnread {
		t.Errorf("after small entries %d large ones were asked for at once", most)
	}
	readUnread(s, unreadItems("small", 1000), 5, 200) // they let the next expect small ones
	s.at = s.at.Add(-fetchTrust)
	if _, most := readUnread(s, unreadItems("d", 20), 5, 200); most > 2*fewOf(fetchSmall) {
		t.Errorf("after a while %d entries were read in a round", most)
	}
	readUnread(s, unreadItems("e", 1), 1, 1<<20)
	if rounds, most := readUnread(s, unreadItems("f", 100), 1, 1<<20); rounds < 2 || most*(1<<20) > fetchBytes {
		t.Errorf("after a large entry %d were read at once", most)
	}
	s = &sizes{of: map[string]sized{}}
	if _, most := readUnread(s, unreadItems("g", 100), 2, fetchUnknown); most*fetchUnknown > fetchBytes {
		t.Errorf("first %d large entries were read at once", most)
	}
}
