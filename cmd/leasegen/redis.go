package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// isRedis reports whether a DSN is one of Redis.
func isRedis(dsn string) bool {
	scheme, _, _ := strings.Cut(dsn, "://")
	return scheme == "redis" || scheme == "rediss"
}

// namespaceName is what the runtime allows.
var namespaceName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// validNamespace checks what can be checked before connecting.
func (d *database) validNamespace() error {
	switch {
	case d.fs.Lookup("schema") != nil && d.given("schema"):
		return usagef("-schema goes with PostgreSQL; Redis has -namespace")
	case !namespaceName.MatchString(d.namespace):
		return usagef("-namespace %q: use lower-case letters, digits and dashes, at most 32", d.namespace)
	}
	return nil
}

// onRedis runs do on a namespace that is there. It does not make one: with how many tags, is
// for the programs to say.
func (d *database) onRedis(ctx context.Context, e *env, dsn, from string, do func(target) error) error {
	if err := d.validNamespace(); err != nil {
		return err
	}
	client, server, password, err := dial(ctx, dsn, from)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return errors.New(redact(oneLine(err), password))
	}
	defer client.Close()
	e.warnRedis(dsn)
	switch n, err := client.Exists(ctx, "{"+d.namespace+"0}:meta").Result(); {
	case err != nil:
		return errors.New(redact(oneLine(err), password))
	case n == 0:
		return usagef("there is no namespace %q on this server: no program has run on it yet; another one is named by -namespace", d.namespace)
	}
	return do(target{leaseredis.New(client, leaseredis.WithNamespace(d.namespace)), "namespace " + d.namespace + " of " + printable(server, 300), d.flagsAgain(from)})
}

// patience is how long a server may take to answer at all.
const patience = 10 * time.Second

// dial connects to a server, or to the cluster that it is part of, and names it. The password is returned
// for the sake of errors, which must not show it.
func dial(ctx context.Context, dsn, from string) (_ redis.UniversalClient, server, password string, err error) {
	redis.SetLogger(silent{}) // what matters is in the errors
	single, cluster, err := redisOptions(dsn)
	if err != nil {
		return nil, "", "", fmt.Errorf("%s is not a usable Redis URL: %w", from, err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	unusable := func(addr string, err error) error {
		return fmt.Errorf("the server of %s at %s cannot be used: %w", from, addr, err)
	}
	if single != nil {
		client := redis.NewClient(single)
		if err := client.Ping(ctx).Err(); err != nil {
			client.Close()
			return nil, "", single.Password, unusable(single.Addr, err)
		}
		// A user that may not ask says so in the URL.
		info, _ := client.Info(ctx, "cluster").Result()
		if !strings.Contains(info, "cluster_enabled:1") {
			return client, fmt.Sprintf("database %d on %s", single.DB, single.Addr), single.Password, nil
		}
		client.Close()
		if cluster, err = redis.ParseClusterURL(dsn); err != nil {
			return nil, "", single.Password, fmt.Errorf("%s is of a node of a cluster, for which it cannot be used: %s", from, complaint(err))
		}
	}
	cluster.ContextTimeoutEnabled, cluster.MaxRetries, cluster.DialerRetries = true, 1, 1
	client := redis.NewClusterClient(cluster)
	if err := client.Ping(ctx).Err(); err != nil {
		client.Close()
		return nil, "", cluster.Password, unusable(strings.Join(cluster.Addrs, " and "), err)
	}
	return client, "the cluster of " + strings.Join(cluster.Addrs, " and "), cluster.Password, nil
}

// redisOptions reads a URL: of a cluster when it names more nodes by addr=, or says
// cluster=true; of a server otherwise. Its errors show no text that stands before the
// question mark: a password that is not escaped may be in any part of that.
func redisOptions(dsn string) (*redis.Options, *redis.ClusterOptions, error) {
	const form = "want redis://user:password@host:port/0, or rediss:// for TLS, with what is special in the password percent-encoded; " +
		"?cluster=true and &addr=host:port name a cluster and more of its nodes"
	u, err := url.Parse(dsn)
	if err != nil || u.Fragment != "" || strings.Contains(u.RawQuery, "@") {
		return nil, nil, errors.New(form)
	}
	q := u.Query()
	isCluster := q.Has("addr") || q.Get("cluster") == "true"
	q.Del("cluster")
	u.RawQuery = ""
	if _, err := redis.ParseURL(u.String()); err != nil {
		return nil, nil, errors.New(form)
	}
	u.RawQuery = q.Encode()
	if isCluster {
		o, err := redis.ParseClusterURL(u.String())
		if err != nil {
			return nil, nil, complaint(err)
		}
		return nil, o, nil
	}
	o, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, nil, complaint(err)
	}
	o.ContextTimeoutEnabled, o.MaxRetries, o.DialerRetries = true, 1, 1
	return o, nil, nil
}

// complaint is an error of the driver without its name.
func complaint(err error) error { return errors.New(strings.TrimPrefix(err.Error(), "redis: ")) }

// silent takes what the driver logs of connections that fail.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
