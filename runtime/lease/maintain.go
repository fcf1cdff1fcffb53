package lease

import (
	"context"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/operate"
)

const (
	maintainEvery   = 30 * time.Second
	maintainTimeout = 2 * time.Minute // of one housekeeping, which may have much to delete
)

// maintain asks the backend to do its housekeeping now and then: for all consumers at once, and
// for each alone when that fails, so that one's table keeps no other process's from being tidied.
func (p *process) maintain(s *session, works []*work) {
	for pause(s.ctx, jitter(maintainEvery)) {
		err := p.maintainFor(s, works)
		if err == nil || s.ctx.Err() != nil {
			continue
		}
		if len(works) == 1 {
			works[0].log.Warn("maintenance failed, trying again later", "error", err)
			continue
		}
		for _, w := range works {
			if err := p.maintainFor(w.s, []*work{w}); err != nil && s.ctx.Err() == nil {
				w.log.Warn("maintenance failed, trying again later", "error", err)
			}
		}
	}
}

func (p *process) maintainFor(s *session, works []*work) error {
	report, err := callFor(of(s.ctx, "maintain"), maintainTimeout, func(ctx context.Context) (operate.MaintainReport, error) {
		return p.be.Maintain(ctx, infosOf(works))
	})
	if s.ctx.Err() != nil {
		return err
	}
	if n := report.DeadLettersDropped; n > 0 {
		p.log.Warn("dead letters were dropped, the oldest first, because their bound was reached", "dropped", n)
	}
	s.observe(operate.ObservedMaintain{MaintainReport: report, Err: err})
	return err
}

func infosOf(works []*work) []backend.ConsumerInfo {
	infos := make([]backend.ConsumerInfo, len(works))
	for i, w := range works {
		infos[i] = w.info
	}
	return infos
}
