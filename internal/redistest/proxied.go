package redistest

import (
	"context"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/faultproxy"
)

// Proxied is a client that reaches every node there is now through a proxy of its own,
// which can cut, delay and lose what they say to each other; the nodes among themselves
// are not affected. Client and proxies end with the test.
func (c *Cluster) Proxied(t testing.TB) (*redis.ClusterClient, map[*Server]*faultproxy.Proxy) {
	t.Helper()
	proxies, through := map[*Server]*faultproxy.Proxy{}, map[string]string{}
	for _, n := range c.nodes {
		proxies[n] = faultproxy.Start(t, n.Addr())
		through[n.Addr()] = proxies[n].Addr()
	}
	return closing(t, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: c.Addrs(),
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if proxy, ok := through[addr]; ok {
				addr = proxy
			}
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		},
	})), proxies
}
