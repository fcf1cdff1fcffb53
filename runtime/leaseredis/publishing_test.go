package leaseredis_test

import (
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

func TestPublishMiddleware(t *testing.T) {
	kit.PublishMiddleware(t, func(m ...backend.PublishMiddleware) backend.Backend {
		return fresh(t, leaseredis.WithPublishMiddleware(m...))
	}, nil)
}
