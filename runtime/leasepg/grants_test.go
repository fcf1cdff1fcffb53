package leasepg_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// refusedFor runs what a role may not do.
func refusedFor(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	if pg, is := errors.AsType[*pgconn.PgError](err); !is || pg.Code != "42501" {
		t.Errorf("%s: %v, want insufficient privilege", sql, err)
	}
}

// TestGrantsReachNoFurther: with all documented grants a role can fence no successor, delete no row that is
// unread, and make no more partitions than are soon used.
func TestGrantsReachNoFurther(t *testing.T) {
	t.Parallel()
	c := distrustful(t)
	be := leasepg.New(c.app)
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 20)))
	spec := backend.SessionSpec{TTL: time.Hour, Consumers: []string{grouped.Name, "streams"}, Topics: map[string][]string{grouped.Name: grouped.Topics}}
	session, _ := memberSpec(t, be, spec)
	kit.OK(t, be.Register(t.Context(), grouped, nil))
	streams := backend.ConsumerInfo{Name: "streams", Per: backend.PerStream, Announced: true}
	kit.OK(t, be.Register(t.Context(), streams, []string{"s"}))

	t.Run("epochs", func(t *testing.T) {
		old := kit.Acting(t, be, session, streams).Acquires(1)[0]
		exec(t, c.app, "UPDATE leasegen.lease SET session = NULL, wanted = false, rested_at = '2000-01-01' WHERE consumer = 'streams'")
		exec(t, c.app, "SELECT leasegen.forget_streams('-100 years', '', '')")
		exec(t, c.admin, "SELECT leasegen.forget_streams('-100 years')") // as programs of version 10 do
		exec(t, c.app, "INSERT INTO leasegen.lease (consumer, resource) VALUES ('streams', 's') ON CONFLICT DO NOTHING")
		time.Sleep(1100 * time.Millisecond) // what the trigger allows a statement
		refusedFor(t, c.app, "UPDATE leasegen.lease SET epoch = $1, session = $2, wanted = true WHERE consumer = 'streams'", old.Epoch, session)
		refusedFor(t, c.app, "UPDATE leasegen.lease SET epoch = 9223372036854775807 WHERE consumer = 'streams'")
		exec(t, c.app, "UPDATE leasegen.lease SET wanted = true WHERE consumer = 'streams'")
		again := kit.Acting(t, be, session, streams).Acquires(1)
		if len(again) != 1 || again[0].Epoch <= old.Epoch {
			t.Errorf("acquired %+v after epoch %d", again, old.Epoch)
		}
	})
	t.Run("unread messages", func(t *testing.T) {
		exec(t, c.admin, "SELECT setval('leasegen.message_id_seq', 1000001)") // the first partition is full
		exec(t, c.app, "SELECT leasegen.drop_segments()")                     // notes that
		for _, sql := range []string{
			"UPDATE leasegen.consumer SET likes = '{}', topics = '{}' WHERE name = 'grouped'",
			"UPDATE leasegen.consumer SET likes = '{none}', topics = '{none}' WHERE name = 'grouped'",
			"UPDATE leasegen.consumer SET per = 'cluster' WHERE name = 'grouped'",
			`UPDATE leasegen.consumer SET source = '{"table":"a.b","position":"id"}' WHERE name = 'grouped'`,
		} {
			refusedFor(t, c.app, sql)
		}
		exec(t, c.app, "INSERT INTO leasegen.consumer (name, per, topics, likes, grace) VALUES ('other', 'group', '{x}', '{x}', '0')")
		exec(t, c.app, "SELECT leasegen.drop_segments()")
		kit.Equal(t, "messages", query[int](t, c.admin, "SELECT count(*) FROM leasegen.message"), 20)
	})
	t.Run("sessions", func(t *testing.T) {
		exec(t, c.app, "SELECT leasegen.forget_sessions('-100 years')")
		ended, s := memberSpec(t, be, spec)
		kit.OK(t, s.Close(t.Context()))
		exec(t, c.app, "SELECT leasegen.forget_sessions('-100 years')")
		refusedFor(t, c.app, "UPDATE leasegen.session SET state = 'live', expires_at = 'infinity' WHERE id = $1", ended)
		kit.Equal(t, "sessions", query[int](t, c.admin, "SELECT count(*) FROM leasegen.session"), 2)
	})
	t.Run("partitions", func(t *testing.T) {
		exec(t, c.app, "SELECT leasegen.ensure_segments(9223372036854775807)")
		if n := query[int](t, c.admin, "SELECT count(*) FROM leasegen.segment"); n > 25 {
			t.Errorf("%d partitions", n)
		}
		exec(t, c.admin, "SELECT setval('leasegen.message_id_seq', 1000000000)") // drawn in vain
		kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1000)))
		if n := query[int](t, c.admin, "SELECT count(*) FROM leasegen.segment"); n > 35 {
			t.Errorf("%d partitions after ids that nobody used", n)
		}
	})
}

// TestNarrowGrants: a role that publishes only, and one that consumes only, do that with what Grants gives them,
// and no rows of the other.
func TestNarrowGrants(t *testing.T) {
	c := distrustful(t)
	role := func(rights leasepg.Rights) (*leasepg.Backend, *pgxpool.Pool) {
		name := string(rights) + "_" + kit.ID()[:8]
		exec(t, c.admin, "CREATE ROLE "+name+" LOGIN")
		exec(t, c.owner, leasepg.Grants(name, leasepg.WithRights(rights)))
		cfg := c.admin.Config().Copy()
		cfg.ConnConfig.User = name
		pool := kit.Must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
		t.Cleanup(pool.Close)
		return leasepg.New(pool), pool
	}
	from, publisher := role(leasepg.PublishOnly)
	to, consumer := role(leasepg.ConsumeOnly)

	kit.OK(t, from.Publish(t.Context(), kit.Events("x", 3)))
	kit.OK(t, from.Publish(t.Context(), kit.Events("x", 1000))) // by COPY
	kit.OK(t, from.Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "k", ID: "i"}, {Topic: "x", Kind: "k", After: time.Microsecond}}))
	kit.OK(t, from.Publish(t.Context(), []backend.Event{{Topic: "x", Kind: "k", ID: "i"}}))
	kit.OK(t, to.Check(t.Context(), nil))
	kit.OK(t, leasepg.ReleaseDelayed(t.Context(), to))
	session, g := kit.Sole(t, to, topical, "x")
	f := kit.Fetch(t, to, topical, "x", g.Cursor, 2000)
	kit.Equal(t, "messages", len(f.Messages), 1005)
	_, err := to.Commit(t.Context(), session.ID, topical.Name, []backend.Progress{{Ref: g.Ref, Cursor: f.Next, Dead: []backend.Dead{{ID: f.Messages[0].ID, Reason: "r"}}}})
	kit.OK(t, err)
	kit.Equal(t, "replayed", kit.Must[int](t)(to.Replay(t.Context(), operate.DeadLetterFilter{})), 1)
	_, err = to.Maintain(t.Context(), []backend.ConsumerInfo{topical})
	kit.OK(t, err)
	_ = kit.Must[[]operate.ConsumerStatus](t)(to.Status(t.Context()))

	for _, sql := range []string{
		"SELECT payload FROM leasegen.message", "SELECT FROM leasegen.lease", "SELECT FROM leasegen.session", "SELECT FROM leasegen.dead_letter", "SELECT FROM leasegen.parked",
		"SELECT payload FROM leasegen.delayed", "DELETE FROM leasegen.delayed", "DELETE FROM leasegen.published_id", "UPDATE leasegen.lease SET epoch = epoch",
		"INSERT INTO leasegen.consumer (name, per, topics, likes, grace) VALUES ('c', 'group', '{}', '{}', '0')",
		"SELECT leasegen.drop_segments()", "SELECT leasegen.release_delayed(1)", "SELECT leasegen.take_turn('segment')",
	} {
		refusedFor(t, publisher, sql)
	}
	for _, sql := range []string{
		"INSERT INTO leasegen.message (topic, kind, payload) VALUES ('x', 'k', '')", "INSERT INTO leasegen.published_id (topic, id) VALUES ('x', 'j')",
		"INSERT INTO leasegen.delayed (due_at, topic, key, kind, payload) VALUES (now(), 'x', '', 'k', '')", "UPDATE leasegen.published_id SET at = now()",
	} {
		refusedFor(t, consumer, sql)
	}
	if err := to.Publish(t.Context(), kit.Events("x", 1)); err == nil || !strings.Contains(err.Error(), "lacks a privilege") {
		t.Errorf("a consumer published: %v", err)
	}
}
