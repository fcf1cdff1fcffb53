package leasepg_test

import (
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leasepg"
	"github.com/leasegen/leasegen/runtime/operate"
)

// A program meets the schema of each earlier release: one line tells from which version to
// which it has to be migrated, whatever tables and columns are missing.
func TestCheckOfEarlierSchemas(t *testing.T) {
	t.Parallel()
	files := kit.Must[[]string](t)(fs.Glob(os.DirFS("migrations"), "*.sql"))
	pool := open(t, pgtest.DB(t))
	be := leasepg.New(pool)
	for version, name := range files[:len(files)-1] {
		exec(t, pool, string(kit.Must[[]byte](t)(os.ReadFile("migrations/"+name))))
		if version == 0 {
			continue // no table yet
		}
		exec(t, pool, "INSERT INTO leasegen.migration (version, name) VALUES ($1, $2)", version, name)
		want := "has version " + strconv.Itoa(version) + ": run leasegen migrate"
		if err := be.Check(t.Context(), nil); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	kit.Must[[]string](t)(leasepg.Migrate(t.Context(), pool))
	kit.OK(t, be.Check(t.Context(), nil))
}

// The application's role needs no more than Grants gives it for any kind of ownership.
func TestRoleOwns(t *testing.T) {
	t.Parallel()
	owner, app := roles(t)
	kit.Must[[]string](t)(leasepg.Migrate(t.Context(), owner))
	exec(t, owner, leasepg.Grants("lg_app"))
	be := leasepg.New(app)
	kit.OK(t, be.Check(t.Context(), nil))
	kit.OK(t, be.Publish(t.Context(), []backend.Event{{Topic: "x", Key: "s1", Kind: "k"}, {Topic: "x", Key: "s2", Kind: "k"}}))
	info := func(name string, per backend.Per, lock backend.Lock) backend.ConsumerInfo {
		return backend.ConsumerInfo{Name: name, Per: per, Lock: lock, TTL: time.Hour, Topics: []string{"*"}, From: backend.FromBeginning, OnceKeep: time.Hour}
	}
	slots, streams, rows := info("slots", backend.PerPartition, 0), info("streams", backend.PerStream, 0), info("rows", backend.PerStream, backend.LockRow)
	leads := info("leads", backend.PerGroup, backend.LockAdvisory)
	leads.From = backend.FromNow
	all := []backend.ConsumerInfo{slots, streams, rows, leads}
	id := kit.Join(t, be, all[0], time.Hour, all[1:]...)
	feed := kit.Must[backend.Feed](t)(be.OpenFeed(t.Context(), all))
	defer feed.Close()
	owned := map[string][]backend.Grant{}
	for _, c := range all {
		kit.OK(t, be.Register(t.Context(), c, nil))
		owned[c.Name] = id.As(c).Acquires(1000)
		f := kit.Fetch(t, be, c, owned[c.Name][0].Resource, owned[c.Name][0].Cursor, 10)
		_, err := be.Commit(t.Context(), id.ID, c.Name, []backend.Progress{{Ref: owned[c.Name][0].Ref, Seq: 1, Cursor: f.Next}})
		kit.OK(t, err)
	}
	kit.Equal(t, "streams", len(owned["streams"]), 2)
	kit.OK(t, be.Register(t.Context(), streams, []string{"s1", "s3"}))
	kit.Must[[]backend.Survey](t)(be.Survey(t.Context(), []string{"slots", "streams", "rows", "leads"}))
	kit.Equal(t, "leases not renewed", len(kit.Must[[]string](t)(be.Renew(t.Context(), id.ID, rows, kit.Refs(owned["rows"])))), 0)
	kit.OK(t, be.Retire(t.Context(), id.ID, streams.Name, kit.Refs(owned["streams"])))
	other := kit.Join(t, be, all[0], time.Hour, all[1:]...)
	kit.Equal(t, "leads beside the leader", len(other.As(leads).Acquires(1)), 0)
	expire(t, owner, other.ID)
	kit.OK(t, be.Release(t.Context(), id.ID, leads.Name, kit.Refs(owned["leads"])))
	kit.Must[int](t)(be.SetCursor(t.Context(), slots.Name, "", operate.CursorTarget{Now: true}))
	kit.Must[int](t)(be.SetCursor(t.Context(), slots.Name, "", operate.CursorTarget{Beginning: true}))
	kit.Must[[]operate.CursorStatus](t)(be.Cursors(t.Context(), slots.Name, "", 10))
	kit.Must[operate.MaintainReport](t)(be.Maintain(t.Context(), all))
	kit.OK(t, id.Heartbeat())
	kit.OK(t, id.Session.Close(t.Context()))
}
