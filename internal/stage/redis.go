package stage

import (
	"context"
	"errors"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// RedisMain is Main for an example on Redis.
func RedisMain(example string, replica func(ctx context.Context, client *redis.Client, name string) error, play func(ctx context.Context) error) {
	start(example, func(ctx context.Context, name string) error {
		client, err := connect(os.Getenv("DATABASE_URL"))
		if err != nil {
			return err
		}
		defer client.Close()
		return replica(ctx, client, name)
	}, play)
}

func connect(url string) (*redis.Client, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(o), nil
}

// RedisSet is what an example on Redis plays on.
type RedisSet struct {
	Client  *redis.Client
	Backend *leaseredis.Backend // to publish and to look
	Fleet   *Fleet              // empty at first
}

// PlayRedis starts a Redis server and calls play. Then it stops the replicas and the server;
// how the replicas end counts.
func PlayRedis(play func(RedisSet) error) (err error) {
	server, err := redistest.Launch()
	if err != nil {
		return err
	}
	defer server.Close()
	client, err := connect(server.URL())
	if err != nil {
		return err
	}
	defer client.Close()
	fleet := New(server.URL())
	defer func() { err = errors.Join(err, fleet.Close()) }()
	return play(RedisSet{client, leaseredis.New(client, leaseredis.WithLogger(Quiet("example"))), fleet})
}
