package leasepg_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// misname is a proxy that gives clients another process id than the server's, as a pooler
// in transaction mode does.
func misname(t *testing.T, server string) (port int) {
	t.Helper()
	l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			wg.Go(func() { defer up.Close(); io.Copy(up, client) })
			wg.Go(func() { defer client.Close(); relay(client, up) })
		}
	})
	return l.Addr().(*net.TCPAddr).Port
}

// relay copies messages of the server, and changes the BackendKeyData among them.
func relay(to io.Writer, from io.Reader) error {
	for {
		var head [5]byte
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return err
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(from, body); err != nil {
			return err
		}
		if head[0] == 'K' {
			binary.BigEndian.PutUint32(body, binary.BigEndian.Uint32(body)+1_000_000)
		}
		if _, err := to.Write(append(head[:], body...)); err != nil {
			return err
		}
	}
}

// TestTransactionPooler: it is noticed, told once, and messages are found by polling.
func TestTransactionPooler(t *testing.T) {
	direct := open(t, pgtest.DB(t))
	_, err := leasepg.Migrate(t.Context(), direct)
	ok(t, err)
	cfg := direct.Config().Copy()
	cfg.ConnConfig.Port = uint16(misname(t, fmt.Sprintf("%s:%d", cfg.ConnConfig.Host, cfg.ConnConfig.Port)))
	cfg.ConnConfig.Fallbacks = nil
	pool := must[*pgxpool.Pool](t)(pgxpool.NewWithConfig(t.Context(), cfg))
	defer pool.Close()
	var log bytes.Buffer
	be := leasepg.New(pool, leasepg.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	ok(t, be.Check(t.Context()))
	ok(t, be.Check(t.Context()))
	feed := must[lease.Feed](t)(be.OpenFeed(t.Context(), []lease.ConsumerInfo{topical}))
	defer feed.Close()
	equal(t, "warnings", strings.Count(log.String(), "transaction pooler"), 1)
	equal(t, "listening connections", query[int](t, direct,
		"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'listen%'"), 0)
	ok(t, be.Publish(t.Context(), events("x", 1)))
	eventually(t, "the feed reports it", func() bool {
		news, err := feed.Next(t.Context())
		return !errors.Is(err, net.ErrClosed) && len(news.Topics) == 1
	})
	id, s := member(t, be, 1<<40, topical)
	ok(t, be.Register(t.Context(), topical, nil))
	equal(t, "acquired", len(acquire(t, be, id, topical, 9)), 1)
	ok(t, s.Heartbeat(t.Context()))
}
