package lease

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// holding is one lease that this process holds. Each part of the work has its own fields in it.
type holding struct {
	Lease
	ref   backend.Ref
	state atomic.Int32 // a leaseState

	ownerFields                 // guarded by owner.mu
	renewFields                 // guarded by renewer.mu
	runnerFields                // guarded by runner.mu
	turnFields                  // of the goroutine that runs the resource; of runner.mu while none does
	stores       resourceStores // guarded by storer.mu
}

// leaseState is how far a holding has come. It only goes forward, and each part may read it at any time:
//
//	working ──> giving ──> releasing ──> over
//	   │           │                      ↑
//	   └───────────┴──────────────────────┘  lost
//
// A holding that is working has turns. One that is giving finishes the call that it is in, and what was decided is stored. One that
// is releasing is idle for good, and is released, or will be with the session's end. One that is over is not this
// process's any more.
type leaseState int32

const (
	leaseWorking leaseState = iota
	leaseGiving
	leaseReleasing
	leaseOver
)

// advance brings the holding to a state, unless it is there or beyond.
func (h *holding) advance(to leaseState) {
	for {
		at := h.state.Load()
		if at >= int32(to) || h.state.CompareAndSwap(at, int32(to)) {
			return
		}
	}
}

func (h *holding) is(at leaseState) bool { return h.state.Load() == int32(at) }

// leaving reports that no further call begins.
func (h *holding) leaving() bool { return h.state.Load() >= int32(leaseGiving) }

// stopped says to begin no further call: the lease has ended or is being given away.
func (h *holding) stopped(ctx context.Context) bool { return h.leaving() || ctx.Err() != nil }

type ownerFields struct {
	retire bool // a stream without more work: it is not only released
	locked bool // LockAdvisory: lost, and its lock is still to be given back
}

// renewFields are of leases that expire one by one (LockRow).
type renewFields struct {
	renewAmong int     // to be renewed among so many at most; 0: no bound
	anchored   instant // before the request that granted or last renewed it was sent
}

type runnerFields struct {
	cursor backend.Cursor          // after the last message read
	next   []backend.Fetched       // read and not yet handled, in order
	more   chan struct{}           // a hint that next has grown
	waited []backend.ParkedMessage // due and not yet handled; they go before next
	dirty  bool                    // there may be messages after cursor
	reads  resourceReads

	running   bool // a goroutine works on it
	cancel    context.CancelCauseFunc
	busyAt    uint64
	idleAt    uint64
	activeAt  time.Time // when work on it last ended
	inReady   bool      // queued there
	yield     bool      // let parked messages go first
	batchNext bool      // let a batch go before the next parked messages
	missed    bool      // parked messages were read without the ones of h
	runAt     time.Time // Run handlers: not before
}

type turnFields struct {
	lanes         map[string]struct{} // parked lanes
	late          map[string]struct{} // of these, the ones of which no version took the last message in time
	suspicion     int                 // crashed owners since the last progress
	interruptions int                 // transactions in a row whose connection was lost under a handler
	doubt         int                 // fresh messages to get past before the resource is trusted again
	marked        string              // what the crashed owner was handling
	markCount     int
	only          bool // it runs alone in the process: see gate
	runFailures   int  // of a Run handler, in a row
}

// newHolding is what a grant of the consumer makes under a session. It is believed in from asked on.
func (x *scope) newHolding(g *backend.Grant, asked instant) *holding {
	h := &holding{Lease: Lease{Consumer: x.info.Name, Resource: g.Resource, Epoch: g.Epoch, Session: x.s.id}, ref: g.Ref}
	h.anchored = asked
	h.cursor, h.dirty, h.more, h.activeAt = g.Cursor, true, make(chan struct{}, 1), time.Now()
	h.suspicion, h.marked, h.markCount = g.Suspicion, g.Mark, g.MarkCount
	if g.Suspicion > 0 {
		h.doubt = x.c.doubtful()
	}
	for _, lane := range g.Lanes {
		h.addLane(lane)
	}
	return h
}

func (h *holding) addLane(lane string) {
	if h.lanes == nil {
		h.lanes = map[string]struct{}{}
	}
	h.lanes[lane] = struct{}{}
}
