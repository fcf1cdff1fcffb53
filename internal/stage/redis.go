package stage

import (
	"context"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// RedisSet is what an example on Redis plays on. Main and Play fill it in.
type RedisSet struct {
	Show
	Client  *redis.Client
	Backend *leaseredis.Backend // to publish and to look
}

// Main is the main function of an example on Redis, as that of Set is on PostgreSQL.
func (s *RedisSet) Main(example string, replica func(ctx context.Context, client *redis.Client, name string) error, play func(ctx context.Context) error) {
	start(example, func(ctx context.Context, name string) error {
		client, err := connect(os.Getenv("DATABASE_URL"))
		if err != nil {
			return err
		}
		defer client.Close()
		return replica(ctx, client, name)
	}, func(ctx context.Context) error { return s.Play(ctx, play) })
}

// Play starts a Redis server and calls play. Then it stops the replicas and the server;
// how the replicas end counts.
func (s *RedisSet) Play(ctx context.Context, play func(ctx context.Context) error) error {
	server, err := redistest.Launch()
	if err != nil {
		return err
	}
	defer server.Close()
	if s.Client, err = connect(server.URL()); err != nil {
		return err
	}
	defer s.Client.Close()
	s.Backend = leaseredis.New(s.Client, leaseredis.WithLogger(quiet("example")))
	return s.play(ctx, server.URL(), s.Backend, play)
}

func connect(url string) (*redis.Client, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(o), nil
}
