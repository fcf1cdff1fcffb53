package leasepg

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
)

const (
	oldestServer = 140000
	sensiblePool = 4 // connections: pgxpool's own default on small machines
)

// checker looks whether the server, the schema and the rights are what the backend needs.
type checker struct {
	*tables
	small sync.Once // the log line about a small pool
}

// Check reports why the backend cannot be used now, or not by these consumers.
func (ch *checker) Check(ctx context.Context, consumers []backend.ConsumerInfo) error {
	if err := ch.schema.valid(); err != nil {
		return err
	}
	for _, c := range consumers {
		if err := backend.CheckNames(c.Name); err != nil {
			return err
		}
	}
	ch.tellSmall()
	if err := ch.checkServer(ctx); err != nil {
		return err
	}
	for _, c := range consumers {
		if ch.pooled.Load() && c.Lock == backend.LockAdvisory {
			return fmt.Errorf("leasepg: consumer %s: %w", c.Name, errPooledLock)
		}
	}
	for _, c := range consumers {
		t := ch.tables.of(c)
		if t == nil {
			continue
		}
		if err := ch.checkTable(ctx, t, c); err != nil && ctx.Err() == nil {
			// It stops this consumer alone, and it may be fixed while the others work.
			ch.log.Error("leasepg: a consumer cannot read its table; it begins when that is fixed, the others go on",
				"consumer", c.Name, "table", t.Table, "error", err)
		}
	}
	return nil
}

// checkServer is what Check asks of the server and the schema.
func (ch *checker) checkServer(ctx context.Context) error {
	conn, err := ch.pool.Acquire(ctx)
	if err != nil {
		return ch.fail("connect", err)
	}
	defer conn.Release()
	return ch.check(ctx, conn.Conn())
}

// tellSmall says, once, that handlers in transactions will wait for each other.
func (ch *checker) tellSmall() {
	conns := ch.pool.Config().MaxConns
	if conns >= sensiblePool {
		return
	}
	ch.small.Do(func() {
		text := "leasepg: the pool is small: one handler after the other works in a transaction"
		if conns == 1 {
			text = "leasepg: the pool is small: while a handler works in a transaction, progress is not stored, leases are neither " +
				"taken nor given back, and a handler that asks the pool for another connection waits for itself"
		} else if conns > 2 {
			text = fmt.Sprintf("leasepg: the pool is small: %d handlers work in transactions at once", conns-1)
		}
		ch.log.Warn(text, "connections", conns, "fix", "set MaxConns (pool_max_conns in the DSN) to the handlers that shall be at work at once, and one or two more")
	})
}

func (ch *checker) check(ctx context.Context, conn *pgx.Conn) error {
	q := ch.queries(conn)
	f, err := q.ServerFacts(ctx)
	if err != nil {
		return ch.fail("look at the server", err)
	}
	name := ch.schema.name
	switch {
	case f.Version < oldestServer:
		return fmt.Errorf("leasepg: the server has version %d.%d, 14 or newer is needed", f.Version/10000, f.Version%10000)
	case f.InRecovery:
		return fmt.Errorf("leasepg: the server is a standby: connect to the primary (target_session_attrs=read-write)")
	case f.ReadOnly == "on":
		return fmt.Errorf("leasepg: transactions of role %s are read-only: connect to the primary, or set default_transaction_read_only off", f.Role)
	case f.Isolation != "read committed":
		return fmt.Errorf("leasepg: transactions of role %s are %s by default, leasegen needs read committed: "+
			"ALTER ROLE … SET default_transaction_isolation = 'read committed'", f.Role, f.Isolation)
	case !f.CatalogFirst:
		return fmt.Errorf("leasepg: search_path of role %s names schemas before pg_catalog, whose operators would be taken for the server's: "+
			"ALTER ROLE … SET search_path without pg_catalog, which then comes first", f.Role)
	case !f.Migrated:
		return fmt.Errorf("leasepg: the database has no schema %s: run leasegen migrate -dsn … to bring it from version 0 to %d", name, latestVersion())
	}
	// First the version: an older schema lacks what the grants are about.
	have, err := ch.version(ctx, q)
	if err != nil {
		return err
	}
	if known := int32(latestVersion()); have > known {
		ch.log.Info("leasepg: the schema is newer than this program, and serves it", "schema", name, "version", have, "known", known)
	}
	missing, err := q.MissingGrants(ctx)
	if err != nil {
		return ch.fail("look at the grants", err)
	}
	if missing != "" {
		return fmt.Errorf("leasepg: role %s lacks privileges in schema %s (%s): run the SQL that leasegen migrate -grants %s prints", f.Role, name, missing, f.Role)
	}
	o, err := q.Origin(ctx)
	if err != nil {
		return ch.fail("look at the schema's origin", err)
	}
	if o.Recorded != o.Actual {
		return fmt.Errorf("leasepg: schema %s was restored from another cluster (system identifier %d, here %d), whose transaction ids "+
			"have no meaning here: stop its users and run SELECT %s.restamp() as its owner", name, o.Recorded, o.Actual, ch.schema.ident())
	}
	return ch.detectPooler(ctx, conn)
}

// CheckVersion reports why programs of this version cannot work on the schema. Unlike Check it takes no rights but to look, on
// any server: it is for those who only operate.
func (ch *checker) CheckVersion(ctx context.Context) error {
	_, err := ch.version(ctx, ch.queries(ch.pool))
	return err
}

// version is that of the schema, if it serves this program.
func (ch *checker) version(ctx context.Context, q *leasedb.Queries) (int32, error) {
	name := ch.schema.name
	have, err := q.SchemaVersion(ctx)
	switch want := int32(latestVersion()); {
	case err != nil:
		return 0, ch.fail("look at the schema's version", err)
	case have < want:
		return have, fmt.Errorf("leasepg: schema %s has version %d: run leasegen migrate -dsn … to bring it from %d to %d", name, have, have, want)
	case have > want:
		if err := serves(ctx, q, have); err != nil {
			return have, fmt.Errorf("leasepg: schema %s: %w", name, err)
		}
	}
	return have, nil
}

// serves reports that a schema of a newer version does not serve programs of this one.
func serves(ctx context.Context, q *leasedb.Queries, have int32) error {
	oldest, err := q.SchemaServes(ctx)
	if err != nil {
		return err
	}
	if want := int32(latestVersion()); oldest > want {
		return fmt.Errorf("it has version %d, which serves programs of version %d and newer, and this one is of %d: deploy a newer program", have, oldest, want)
	}
	return nil
}

// detectPooler notes whether a pooler hands out server connections per transaction: then
// the process that answers is not the one that was connected to.
func (sv *server) detectPooler(ctx context.Context, conn *pgx.Conn) error {
	f, err := leasedb.New(inSchema{conn, sv.schema}).ServerFacts(ctx)
	if err != nil {
		return sv.fail("look at the server", err)
	}
	if uint32(f.Pid) != conn.PgConn().PID() {
		sv.pooled.Store(true)
		if err := sv.checkPooler(ctx, conn); err != nil {
			return err
		}
		sv.told.Do(func() {
			sv.log.Warn("leasepg: connected through a transaction pooler: messages are found by polling alone, up to 500 ms later, and a crashed process by its TTL alone",
				"fix", "give leasegen a direct connection to the server")
		})
	}
	return nil
}

// checkPooler reports that the pool's way to run queries does not go through the pooler.
// Left to itself it would show only when two clients meet on a server connection.
func (sv *server) checkPooler(ctx context.Context, conn *pgx.Conn) error {
	switch conn.Config().DefaultQueryExecMode {
	case pgx.QueryExecModeCacheStatement:
		// A pooler that keeps prepared statements gives them names of its own.
		var passed bool
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_prepared_statements WHERE name LIKE 'stmtcache\_%')`).Scan(&passed)
		})
		if err != nil {
			return sv.fail("look at the pooler", err)
		}
		if !passed {
			return nil
		}
	case pgx.QueryExecModeDescribeExec: // in two round trips, which may meet different servers
	default:
		return nil
	}
	return fmt.Errorf("leasepg: %s", noPrepared)
}
