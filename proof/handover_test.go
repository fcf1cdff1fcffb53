package proof

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// handovers are those of a bare row by UPDATE and NOTIFY, which is how slots move, without leasegen. All of several connections
// hear of each release, and the first of them has the row.
type handovers struct {
	released atomic.Int64 // when the owner let go of it

	mu    sync.Mutex
	rests []rest
}

type rest struct {
	ended time.Time
	took  time.Duration
}

// handOver hands a row over all the time, until the test ends.
func (s *site) handOver(t *testing.T) *handovers {
	t.Helper()
	const owners = 4
	s.exec(t, `CREATE TABLE bare (id bigint PRIMARY KEY, owner bigint, epoch bigint NOT NULL)`)
	s.exec(t, `INSERT INTO bare VALUES (1, NULL, 0)`)
	h := &handovers{}
	h.released.Store(time.Now().UnixNano())
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	t.Cleanup(func() { cancel(); loops.Wait() })
	for i := range owners {
		conn, err := pgx.Connect(t.Context(), s.dsn)
		if err != nil {
			t.Fatal(err)
		}
		loops.Go(func() {
			defer conn.Close(context.Background())
			if err := h.own(ctx, conn, i); err != nil && ctx.Err() == nil {
				t.Errorf("a bare handover: %v", err)
			}
		})
	}
	return h
}

// own takes the row whenever it is free, and lets go of it soon.
func (h *handovers) own(ctx context.Context, conn *pgx.Conn, owner int) error {
	if _, err := conn.Exec(ctx, `LISTEN bare`); err != nil {
		return err
	}
	for {
		tag, err := conn.Exec(ctx, `UPDATE bare SET owner = $1, epoch = epoch + 1 WHERE id = 1 AND owner IS NULL`, owner)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			if _, err := conn.WaitForNotification(ctx); err != nil {
				return err
			}
			continue
		}
		now := time.Now()
		h.mu.Lock()
		h.rests = append(h.rests, rest{now, now.Sub(time.Unix(0, h.released.Load()))})
		h.mu.Unlock()
		time.Sleep(5 * time.Millisecond)
		h.released.Store(time.Now().UnixNano())
		_, err = conn.Exec(ctx, `WITH let AS (UPDATE bare SET owner = NULL WHERE id = 1 AND owner = $1 RETURNING id) SELECT pg_notify('bare', '') FROM let`, owner)
		if err != nil {
			return err
		}
	}
}

// since says how long the row rested in the handovers since a moment, sorted.
func (h *handovers) since(begun time.Time) (took []time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.rests {
		if r.ended.After(begun) {
			took = append(took, r.took)
		}
	}
	slices.Sort(took)
	return took
}
