package leaseredis

import (
	"testing"

	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// A post that one look at the cluster does not name is kept: only the second ends it, and with it the connection that is noted there.
func TestAPostThatIsMissedOnceIsKept(t *testing.T) {
	at := func(addrs ...string) map[string]*post {
		there := map[string]*post{}
		for tag, addr := range addrs {
			there[addr] = &post{addr: addr, tags: []int{tag}, stirred: make(chan struct{}, 1)}
		}
		return there
	}
	all := posts{}
	for i, c := range []struct {
		at          map[string]*post
		begun, left int
	}{{at("a", "b"), 2, 0}, {at("a", "c"), 1, 0}, {at("a", "b"), 0, 0}, {at("a", "c"), 0, 0}, {at("a", "c"), 0, 1}, {at("a"), 0, 0}, {at("a"), 0, 1}} {
		begun, left := all.follow(c.at)
		kit.Equal(t, "posts begun and left", [3]int{i, len(begun), len(left)}, [3]int{i, c.begun, c.left})
	}
	kit.Equal(t, "posts", len(all), 1)
}
