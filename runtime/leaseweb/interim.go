package leaseweb

import (
	"context"

	"github.com/leasegen/leasegen/runtime/operate"
)

type operator interface {
	operate.Operator
	Pause(ctx context.Context, consumer string) error
	Resume(ctx context.Context, consumer string) error
	DeadLetterGroups(ctx context.Context, f operate.DeadLetterFilter) (operate.DeadLetterGroups, error)
	RetryParked(ctx context.Context, f operate.ParkedFilter) (int, error)
}
