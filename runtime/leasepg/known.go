package leasepg

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasegen/leasegen/runtime/backend"
)

// known is what this process has found out about the schema. It forgets that when the server has another history.
type known struct {
	*tables
	logEnd        atomic.Int64 // first id known to have no partition
	bySlot, byKey logIndex
	kinds         sync.Map // kind → struct{}
	ledgers       ledgers  // of transactions, see late.go
}

// forget drops what was found out about the schema: on another server it may not be so yet.
func (kn *known) forget() {
	kn.logEnd.Store(0)
	kn.ledgers.forget()
	kn.bySlot.done.Store(false)
	kn.byKey.done.Store(false)
	kn.kinds.Clear()
	kn.tables.checked.Clear()
}

// logIndex is an index of the log that readers of one kind need, see index_log.
type logIndex struct {
	column string
	done   atomic.Bool
	tried  throttle
}

const (
	indexAgain       = 10 * time.Second
	lockNotAvailable = "55P03"
)

func (kn *known) indexFor(c backend.ConsumerInfo) *logIndex {
	switch {
	case c.Source != nil || c.Announced:
	case c.Per == backend.PerPartition:
		return &kn.bySlot
	case c.Per == backend.PerStream:
		return &kn.byKey
	}
	return nil
}

// index makes sure that the log has the index that readers of slots and streams need. It
// does not insist: a partition of the log in which a transaction stays open is read slowly
// until a later try.
func (kn *known) index(ctx context.Context, i *logIndex) error {
	if i == nil || i.done.Load() || !i.tried.ready(time.Now(), indexAgain) {
		return nil
	}
	q := kn.queries(kn.pool)
	for before := int32(math.MaxInt32); ; {
		done, err := q.LogIndexed(ctx, i.column)
		if done {
			i.done.Store(true)
		}
		if err != nil || done {
			return err
		}
		left, err := q.IndexLog(ctx, i.column)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == lockNotAvailable {
			err, left = nil, before // another replica is at it
		}
		switch {
		case err != nil:
			return err
		case left >= before:
			kn.log.Warn("leasepg: a part of the log has no index by "+i.column+" yet: another replica makes it, or a transaction that wrote there is open; "+
				"until then it is read slowly", "again_in", indexAgain)
			return nil
		}
		before = left
	}
}
