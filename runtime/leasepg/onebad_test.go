package leasepg_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// misdeeds are what a handler can do to its transaction and its connection, and return nil. Those of the first
// letter x commit what was written before, for others too.
var misdeeds = map[string]func(context.Context, pgx.Tx) error{
	"rollback":       raw("ROLLBACK"),
	"rollback chain": raw("ROLLBACK AND CHAIN"),
	"rollback begin": raw("ROLLBACK; BEGIN"),
	"xcommit":        raw("COMMIT"),
	"xcommit chain":  raw("COMMIT AND CHAIN"),
	"xcommit begin":  raw("COMMIT; BEGIN"),
	"xprepare":       func(ctx context.Context, tx pgx.Tx) error { return raw("PREPARE TRANSACTION '"+kit.ID()+"'")(ctx, tx) },
	"xconn":          func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Conn().Exec(ctx, "COMMIT"); return err },
	"read only":      raw("SET TRANSACTION READ ONLY"),
	"reads only":     raw("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"),
	"weak role":      raw("SET LOCAL ROLE weak"),
	"session role":   raw("SET ROLE weak"),
	"strong role":    raw("SET ROLE strong"),
	"failed":         func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, "SELECT 1/0"); return nil },
	"closed":         func(ctx context.Context, tx pgx.Tx) error { return tx.Conn().Close(ctx) },
	"deallocate":     raw("DEALLOCATE ALL"),
	"rows open": func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "SELECT generate_series(1, 100000)")
		rows.Next()
		return err
	},
}

func raw(sql string) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
		return err
	}
}

// TestTransactionsThatHandlersSpoil: whatever a handler does to its transaction by SQL of its own, returning nil, its message is a dead
// letter in the end, its neighbours' effects happen exactly once, and none of its writes outlives a transaction that it did not commit.
func TestTransactionsThatHandlersSpoil(t *testing.T) {
	t.Parallel()
	c := distrustful(t)
	weak, strong := "weak_"+kit.ID()[:8], "strong_"+kit.ID()[:8]
	exec(t, c.admin, fmt.Sprintf(`CREATE ROLE %s; CREATE ROLE %s; GRANT %[1]s, %[2]s TO %[3]s;
		CREATE TABLE public.effect (id text); GRANT ALL ON public.effect TO PUBLIC`, weak, strong, c.appName))
	exec(t, c.owner, leasepg.Grants(strong))
	be := leasepg.New(c.app)
	type deed struct {
		Name string `json:"name"`
		N    int    `json:"n"`
	}
	var all []backend.Event
	bad, n := 0, 0
	add := func(topic, name string) {
		n++
		all = append(all, backend.Event{Topic: topic, Key: fmt.Sprint(n), Kind: "deed", Payload: kit.Must[[]byte](t)(json.Marshal(deed{name, n}))})
	}
	for name := range misdeeds { // in random order
		topic := "mixed"
		if name[0] == 'x' {
			topic = name // what it commits of others cannot be undone
		}
		for range rand.IntN(3) {
			add("mixed", "")
		}
		add(topic, name)
		bad++
	}
	add("mixed", "")
	kit.OK(t, be.Publish(t.Context(), all))
	spec := lease.Spec{Name: "c", Per: backend.PerTopic, Topics: []string{"*"}, Retry: lease.Retry{Max: 2, Min: time.Millisecond, Cap: time.Millisecond},
		Handlers: []lease.Handler{lease.OneTx("deed", func(ctx context.Context, tx pgx.Tx, m lease.Message[deed]) error {
			_, err := tx.Exec(ctx, "INSERT INTO public.effect (id) VALUES ($1)", m.Payload.Name+"/"+fmt.Sprint(m.Payload.N))
			if do := misdeeds[m.Payload.Name]; do != nil && err == nil {
				if strings.HasSuffix(m.Payload.Name, "role") {
					do = raw(strings.NewReplacer("weak role", "SET LOCAL ROLE "+weak, "session role", "SET ROLE "+weak, "strong role", "SET ROLE "+strong).Replace(m.Payload.Name))
				}
				if err := do(ctx, tx); err != nil && m.Payload.Name != "xprepare" { // which most servers do not allow
					t.Errorf("%s: %v", m.Payload.Name, err)
				}
			}
			return err
		})}}
	running(t, kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, spec, quiet())))
	defer func() {
		if t.Failed() {
			for _, d := range kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(t.Context(), operate.DeadLetterFilter{})) {
				t.Log(d.Topic, d.Attempts, d.Reason)
			}
		}
	}()
	kit.Eventually(t, "every spoiler is a dead letter and every other message handled", func() bool {
		return query[int](t, c.admin, "SELECT count(*) FROM leasegen.dead_letter") == bad &&
			query[int](t, c.admin, "SELECT count(DISTINCT id) FROM public.effect WHERE id LIKE '/%'") == n-bad
	})
	kit.Equal(t, "effects of the others", query[int](t, c.admin, "SELECT count(*) FROM public.effect WHERE id LIKE '/%'"), n-bad)
	kit.Equal(t, "effects of spoilers that did not commit", query[int](t, c.admin, "SELECT count(*) FROM public.effect WHERE id NOT LIKE '/%' AND id NOT LIKE 'x%'"), 0)
	for _, d := range kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(t.Context(), operate.DeadLetterFilter{})) {
		kit.Equal(t, "attempts of "+d.Reason, d.Attempts, 2)
	}
}

// TestConnectionsWithoutTheirStatements: a handler that deallocates what pgx has prepared, and fails or not, does
// not harm the messages that come next on that connection.
func TestConnectionsWithoutTheirStatements(t *testing.T) {
	be, pool := migrated(t)
	exec(t, pool, "CREATE TABLE effect (n int)")
	var failed atomic.Int32
	spec := lease.Spec{Name: "c", Per: backend.PerTopic, Topics: []string{"*"}, Retry: lease.Retry{Max: 1},
		Handlers: []lease.Handler{lease.OneTx("k", func(ctx context.Context, tx pgx.Tx, m lease.Message[string]) error {
			if m.Topic == "bad" {
				_, err := tx.Exec(ctx, "DEALLOCATE ALL")
				return cmp.Or(err, map[string]error{"fails": errors.New("failed")}[m.Payload])
			}
			_, err := tx.Exec(ctx, "INSERT INTO effect (n) VALUES ($1)", 1)
			if err != nil {
				failed.Add(1)
			}
			return err
		})}}
	running(t, kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, spec, quiet())))
	many := func(want int) {
		t.Helper()
		for i := range 20 {
			kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: fmt.Sprint("good-", i), Kind: "k", Payload: []byte(`""`)}}))
		}
		kit.Eventually(t, "the good ones", func() bool { return query[int](t, pool, "SELECT count(*) FROM effect") == want })
	}
	many(20)
	for i, how := range []string{"passes", "fails"} {
		kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "bad", Kind: "k", Payload: kit.Must[[]byte](t)(json.Marshal(how))}}))
		kit.Eventually(t, "it is a dead letter", func() bool { return query[int](t, pool, "SELECT count(*) FROM leasegen.dead_letter") == i+1 })
		many(20 * (i + 2))
	}
	kit.Equal(t, "good messages that failed", failed.Load(), 0)
}

// TestForeignWriter: what plain inserts of a role with the documented grants let into the log is handled or a dead letter,
// for each way to own it; the messages beside it are handled, and every command of the operator answers.
func TestForeignWriter(t *testing.T) {
	c := distrustful(t)
	be := leasepg.New(c.app)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	junk := func() string {
		switch r.IntN(6) {
		case 0:
			return ""
		case 1:
			b := make([]rune, r.IntN(3000))
			for i := range b {
				b[i] = rune(32 + r.IntN(90))
			}
			return string(b)
		case 2:
			return strings.Repeat("a", 1<<r.IntN(15))
		case 3:
			return `%_\*'"$1` + "\x1b[2J\u202e"
		}
		return fmt.Sprint("k", r.IntN(5))
	}
	objects := []string{`{"retries": 3}`, `{"a": {"b": [1]}}`, `{"a": null}`, `{"a": "b"}`, `[]`, `3`, `"x"`, `null`, `{}`, `{"a": true, "b": "s", "": 1e400}`}
	in := 0
	for i := range 150 {
		var headers any
		if r.IntN(2) == 0 {
			headers = objects[i%len(objects)]
		}
		kind := "kind"
		if r.IntN(3) == 0 {
			kind = junk()
		}
		payload := []byte(`{"n":1}`)
		if r.IntN(3) == 0 {
			payload = []byte(junk())
		}
		_, err := c.app.Exec(t.Context(), "INSERT INTO leasegen.message (topic, key, kind, payload, headers) VALUES ($1, $2, $3, $4, $5::text::jsonb)",
			"t."+junk(), junk(), kind, payload, headers)
		if pg, refused := errors.AsType[*pgconn.PgError](err); refused {
			if pg.Code != "23514" {
				t.Errorf("refused as %s: %v", pg.Code, err)
			}
			continue
		}
		kit.OK(t, err)
		in++
	}
	// Changes that no program makes to the tables, within the grants.
	for _, sql := range []string{
		"INSERT INTO leasegen.delayed (due_at, topic, key, kind, payload) VALUES ('-infinity', 't', '', 'k', '')",
		"INSERT INTO leasegen.delayed (due_at, topic, key, kind, payload) VALUES (now(), repeat('a', 2000), '', 'k', '')",
		"INSERT INTO leasegen.parked (consumer, resource, lane, message_id, topic, key, kind, payload, published_at, attempt, next_at, error) VALUES ('c', '*', '', 1, 't', '', 'k', '', now(), 1, 'infinity', '')",
		"INSERT INTO leasegen.dead_letter (consumer, resource, message_id, topic, key, kind, payload, published_at, failed_at, attempts, reason) VALUES ('c', '*', 1, 't', '', 'k', '', '-infinity', now(), 1, '')",
	} {
		if _, err := c.app.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "_sane") {
			t.Errorf("%s: %v", sql, err)
		}
	}
	const good = 20
	kit.OK(t, be.Publish(t.Context(), kit.Events("t.good", good)))
	if in < 20 {
		t.Fatalf("%d foreign messages came in", in)
	}
	for name, per := range map[string]backend.Per{"group": backend.PerGroup, "topic": backend.PerTopic, "partition": backend.PerPartition, "stream": backend.PerStream} {
		t.Run(name, func(t *testing.T) {
			spec := lease.Spec{Name: name, Per: per, Topics: []string{"t.*"}, TTL: time.Minute, Retry: lease.Retry{Max: 1}, UnknownWait: -1, Handlers: []lease.Handler{
				lease.One("kind", func(context.Context, lease.Message[map[string]int]) error { return nil }),
			}}
			running(t, kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, spec, quiet())))
			if per == backend.PerPartition {
				exec(t, c.app, "INSERT INTO leasegen.lease (consumer, resource) VALUES ($1, 'no slot'), ($1, '99999')", name)
			}
			kit.Eventually(t, "everything is handled or a dead letter", func() bool {
				s := kit.Must[[]operate.ConsumerStatus](t)(be.Status(t.Context()))
				for _, s := range s {
					if s.Consumer == name {
						return s.LagTotal == 0 && s.Unowned == 0 && s.Resources > 0 && s.ParkedKeys == 0
					}
				}
				return false
			})
			for _, d := range kit.Must[[]operate.DeadLetterInfo](t)(be.DeadLetters(t.Context(), operate.DeadLetterFilter{Consumer: name})) {
				kit.Equal(t, "topic of a dead letter is not the good one: "+d.Reason, d.Topic == "t.good", false)
			}
			for _, err := range commands(t, be, name)[:4] {
				kit.OK(t, err)
			}
		})
	}
}
