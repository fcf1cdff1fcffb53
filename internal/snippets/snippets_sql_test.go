package snippets

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// sqlSnippet is a snippet of SQL: what there is before it runs, and a look at what it has done.
type sqlSnippet struct {
	page, starts, before string
	run                  func(t *testing.T, pool *pgxpool.Pool, sql string)
}

func TestSQL(t *testing.T) {
	withoutXID := strings.Replace(outbox, "    xid xid8 DEFAULT pg_current_xact_id(),\n", "", 1)
	entries := []sqlSnippet{
		{"docs/jobs.md", "CREATE TABLE orders", "", run}, // TestGo runs the job on it
		{"docs/managed.md", "SELECT system_identifier", "", run},
		{"docs/publishing.md", "INSERT INTO leasegen.message", "", payloads},
		{"docs/tables.md", "ALTER TABLE app.outbox ADD COLUMN xid", withoutXID, func(t *testing.T, pool *pgxpool.Pool, sql string) {
			first, then, ok := strings.Cut(sql, "-- in a migration of its own, outside a transaction:\n")
			if !ok {
				t.Error("the migrations are not told apart")
			}
			run(t, pool, "BEGIN;\n"+first+"COMMIT")
			run(t, pool, then)
			run(t, pool, "INSERT INTO app.outbox (event) VALUES ('a')")
			if n := count(t, pool, "SELECT count(*) FROM app.outbox WHERE xid IS NOT NULL"); n != 1 {
				t.Errorf("%d rows have an xid", n)
			}
		}},
		{"docs/tables.md", "CREATE FUNCTION app.outbox_stays()", outbox, func(t *testing.T, pool *pgxpool.Pool, sql string) {
			run(t, pool, sql)
			run(t, pool, "INSERT INTO app.outbox (event) VALUES ('a'); UPDATE app.outbox SET status = 'done'")
			if _, err := pool.Exec(t.Context(), "UPDATE app.outbox SET channel = 'b'"); err == nil || !strings.Contains(err.Error(), "would move") {
				t.Errorf("a row moves: %v", err)
			}
		}},
		{"docs/tables.md", "CREATE FUNCTION app.outbox_notify()", outbox, func(t *testing.T, pool *pgxpool.Pool, sql string) {
			run(t, pool, sql)
			c, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Release()
			if _, err := c.Exec(t.Context(), "LISTEN leasegen"); err != nil {
				t.Fatal(err)
			}
			run(t, pool, "INSERT INTO app.outbox (event) VALUES ('a')")
			if n, err := c.Conn().WaitForNotification(t.Context()); err != nil || n.Payload != "t" {
				t.Errorf("%v, %v", n, err)
			}
		}},
	}
	for b, s := range match(t, blocks(t, "sql"), entries, func(s sqlSnippet) (string, string) { return s.page, s.starts }) {
		t.Run(b.String(), func(t *testing.T) {
			pool, err := pgxpool.New(t.Context(), pgtest.DB(t))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			run(t, pool, s.before)
			s.run(t, pool, b.text)
		})
	}
}

// payloads publishes JSON that is not itself when it is taken for the text of a bytea, and holds that a
// consumer gets it as it was.
func payloads(t *testing.T, pool *pgxpool.Pool, sql string) {
	if _, err := leasepg.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, text := range []string{
		"plain", "two\nlines", "tab\tand \r", `says "no"`, `a \ and a \\`, `\x6869`, `\000`, `\134`, "it's", "$4 $$ %s", "é 漢 🎉", "\u2028",
		"\u0001", "'; DROP TABLE leasegen.message; --", `\u0041`, strings.Repeat(`\n"`, 5000),
	} {
		b, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, string(b), fmt.Sprintf(`{"%s":[%s]}`, "k\\n", b))
	}
	want = append(want, `"\u005c\u0022"`, `{"cents": 100}`)
	for _, payload := range want {
		if _, err := pool.Exec(t.Context(), sql, "orders.eu", "customer-7", "order.placed", payload); err != nil {
			t.Errorf("%.40q is refused: %v", payload, err)
		}
	}
	var mu sync.Mutex
	var got []string
	c, err := lease.NewConsumer(leasepg.New(pool), lease.Spec{Name: "reader", Per: lease.PerTopic, Topics: []string{"orders.*"},
		Handlers: []lease.Handler{lease.One("order.placed", func(_ context.Context, m lease.Message[json.RawMessage]) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, string(m.Payload))
			return nil
		})}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		mu.Lock()
		n := len(got)
		mu.Unlock()
		if n >= len(want) || time.Now().After(deadline) {
			break
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("what is handled is not what was published:\n%.2000s", d)
	}
	if n := count(t, pool, "SELECT count(*) FROM leasegen.dead_letter"); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

func run(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func count(t *testing.T, pool *pgxpool.Pool, sql string) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
