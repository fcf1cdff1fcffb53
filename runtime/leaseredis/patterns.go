package leaseredis

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// Versions of a consumer with other patterns may run side by side while it is deployed. The
// owner of a resource moves the cursor for all of them, so views take what any member's patterns match,
// and Fetch leaves out none of them. A pattern counts from when a session that has it is opened,
// or the consumer registered, and is dropped when no member has had it for a while.

// patternsKept is how long a pattern counts beyond the last session that had it: a process that
// crashed has come back by then.
const patternsKept = 10 * time.Minute

// patternsIn reads what is stored of a consumer's patterns.
func patternsIn(stored string) ([]string, error) {
	var w struct {
		P []string `json:"p"`
	}
	err := json.Unmarshal([]byte(stored), &w)
	return w.P, err
}

// narrow drops patterns that no member of a consumer has had for a while, and returns them.
func (k *keeper) narrow(ctx context.Context, sh *shape, info backend.ConsumerInfo) (dropped []string, err error) {
	if len(info.Topics) == 0 || sourceOf(info) != nil {
		return nil, nil
	}
	for _, tag := range k.reach(sh, info.Name) {
		reply, err := k.run(ctx, tag, scripts.narrow, info.Name, patternsKept.Microseconds())
		if err != nil {
			return dropped, err
		}
		dropped = append(dropped, texts(reply)...)
	}
	slices.Sort(dropped)
	if dropped = slices.Compact(dropped); len(dropped) > 0 {
		k.log.Info("leaseredis: no process has had these topic patterns for a while: the consumer reads them no more",
			"consumer", info.Name, "patterns", dropped, "for", patternsKept)
	}
	return dropped, nil
}
