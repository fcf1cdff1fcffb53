package leaseredis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
)

// streams tells what the log and the streams of applications have for a reader: the keys to read, how far they go and how much of them is
// unread.
type streams struct {
	*sessions
	seen  atomic.Int64 // the highest id of a message that this process has published or read
	reads streamReads
}

// streamInfo is what the server reports of a stream without its entries.
type streamInfo struct {
	there   bool
	other   bool     // the key holds something else
	last    position // the last id that was ever given
	top     position // of the last entry
	first   position // of the first entry; zero, as top, when it is empty
	length  int64
	counted bool     // added and deleted are known: the server is Redis 7 or newer
	added   int64    // entries ever added
	deleted position // the greatest id that was deleted
}

const (
	describeKeys  = 100     // in one script call
	describeBytes = 1 << 20 // of entries that XINFO reads, in one script call
)

// describe reports streams under one tag, or of applications' (tag below 0), and the server's time in µs when it did.
func (st *streams) describe(ctx context.Context, tag int, keys []string) (infos []streamInfo, now int64, err error) {
	most := describeKeys
	if tag < 0 && st.clustered() {
		most = 1 // they may lie on different nodes
	}
	infos = make([]streamInfo, 0, len(keys))
	for rest := keys; len(rest) > 0; {
		var steps []step
		for at := rest; len(at) > 0 && len(steps) < describeKeys; {
			n := min(most, len(at))
			steps = append(steps, step{tag: tag, script: scripts.describe, args: []any{describeBytes}, keys: at[:n]})
			if at = at[n:]; most > 1 {
				break // the next call begins where this one stops
			}
		}
		for i, a := range st.runAll(ctx, steps) {
			reply := list(a.value)
			if a.err != nil || len(reply) < 2 {
				return nil, 0, unexpected(a)
			}
			now = number(reply[0])
			for j, v := range reply[1:] {
				if l := list(v); len(l) == 1 && !strings.Contains(text(l[0]), "WRONGTYPE") {
					return nil, 0, fmt.Errorf("look at stream %q: %w", steps[i].keys[j], errors.New(text(l[0])))
				}
				infos = append(infos, streamInfoOf(list(v)))
			}
			rest = rest[len(reply)-1:]
		}
	}
	return infos, now, nil
}

func streamInfoOf(l []any) streamInfo {
	if len(l) < 6 {
		return streamInfo{other: len(l) == 1}
	}
	return streamInfo{
		there: true, last: parsePosition(text(l[0])), top: parsePosition(text(l[1])), first: parsePosition(text(l[2])),
		length: number(l[3]), counted: text(l[5]) != "", added: number(l[4]), deleted: parsePosition(text(l[5])),
	}
}

// The bounds of one script call that counts entries.
const (
	countRows  = 2000
	countBytes = 1 << 20
	countMost  = 10_000 // entries of one stream that are counted, before their number is estimated
)

// countBetween counts entries from one id to another, up to countMost or so many bytes, and tells which is the
// last of them, and whether that is all.
func (st *streams) countBetween(ctx context.Context, tag int, key, from, to string, rows int) (n int64, last position, whole bool, err error) {
	for {
		a := st.runAll(ctx, []step{{tag: tag, script: scripts.count, keys: []string{key},
			args: []any{from, to, min(int64(rows)-n, countRows), countBytes}}})[0]
		l := list(a.value)
		if a.err != nil || len(l) != 3 {
			return 0, position{}, false, unexpected(a)
		}
		n += number(l[0])
		if number(l[0]) > 0 {
			last = parsePosition(text(l[1]))
		}
		if number(l[2]) == 1 || n >= int64(rows) {
			return n, last, number(l[2]) == 1, nil
		}
		from = last.after()
	}
}

// behind counts the entries of a stream that follow a position, and tells when the first of them was added, as its id says.
func (st *streams) behind(ctx context.Context, tag int, key string, s streamInfo, at position) (n int64, first position, err error) {
	switch {
	case s.length == 0 || at.compare(s.top) >= 0:
		return 0, position{}, nil
	case at.compare(s.first) < 0:
		return s.length, s.first, nil
	}
	if n, first, _, err = st.countBetween(ctx, tag, key, at.after(), "+", 1); err != nil || n == 0 {
		return 0, position{}, err
	}
	// Passed entries that are still there are mostly few: a log is trimmed.
	passed, _, whole, err := st.countBetween(ctx, tag, key, "-", at.id(), countMost)
	if err != nil {
		return 0, position{}, err
	}
	if whole {
		return max(s.length-passed, 1), first, nil
	}
	left, _, whole, err := st.countBetween(ctx, tag, key, at.after(), "+", countMost)
	if err != nil || whole {
		return left, first, err
	}
	of := float64(s.top.ms-first.ms) / float64(max(s.top.ms-s.first.ms, 1))
	return max(left, int64(float64(s.length)*of)), first, nil
}
