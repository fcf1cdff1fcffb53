package leasepg

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/runtime/leasepg/internal/leasedb"
	"github.com/leasegen/leasegen/runtime/operate"
)

// server is what all parts of the backend ask: the database behind the application's pool, and in it one schema.
type server struct {
	pool     *pgxpool.Pool
	schema   schema
	log      *slog.Logger
	observer operate.Observer // nil: none

	pooled atomic.Bool // a transaction pooler is in between: no LISTEN
	told   sync.Once   // the log line about that
}

const (
	// dialLeast is what each host has at least, however short the caller's time is: it may be far away.
	dialLeast = 500 * time.Millisecond

	// linkMost is how long a try to connect lasts where something else does the work until then, or the caller has a time of its own. A slow
	// server opens a connection though its client has given it up, so that to begin again costs it as much once more.
	linkMost = time.Minute
)

// connect opens a connection outside the pool, to the pool's server. No host that drops what is sent to it, or takes a connection and does not
// answer, takes all of the caller's time: there may be another one, and each is dialed again without TLS where that is not required.
func (sv *server) connect(ctx context.Context) (*pgx.Conn, error) {
	c := sv.pool.Config().ConnConfig // a copy
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		if n := hosts(c); n > 1 {
			if share := max(left/time.Duration(n), dialLeast); c.ConnectTimeout == 0 || c.ConnectTimeout > share {
				c.ConnectTimeout = share
			}
		}
		dial, most := c.DialFunc, max(min(left, longest)/time.Duration(2+len(c.Fallbacks)), dialLeast)
		c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, most)
			defer cancel()
			return dial(ctx, network, addr)
		}
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "leasegen" // to be told apart in pg_stat_activity
	}
	return pgx.ConnectConfig(ctx, c)
}

// hosts counts the servers of a DSN.
func hosts(c *pgx.ConnConfig) int {
	type host struct {
		name string
		port uint16
	}
	all := map[host]bool{{c.Host, c.Port}: true}
	for _, f := range c.Fallbacks {
		all[host{f.Host, f.Port}] = true
	}
	return len(all)
}

func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c.Close(ctx)
}

// queries runs sqlc's queries on db, in this backend's schema.
func (sv *server) queries(db leasedb.DBTX) *leasedb.Queries {
	return leasedb.New(inSchema{db, sv.schema})
}

type inSchema struct {
	leasedb.DBTX
	schema schema
}

func (d inSchema) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return d.DBTX.Exec(ctx, d.schema.statement(sql), args...)
}

func (d inSchema) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return d.DBTX.Query(ctx, d.schema.statement(sql), args...)
}

func (d inSchema) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return d.DBTX.QueryRow(ctx, d.schema.statement(sql), args...)
}

// throttle lets one event through per interval.
type throttle struct{ last atomic.Int64 }

func (t *throttle) ready(now time.Time, every time.Duration) bool {
	last := t.last.Load()
	return now.UnixNano()-last >= int64(every) && t.last.CompareAndSwap(last, now.UnixNano())
}
