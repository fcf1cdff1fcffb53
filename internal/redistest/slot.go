package redistest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// KeySlot is the hash slot of a key: of what is between its first { and the } after it,
// if that is not empty, else of all of it.
func KeySlot(key string) int {
	if _, tagged, ok := strings.Cut(key, "{"); ok {
		if tag, _, closed := strings.Cut(tagged, "}"); closed && tag != "" {
			key = tag
		}
	}
	var crc uint16 // CRC-16/XMODEM
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % Slots)
}

// MoveSlot moves a slot and its keys to another master, as resharding does, and returns
// when all running masters know.
func (c *Cluster) MoveSlot(t testing.TB, slot int, to *Server) {
	t.Helper()
	m := c.OpenSlot(t, slot, to)
	for m.MoveKeys(t, 100) > 0 {
	}
	m.CloseSlot(t)
}

// SlotMove is a slot on its way from one master to another: clients get ASK for keys
// that have gone, and TRYAGAIN for commands on keys of which only some have.
type SlotMove struct {
	Slot     int
	From, To *Server

	cluster *Cluster
}

// OpenSlot begins to move a slot: no key has moved yet. A test may stop here, or after
// any MoveKeys.
func (c *Cluster) OpenSlot(t testing.TB, slot int, to *Server) *SlotMove {
	t.Helper()
	m := &SlotMove{Slot: slot, To: to, cluster: c}
	err := c.do(func(ctx context.Context) (err error) {
		if m.From, err = c.masterOf(ctx, slot); err != nil {
			return err
		}
		if m.From == to {
			return fmt.Errorf("%s has it already", to.Addr())
		}
		if err := m.set(ctx, to, "IMPORTING", m.From); err != nil {
			return err
		}
		return m.set(ctx, m.From, "MIGRATING", to)
	})
	if err != nil {
		t.Fatalf("redistest: open slot %d: %v", slot, err)
	}
	return m
}

// MoveKeys moves at most n of the slot's keys and returns how many it did.
func (m *SlotMove) MoveKeys(t testing.TB, n int) int {
	t.Helper()
	var keys []string
	err := m.cluster.do(func(ctx context.Context) error {
		return m.From.admin(ctx, func(r *redis.Client) (err error) {
			keys, err = r.ClusterGetKeysInSlot(ctx, m.Slot, n).Result()
			if err != nil || len(keys) == 0 {
				return err
			}
			args := []any{"MIGRATE", "127.0.0.1", m.To.Port, "", 0, callTimeout.Milliseconds(), "KEYS"}
			for _, k := range keys {
				args = append(args, k)
			}
			return r.Do(ctx, args...).Err()
		})
	})
	if err != nil {
		t.Fatalf("redistest: move keys of slot %d from %s to %s: %v", m.Slot, m.From.Addr(), m.To.Addr(), err)
	}
	return len(keys)
}

// CloseSlot ends the move: the slot is the new master's. All its keys must have moved.
func (m *SlotMove) CloseSlot(t testing.TB) {
	t.Helper()
	err := m.cluster.do(func(ctx context.Context) error {
		// The new owner first, so that somebody owns the slot at every moment.
		if err := m.set(ctx, m.To, "NODE", m.To); err != nil {
			return err
		}
		others := slices.DeleteFunc(m.cluster.running(), func(n *Server) bool { return n == m.To || n == m.From })
		for _, n := range append([]*Server{m.From}, others...) {
			// Replicas learn it by gossip; so may a master that just gave its last slot
			// away, upon which it becomes a replica, too.
			err := m.set(ctx, n, "NODE", m.To)
			if err != nil && !strings.Contains(err.Error(), "only with masters") {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("redistest: close slot %d: %v", m.Slot, err)
	}
}

// set tells node about the slot and its other side.
func (m *SlotMove) set(ctx context.Context, node *Server, state string, other *Server) error {
	id, err := other.id(ctx)
	if err != nil {
		return err
	}
	err = node.admin(ctx, func(r *redis.Client) error {
		return r.Do(ctx, "CLUSTER", "SETSLOT", m.Slot, state, id).Err()
	})
	if err != nil {
		return fmt.Errorf("SETSLOT %s on %s: %w", state, node.Addr(), err)
	}
	return nil
}
