// Package leaseredistest gives each test of an application a namespace of its own on a Redis server or cluster that tests
// share: a development server, a container of the CI.
//
//	func TestFeeds(t *testing.T) {
//		t.Parallel()
//		be := leaseredistest.New(t, client)
//		// publish to be, leasetest.Drain, look at what the handlers did
//	}
package leaseredistest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// patience is how long the end of a test may take to delete keys.
const patience = 20 * time.Second

// New returns a backend on a namespace for the test alone, called lt-, a random number and a dash. When the test ends all
// keys of that namespace are deleted, and no others: they begin with {lt-NUMBER- and digits. The client stays the
// caller's, and is open until then. Any number of tests, processes and machines may use one server at once; a process that
// is killed leaves its keys behind.
//
// New sends no command. Deleting goes through all keys of the server, 1,000 in a call that takes a
// millisecond or two, so keep to a server that holds little else. Streams that others write to are not of the
// namespace: name them after the test. Options are those of leaseredis.New, but for WithNamespace, which is set already.
func New(t testing.TB, client redis.UniversalClient, opts ...leaseredis.Option) *leaseredis.Backend {
	t.Helper()
	var number [8]byte
	rand.Read(number[:])
	name := "lt-" + hex.EncodeToString(number[:]) + "-"
	t.Cleanup(func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := remove(ctx, client, "{"+name+"[0-9]*}:*"); err != nil {
			t.Errorf("leaseredistest: delete the keys of namespace %s: %v; the client has to be open until the test has ended", name, err)
		}
	})
	return leaseredis.New(client, append(opts[:len(opts):len(opts)], leaseredis.WithNamespace(name))...)
}

// remove deletes the keys that match, on every master of a cluster.
func remove(ctx context.Context, client redis.UniversalClient, pattern string) error {
	if cluster, ok := client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return removeFrom(ctx, node, pattern) })
	}
	return removeFrom(ctx, client, pattern)
}

func removeFrom(ctx context.Context, node redis.UniversalClient, pattern string) error {
	for cursor := uint64(0); ; {
		keys, next, err := node.Scan(ctx, cursor, pattern, 1000).Result()
		if err != nil {
			return err
		}
		pipe := node.Pipeline()
		for _, key := range keys { // one by one: on a cluster they may be of several slots
			pipe.Unlink(ctx, key)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}
