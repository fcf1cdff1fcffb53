package leasepg_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasegen/leasegen/internal/pgtest"
	"github.com/leasegen/leasegen/runtime/backend"
	"github.com/leasegen/leasegen/runtime/internal/kit"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasepg"
)

// authority is a CA of the test's own.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // its certificate, for sslrootcert
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, key: kit.Must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))}
	der := kit.Must[[]byte](t)(x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}, &x509.Certificate{Subject: pkix.Name{CommonName: name}}, a.key.Public(), a.key))
	a.cert = kit.Must[*x509.Certificate](t)(x509.ParseCertificate(der))
	a.file = filepath.Join(t.TempDir(), "ca.pem")
	kit.OK(t, os.WriteFile(a.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return a
}

// server starts a server with a certificate that the authority signs.
func (a *authority) server(cert x509.Certificate) *pgtest.Server {
	a.t.Helper()
	cert.SerialNumber, cert.Subject = big.NewInt(2), pkix.Name{CommonName: "server"}
	cert.NotBefore = time.Now().Add(-2 * time.Hour)
	key := kit.Must[*ecdsa.PrivateKey](a.t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	der := kit.Must[[]byte](a.t)(x509.CreateCertificate(rand.Reader, &cert, a.cert, key.Public(), a.key))
	keyDER := kit.Must[[]byte](a.t)(x509.MarshalPKCS8PrivateKey(key))
	return pgtest.Start(a.t, pgtest.TLS(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
}

const tlsPassword = "not-to-be-seen"

// verified is the DSN of a client that demands TLS, the CA in rootFile, and the host's name.
func verified(s *pgtest.Server, db, rootFile string) string {
	q := url.Values{"sslmode": {"verify-full"}, "sslrootcert": {rootFile}}
	return fmt.Sprintf("postgres://postgres:%s@%s/%s?%s", tlsPassword, s.Addr(), db, q.Encode())
}

var here = []net.IP{net.IPv4(127, 0, 0, 1)}

// TestTLS: with a CA of one's own, all connections of a process are encrypted and verified:
// the pool's, the heartbeat's and the feed's.
func TestTLS(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "own CA")
	s := ca.server(x509.Certificate{NotAfter: time.Now().Add(time.Hour), IPAddresses: here})
	plain := open(t, s.DB("app"))
	kit.Must[[]string](t)(leasepg.Migrate(t.Context(), plain))
	pool := open(t, verified(s, "app", ca.file)+"&application_name=verified")
	be := leasepg.New(pool)
	handled := make(chan string, 10)
	c := kit.Must[*lease.Consumer](t)(lease.NewConsumer(be, lease.Spec{Name: "tls", Per: backend.PerTopic, Topics: []string{"*"}, Handlers: []lease.Handler{
		lease.One("kind", func(_ context.Context, m lease.Message[[]byte]) error { handled <- m.ID; return nil })}}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- kit.Run(ctx, c) }()
	kit.OK(t, be.Publish(t.Context(), kit.Events("x", 1)))
	select {
	case <-handled:
	case err := <-ended:
		t.Fatal(err)
	case <-time.After(30 * time.Second):
		t.Fatal("not handled within 30 s")
	}
	const all = ` FROM pg_stat_activity a JOIN pg_stat_ssl USING (pid) WHERE a.application_name = 'verified'`
	kit.Equal(t, "connections without TLS", query[int](t, plain, "SELECT count(*)"+all+" AND NOT ssl"), 0)
	if n := query[int](t, plain, "SELECT count(*)"+all); n < 3 {
		t.Errorf("%d connections, want those of the pool, the heartbeat and the feed", n)
	}
	cancel()
	kit.OK(t, <-ended)
}

// TestTLSRefused: a certificate that does not prove the server ends the start, with one line
// that says why, and without the password.
func TestTLSRefused(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t, "own CA"), newAuthority(t, "other CA")
	for _, c := range []struct {
		name     string
		cert     x509.Certificate
		rootFile string
		says     string
	}{
		{"wrong CA", x509.Certificate{NotAfter: time.Now().Add(time.Hour), IPAddresses: here}, other.file, "unknown authority"},
		{"expired", x509.Certificate{NotAfter: time.Now().Add(-time.Hour), IPAddresses: here}, ca.file, "expired"},
		{"other host", x509.Certificate{NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"db.example"}}, ca.file, "127.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := (&authority{t, ca.cert, ca.key, ca.file}).server(c.cert)
			s.DB("app")
			pool := kit.Must[*pgxpool.Pool](t)(pgxpool.New(t.Context(), verified(s, "app", c.rootFile)))
			defer pool.Close()
			consumer := kit.Must[*lease.Consumer](t)(lease.NewConsumer(leasepg.New(pool), lease.Spec{Name: "tls", Per: backend.PerTopic, Topics: []string{"*"},
				Handlers: []lease.Handler{lease.One("kind", func(context.Context, lease.Message[[]byte]) error { return nil })}}))
			err := consumer.Run(t.Context())
			if err == nil {
				t.Fatal("it started")
			}
			msg := err.Error()
			t.Log(msg)
			if strings.Contains(msg, "\n") || strings.Contains(msg, tlsPassword) ||
				!strings.Contains(msg, "certificate") || !strings.Contains(msg, c.says) {
				t.Errorf("want one line that has certificate and %q in it, and no password; got: %s", c.says, msg)
			}
		})
	}
}
