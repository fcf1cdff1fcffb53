package leaseredis

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	deadPage      = 200     // dead letters that one script call looks at, or moves,
	deadBytes     = 4 << 20 // and the bytes of these, if it is more than one
	deadMoved     = 1000    // dead letters that are found before they are moved
	reasonsPage   = 1000    // dead letters whose reasons one script call counts
	lastNumber    = 1<<53 - 1
	deadPageLeast = 10
)

// deadLetter is one, and where it is.
type deadLetter struct {
	operate.DeadLetterInfo
	deadPlace
}

// deadPlace is where a dead letter is listed: by its number, which tells when it died, then by its tag.
type deadPlace struct {
	number int64
	tag    int
}

func (p deadPlace) id() string { return strconv.FormatInt(p.number, 10) + "-" + strconv.Itoa(p.tag) }

func (p deadPlace) compare(q deadPlace) int {
	return cmp.Or(cmp.Compare(p.number, q.number), cmp.Compare(p.tag, q.tag))
}

// through is the greatest number under a tag that is listed up to the place, and with it.
func (p deadPlace) through(tag int) int64 {
	if tag > p.tag {
		return p.number - 1
	}
	return p.number
}

// parseDeadID splits the id of a dead letter.
func parseDeadID(id string) (p deadPlace, ok bool) {
	text, rest, found := strings.Cut(id, "-")
	number, err := strconv.ParseInt(text, 10, 64)
	tag, err2 := strconv.Atoi(rest)
	return deadPlace{number, tag}, found && err == nil && err2 == nil && tag >= 0 && number >= 0 && number <= lastNumber
}

// deadSource is what a filter leaves of the dead letters of one consumer under one tag.
type deadSource struct {
	consumer       string
	tag            int
	after, through int64    // the numbers between which to look next
	numbers        []string // to be looked up, if ids are asked for
	page           []deadLetter
	done           bool // there is none behind the page
}

// deadSearch goes through what a filter selects, over all tags.
type deadSearch struct {
	o       *operator
	f       operate.DeadLetterFilter // what is left to be compared
	minAge  time.Duration
	maxAge  time.Duration
	back    bool // the newest first
	page    int  // of one source
	room    int
	sources []*deadSource
	left    int       // to be found
	looked  int       // dead letters that were compared
	counted deadPlace // the last one that was counted
}

// search begins a search.
func (o *operator) search(ctx context.Context, f operate.DeadLetterFilter, back bool) (*deadSearch, error) {
	after, through := deadPlace{number: 0, tag: math.MaxInt}, deadPlace{lastNumber, math.MaxInt}
	for id, to := range map[string]*deadPlace{f.After: &after, f.Through: &through} {
		if p, ok := parseDeadID(id); ok {
			*to = p
		} else if id != "" {
			return nil, operate.Invalid("%q is not the id of a dead letter; take one from a list of them", id)
		}
	}
	sh, err := o.shape(ctx)
	if err != nil {
		return nil, err
	}
	consumers := []string{f.Consumer}
	if f.Consumer == "" {
		if consumers, err = o.consumers(ctx, sh); err != nil {
			return nil, err
		}
	}
	s := &deadSearch{o: o, f: f, minAge: f.MinAge, maxAge: f.MaxAge, back: back, left: cmp.Or(f.Limit, math.MaxInt)}
	s.f.MinAge, s.f.MaxAge = 0, 0 // the server compares them
	for _, consumer := range consumers {
		for tag := range sh.tags {
			src := &deadSource{consumer: consumer, tag: tag, after: after.through(tag), through: through.through(tag)}
			for _, id := range f.IDs {
				if p, ok := parseDeadID(id); ok && p.tag == tag {
					src.numbers = append(src.numbers, strconv.FormatInt(p.number, 10))
				}
			}
			if len(f.IDs) == 0 || len(src.numbers) > 0 {
				slices.SortFunc(src.numbers, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
				src.numbers = slices.Compact(src.numbers)
				s.sources = append(s.sources, src)
			}
		}
	}
	s.page = min(deadPage, s.left)
	if n := len(s.sources); n > deadPage { // of all consumers, and few have any
		s.page = min(s.page, deadPageLeast)
	}
	s.room = max(deadBytes/max(len(s.sources), 1), deadBytes/64)
	return s, nil
}

// step is the script call that reads on in a source.
func (s *deadSearch) step(src *deadSource) step {
	args := []any{src.consumer, flag(len(s.f.IDs) == 1), s.room, flag(s.back), src.after, src.through,
		max(s.minAge.Microseconds(), 0), max(s.maxAge.Microseconds(), 0), s.page}
	return step{tag: src.tag, script: scripts.deadletters, args: with(args, backend.First(src.numbers, s.page)...)}
}

// fill reads on in all sources whose pages are used up.
func (s *deadSearch) fill(ctx context.Context) error {
	return s.o.repeat(ctx, func() error {
		var empty []*deadSource
		var steps []step
		for _, src := range s.sources {
			if len(src.page) == 0 && !src.done {
				empty, steps = append(empty, src), append(steps, s.step(src))
			}
		}
		for i, a := range s.o.runAll(ctx, steps) {
			if a.err != nil {
				return a.err
			}
			empty[i].take(s, list(a.value))
		}
		return nil
	})
}

// take takes over an answer of the script.
func (src *deadSource) take(s *deadSearch, reply []any) {
	if n := len(src.numbers); n > 0 {
		src.numbers = src.numbers[number(reply[1]):]
		src.done = len(src.numbers) == 0
	} else if src.done = text(reply[0]) == ""; !src.done {
		src.goOn(text(reply[0]), s.back)
	}
	for _, v := range list(reply[2]) {
		src.page = append(src.page, s.o.readDead(src.consumer, src.tag, list(v), len(s.f.IDs) == 1))
	}
}

// goOn continues behind a number.
func (src *deadSource) goOn(at string, back bool) {
	n, _ := strconv.ParseInt(at, 10, 64)
	if back {
		src.through = n - 1
	} else {
		src.after = n
	}
	src.done = src.after >= src.through
}

// next returns the next dead letter that is selected, and false at the end.
func (s *deadSearch) next(ctx context.Context) (d deadLetter, ok bool, err error) {
	for s.left > 0 {
		var first *deadSource
		for first == nil {
			short := false
			for _, src := range s.sources {
				short = short || len(src.page) == 0 && !src.done
			}
			if short {
				if err := s.fill(ctx); err != nil {
					return d, false, err
				}
				continue
			}
			s.sources = slices.DeleteFunc(s.sources, func(src *deadSource) bool { return len(src.page) == 0 })
			if len(s.sources) == 0 {
				return d, false, nil
			}
			first = slices.MinFunc(s.sources, func(a, b *deadSource) int {
				if s.back {
					a, b = b, a
				}
				return a.page[0].compare(b.page[0].deadPlace)
			})
		}
		d = first.page[0]
		first.page = first.page[1:]
		s.looked++
		if backend.Selects(s.f, &d.DeadLetterInfo, time.Time{}) {
			s.left--
			return d, true, nil
		}
	}
	return d, false, nil
}

// DeadLetters lists dead letters, the oldest first.
func (o *operator) DeadLetters(ctx context.Context, f operate.DeadLetterFilter) (out []operate.DeadLetterInfo, err error) {
	s, err := o.search(ctx, f, false)
	for err == nil {
		var d deadLetter
		var ok bool
		if d, ok, err = s.next(ctx); !ok {
			break
		}
		out = append(out, d.DeadLetterInfo)
	}
	if err != nil {
		return nil, fmt.Errorf("leaseredis: list dead letters: %w", err)
	}
	return out, nil
}

// DeadLetterGroups counts dead letters by reason. With a Limit these are the oldest.
func (o *operator) DeadLetterGroups(ctx context.Context, f operate.DeadLetterFilter) (operate.DeadLetterGroups, error) {
	s, err := o.search(ctx, f, f.Limit == 0)
	var groups backend.DeadLetterGrouping
	more := false
	if plain := (operate.DeadLetterFilter{Consumer: f.Consumer, After: f.After, Through: f.Through}); err == nil && reflect.DeepEqual(f, plain) {
		more, err = s.reasons(ctx, &groups)
	} else if err == nil {
		more, err = s.count(ctx, &groups)
	}
	if err != nil {
		return operate.DeadLetterGroups{}, fmt.Errorf("leaseredis: groups of dead letters: %w", err)
	}
	out := groups.Answer(more)
	if out.Total > 0 {
		out.Last = s.counted.id()
	}
	return out, nil
}

// count counts what is selected, and tells whether there is more.
func (s *deadSearch) count(ctx context.Context, groups *backend.DeadLetterGrouping) (more bool, err error) {
	for {
		d, ok, err := s.next(ctx)
		if err != nil || !ok || s.looked > backend.GroupedDeadLetters {
			return ok, err
		}
		s.note(d.deadPlace)
		groups.Add(operate.DeadLetterGroup{Consumer: d.Consumer, Kind: d.Kind, Reason: d.Reason, Count: 1, Oldest: d.DeadAt, Newest: d.DeadAt, Example: d.ID})
	}
}

func (s *deadSearch) note(at deadPlace) {
	if at.compare(s.counted) > 0 {
		s.counted = at
	}
}

// reasons is count of all there is, which the server counts by page. It goes on where the newest are that were not counted.
func (s *deadSearch) reasons(ctx context.Context, groups *backend.DeadLetterGrouping) (more bool, err error) {
	for all := 0; len(s.sources) > 0; {
		src := slices.MaxFunc(s.sources, func(a, b *deadSource) int { return cmp.Compare(a.through, b.through) })
		var looked int
		if err := s.o.repeat(ctx, func() error {
			reply, err := s.o.run(ctx, src.tag, scripts.deadreasons, src.consumer, deadBytes, src.after, src.through, min(reasonsPage, backend.GroupedDeadLetters+1-all))
			if err != nil {
				return err
			}
			page := list(reply)
			for _, v := range list(page[2]) {
				v := list(v)
				oldest, newest := number(v[3]), deadPlace{number(v[4]), src.tag}
				s.note(newest)
				groups.Add(operate.DeadLetterGroup{Consumer: src.consumer, Kind: text(v[0]), Reason: text(v[1]), Count: int(number(v[2])),
					Oldest: time.UnixMicro(oldest), Newest: time.UnixMicro(newest.number), Example: newest.id()})
			}
			if looked, src.done = int(number(page[1])), text(page[0]) == ""; !src.done {
				src.goOn(text(page[0]), true)
			}
			return nil
		}); err != nil {
			return false, err
		}
		if all += looked; all > backend.GroupedDeadLetters {
			return true, nil
		}
		s.sources = slices.DeleteFunc(s.sources, func(src *deadSource) bool { return src.done })
	}
	return false, nil
}

// readDead reads one dead letter as the script returns it.
func (o *operator) readDead(consumer string, tag int, v []any, payload bool) deadLetter {
	m := o.unpackKept(text(v[6]), text(v[2]))
	at := deadPlace{number(v[0]), tag}
	d := deadLetter{deadPlace: at, DeadLetterInfo: operate.DeadLetterInfo{
		ID: at.id(), Consumer: consumer, Resource: text(v[1]), MessageID: text(v[2]),
		Topic: m.Topic, Key: m.Key, Kind: m.Kind, Headers: m.Headers, PublishedAt: m.PublishedAt, Size: int(number(v[7])),
		FirstFailed: time.UnixMicro(number(v[5])), DeadAt: time.UnixMicro(at.number),
		Attempts: int(number(v[3])), Reason: text(v[4]),
	}}
	if payload {
		d.Payload = m.Payload
	}
	return d
}

// Replay puts dead letters back, each in the lane of its key, the oldest first. On a cluster whose clocks differ one that died just
// after the one that Through names may come along.
func (o *operator) Replay(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	n, err := o.moveDead(ctx, f, func(consumer string, some []deadLetter) (*script, []any, error) {
		info, err := o.info(ctx, consumer)
		args := []any{consumer, flag(info.Per == backend.PerStream)}
		for _, d := range some {
			args = append(args, d.number, d.Key)
		}
		return scripts.replay, args, err
	})
	if err != nil {
		return n, fmt.Errorf("leaseredis: replay dead letters: %w", err)
	}
	return n, nil
}

// Purge deletes dead letters, those that Through selects as Replay does.
func (o *operator) Purge(ctx context.Context, f operate.DeadLetterFilter) (int, error) {
	n, err := o.moveDead(ctx, f, func(consumer string, some []deadLetter) (*script, []any, error) {
		return scripts.purge, purgeArgs(consumer, some), nil
	})
	if err != nil {
		return n, fmt.Errorf("leaseredis: purge dead letters: %w", err)
	}
	return n, nil
}

func purgeArgs(consumer string, some []deadLetter) []any {
	args := []any{consumer}
	for _, d := range some {
		args = append(args, d.number)
	}
	return args
}

// moveDead runs a script on what f selects of the dead letters that there are now, some at a time, and returns how many were moved.
func (o *operator) moveDead(ctx context.Context, f operate.DeadLetterFilter, call deadMove) (n int, err error) {
	s, err := o.search(ctx, f, false)
	if err != nil {
		return 0, err
	}
	if err := s.endNow(ctx); err != nil {
		return 0, err
	}
	for {
		var found []deadLetter
		for len(found) < deadMoved {
			d, ok, err := s.next(ctx)
			if err != nil {
				return n, err
			}
			if !ok {
				break
			}
			found = append(found, d)
		}
		if len(found) == 0 {
			return n, nil
		}
		moved, err := o.moveFound(ctx, found, call)
		if n += moved; err != nil {
			return n, err
		}
	}
}

// deadMove says which script moves dead letters of one consumer under one tag.
type deadMove func(consumer string, some []deadLetter) (*script, []any, error)

// endNow leaves out what dies from now on.
func (s *deadSearch) endNow(ctx context.Context) error {
	sh, err := s.o.shape(ctx)
	if err != nil {
		return err
	}
	var last []string
	if err := s.o.repeat(ctx, func() (err error) {
		last, err = askTags(ctx, s.o.shards, sh.tags, "meta", func(pipe redis.Pipeliner, prefix string) *redis.StringCmd {
			return pipe.HGet(ctx, prefix+"meta", "dead")
		})
		return err
	}); err != nil {
		return err
	}
	for _, src := range s.sources {
		n, _ := strconv.ParseInt(last[src.tag], 10, 64) // none died yet
		src.through = min(src.through, n)
	}
	return nil
}

// moveFound runs a script on dead letters, those of one consumer and tag together.
func (o *operator) moveFound(ctx context.Context, found []deadLetter, call deadMove) (n int, err error) {
	slices.SortStableFunc(found, func(a, b deadLetter) int {
		return cmp.Or(cmp.Compare(a.Consumer, b.Consumer), cmp.Compare(a.tag, b.tag))
	})
	for len(found) > 0 {
		p, size, count := found[0], 0, 0
		for ; count < min(len(found), deadPage) && found[count].Consumer == p.Consumer && found[count].tag == p.tag; count++ {
			if size += found[count].Size; size > deadBytes && count > 0 {
				break
			}
		}
		some := found[:count]
		found = found[count:]
		unknown := false // an earlier try may have moved them
		err := o.repeat(ctx, func() error {
			s, args, err := call(p.Consumer, some)
			if err != nil {
				return err
			}
			reply, err := o.run(ctx, p.tag, s, args...)
			switch {
			case err != nil:
				unknown = true
			case unknown:
				n += len(some) // those that are gone were moved by the try whose reply was lost
			default:
				n += int(number(reply))
			}
			return err
		})
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// boundDead drops the oldest dead letters of a consumer beyond limit, and returns how many.
func (k *keeper) boundDead(ctx context.Context, sh *shape, consumer string, limit int) (dropped int, err error) {
	for {
		counts, err := k.deadCounts(ctx, sh, consumer)
		if err != nil {
			return dropped, err
		}
		over := -limit
		for _, n := range counts {
			over += int(n)
		}
		if over <= 0 {
			return dropped, nil
		}
		key := "dead:" + consumer
		numbers, err := askTags(ctx, k.shards, sh.tags, key, func(pipe redis.Pipeliner, prefix string) *redis.StringSliceCmd {
			return pipe.ZRange(ctx, prefix+key, 0, int64(min(over, deadPage))-1)
		})
		if err != nil {
			return dropped, err
		}
		var oldest []deadLetter // by number, which tells when
		for tag, some := range numbers {
			for _, n := range some {
				number, _ := strconv.ParseInt(n, 10, 64)
				oldest = append(oldest, deadLetter{deadPlace: deadPlace{number, tag}})
			}
		}
		slices.SortFunc(oldest, func(a, b deadLetter) int { return a.compare(b.deadPlace) })
		oldest = oldest[:min(len(oldest), over, deadPage)]
		byTag := make([][]deadLetter, sh.tags)
		for _, d := range oldest {
			byTag[d.tag] = append(byTag[d.tag], d)
		}
		before := dropped
		for tag, some := range byTag {
			if len(some) == 0 {
				continue
			}
			reply, err := k.run(ctx, tag, scripts.purge, purgeArgs(consumer, some)...)
			if err != nil {
				return dropped, err
			}
			dropped += int(number(reply))
		}
		if dropped == before && len(oldest) == 0 {
			return dropped, nil
		}
	}
}

// deadCounts counts the dead letters of a consumer under each tag.
func (cat *catalog) deadCounts(ctx context.Context, sh *shape, consumer string) ([]int64, error) {
	return askTags(ctx, cat.shards, sh.tags, "dead:"+consumer, func(pipe redis.Pipeliner, prefix string) *redis.IntCmd {
		return pipe.ZCard(ctx, prefix+"dead:"+consumer)
	})
}

// flag is how scripts get yes and no.
func flag(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
