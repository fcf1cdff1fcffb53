package leaseredis

import (
	"context"
	"embed"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

//go:embed scripts/*.lua
var scriptFiles embed.FS

// script is one atomic step on the keys of one tag.
type script struct {
	src string
	sha string
}

// load makes a script of lib.lua, the further libraries that it names, and the file of that name.
func load(name string, libs ...string) *script {
	src := "local creating = " + strconv.FormatBool(name == "shape")
	for _, part := range slices.Concat([]string{"lib"}, libs, []string{name}) {
		src += "\n" + source(part)
	}
	return &script{src: src, sha: redis.NewScript(src).Hash()}
}

// loadAlone makes a script of one file. It reads keys that need not be leasegen's.
func loadAlone(name string) *script {
	src := source(name)
	return &script{src: src, sha: redis.NewScript(src).Hash()}
}

func source(name string) string {
	body, err := scriptFiles.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // it is embedded
	}
	return string(body)
}

// step is a script to be run on a tag, or on keys that lie together.
type step struct {
	tag    int
	script *script
	args   []any
	keys   []string // nil: those of the tag
}

// same are the steps that run a script with the same arguments under each of the tags.
func same(tags []int, s *script, args ...any) []step {
	steps := make([]step, len(tags))
	for i, tag := range tags {
		steps[i] = step{tag: tag, script: s, args: args}
	}
	return steps
}

// with adds names to the arguments of a script.
func with(args []any, names ...string) []any {
	for _, n := range names {
		args = append(args, n)
	}
	return args
}

// answer is what a step returned.
type answer struct {
	value any
	err   error
}

// run runs one script.
func (d *shards) run(ctx context.Context, tag int, s *script, args ...any) (any, error) {
	a := d.runAll(ctx, []step{{tag: tag, script: s, args: args}})
	return a[0].value, a[0].err
}

// runAll runs scripts in one round trip for each tag of a cluster, and in one in all on a server, unless they are many.
// Each step succeeds or fails by itself.
func (d *shards) runAll(ctx context.Context, steps []step) []answer {
	return d.runOn(ctx, d.client, steps)
}

// runOn returns what it has when ctx ends: go-redis looks at a context's deadline only if the client
// is set to, and one node that hangs must not hide what the others answered.
func (d *shards) runOn(ctx context.Context, client redis.UniversalClient, steps []step) []answer {
	type part struct {
		of      []int
		answers []answer
	}
	parts, rounds := d.parts(steps), 1
	for _, of := range parts {
		rounds = max(rounds, (len(of)+pipelined-1)/pipelined)
	}
	ctx, cancel := d.patient(ctx, rounds)
	defer cancel()
	done := make(chan part, len(parts))
	for _, of := range parts {
		some := make([]step, len(of))
		for i, j := range of {
			some[i] = steps[j]
		}
		go func() { done <- part{of, d.runPart(ctx, client, some)} }()
	}
	answers := make([]answer, len(steps))
	for i := range answers {
		answers[i].err = errPending
	}
	for range parts {
		select {
		case p := <-done:
			for i, j := range p.of {
				answers[j] = p.answers[i]
			}
			continue
		case <-ctx.Done():
		}
		break
	}
	for i := range answers {
		if answers[i].err == errPending {
			answers[i].err = ctx.Err()
		}
		d.reloadAfter(answers[i].err)
		if errors.Is(answers[i].err, redis.ErrClosed) && client == d.client {
			d.above.clientClosed()
		}
		if errors.Is(answers[i].err, errShape) {
			d.forgetShape()
		}
	}
	return answers
}

// errPending: the answer has not come.
var errPending = errors.New("leaseredis: no answer yet")

// parts divides steps by what may answer without the others: the tags of a cluster.
func (d *shards) parts(steps []step) map[int][]int {
	parts, clustered := map[int][]int{}, d.clustered()
	for i, s := range steps {
		tag := 0
		if clustered {
			tag = s.tag
		}
		parts[tag] = append(parts[tag], i)
	}
	return parts
}

// runPart runs scripts in one round trip, and once more whole those that the server does not know yet.
func (d *shards) runPart(ctx context.Context, client redis.UniversalClient, steps []step) (answers []answer) {
	for some := range slices.Chunk(steps, pipelined) {
		if last := len(answers) - 1; last >= 0 && moved(answers[last].err) { // each further round would wait as long
			answers = append(answers, slices.Repeat(answers[last:], len(some))...)
			continue
		}
		answers = append(answers, d.runRound(ctx, client, some)...)
	}
	return answers
}

// pipelined is how many scripts are sent at once: the answers of all have to come within the client's ReadTimeout.
const pipelined = 32

func (d *shards) runRound(ctx context.Context, client redis.UniversalClient, steps []step) []answer {
	answers := d.pipeline(ctx, client, steps, false)
	var missing []int
	var again []step
	for i, a := range answers {
		if redis.HasErrorPrefix(a.err, "NOSCRIPT") {
			missing, again = append(missing, i), append(again, steps[i])
		}
	}
	if again != nil {
		for j, a := range d.pipeline(ctx, client, again, true) {
			answers[missing[j]] = a
		}
	}
	return answers
}

func (d *shards) pipeline(ctx context.Context, client redis.UniversalClient, steps []step, whole bool) []answer {
	send := func(c redis.Cmdable, s step) *redis.Cmd {
		keys := s.keys
		if keys == nil {
			keys = d.keys(s.tag)
		}
		if whole {
			return c.Eval(ctx, s.script.src, keys, s.args...)
		}
		return c.EvalSha(ctx, s.script.sha, keys, s.args...)
	}
	cmds := make([]*redis.Cmd, len(steps))
	if len(steps) == 1 {
		cmds[0] = send(client, steps[0])
	} else {
		pipe := client.Pipeline()
		for i, s := range steps {
			cmds[i] = send(pipe, s)
		}
		pipe.Exec(ctx) // each command has its own error
	}
	answers := make([]answer, len(steps))
	for i, c := range cmds {
		v, err := c.Result()
		if err == redis.Nil {
			err = nil
		}
		answers[i] = answer{v, failure(err)}
	}
	return answers
}

// ints reads a reply that is a list of numbers, however the script returned them.
func ints(reply any) []int64 {
	out := make([]int64, len(list(reply)))
	for i, v := range list(reply) {
		out[i] = number(v)
	}
	return out
}

// number reads a reply that is a number, or its decimal digits.
func number(reply any) int64 {
	switch v := reply.(type) {
	case int64:
		return v
	case string:
		n, _ := strconv.ParseInt(strings.TrimSuffix(v, ".0"), 10, 64)
		return n
	}
	return 0
}

// text reads a reply that is a string.
func text(reply any) string {
	s, _ := reply.(string)
	return s
}

// texts reads a reply that is a list of strings.
func texts(reply any) (out []string) {
	for _, v := range list(reply) {
		out = append(out, text(v))
	}
	return out
}

// list reads a reply that is a list.
func list(reply any) []any {
	l, _ := reply.([]any)
	return l
}
