package leaseredis

import (
	"context"
	"fmt"
)

// Pause stops the work on a consumer until Resume. Each tag learns of it in a step of its own, so that it grants no lease
// from then on. With an error it may be that some tags know: that is enough for the members to give back all leases.
func (o *operator) Pause(ctx context.Context, consumer string) error {
	return o.setPaused(ctx, "pause", consumer, true)
}

// Resume ends a pause. With an error some tags may still have it, and with them the consumer.
func (o *operator) Resume(ctx context.Context, consumer string) error {
	return o.setPaused(ctx, "resume", consumer, false)
}

func (o *operator) setPaused(ctx context.Context, verb, consumer string, paused bool) error {
	err := o.repeat(ctx, func() error {
		sh, err := o.shape(ctx)
		if err != nil {
			return err
		}
		if _, err := o.info(ctx, consumer); err != nil {
			return err
		}
		return firstError(o.runAll(ctx, same(sh.all(), scripts.pause, consumer, flag(paused))))
	})
	if err != nil {
		return fmt.Errorf("leaseredis: %s consumer %q: %w", verb, consumer, err)
	}
	return nil
}
