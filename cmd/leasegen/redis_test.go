package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasegen/leasegen/internal/childproc"
	"github.com/leasegen/leasegen/internal/redistest"
	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leaseredis"
)

// However a URL is broken, one line says what is wrong, and its password is not in it.
func TestBrokenRedisURL(t *testing.T) {
	const secret = "s3cr3t-pass"
	for _, dsn := range []string{
		"redis://u:" + secret + "@127.0.0.1:1/0",                                   // a port without a listener
		"redis://u:" + secret + "@127.0.0.1:1/0?cluster=true",                      // a port without a listener
		"rediss://u:" + secret + "@127.0.0.1:1?addr=127.0.0.1:2",                   // a port without a listener
		"redis://u:" + secret + "@127.0.0.1:99999",                                 // no port
		"redis://u:" + secret + "@127.0.0.1:abc/0",                                 // no number
		"redis://u:" + secret + "@[::1/0",                                          // no host
		"redis://u:" + secret + "%zz@127.0.0.1/0",                                  // bad escape
		"redis://u:12/" + secret + "@127.0.0.1/0",                                  // a slash in the password
		"redis://u:" + secret + "/3@127.0.0.1/0",                                   // a slash in the password
		"redis://u:pass#" + secret + "@127.0.0.1/0",                                // a hash in the password
		"redis://u:12?" + secret + "@127.0.0.1/0",                                  // a question mark in the password
		"redis://127.0.0.1/" + secret,                                              // no database
		"redis://u:" + secret + "@127.0.0.1:1/0?dial_timeout=soon",                 // no duration
		"redis://u:" + secret + "@127.0.0.1:1/0?colour=blue",                       // no such option
		"redis://u:" + secret + "@127.0.0.1:1?cluster=true&addr=nowhere",           // no address
		"redis://u:" + secret + "@127.0.0.1:1?cluster=true&addr=[::1&read_only=no", // no address
		"redis://u:" + secret + "@no.such.host.invalid:6379",                       // no such host
	} {
		code, out, errs := leasegen(t, nil, "status", "-dsn", dsn)
		if code != exitError || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%s: exit %d, want one line:\n%s%s", strings.ReplaceAll(dsn, secret, "xxx"), code, out, errs)
		}
		if strings.Contains(errs, secret) {
			t.Errorf("the password is shown: %s", errs)
		}
		t.Log(strings.TrimSpace(errs))
	}
	// A wrong password, and one that the server takes for another user's.
	server := redistest.Shared(t)
	server.User(t, "op", "+ping")
	for _, user := range []string{"op:" + secret, ":" + secret} {
		code, _, errs := leasegen(t, map[string]string{"REDIS_URL": strings.Replace(server.URL(), "redis://", "redis://"+user+"@", 1)}, "status")
		if code != exitError || strings.Count(errs, "\n") != 1 || strings.Contains(errs, secret) {
			t.Errorf("exit %d, want one line without the password: %s", code, errs)
		}
	}
}

// No command makes a namespace, or guesses which is meant.
func TestRedisNamespaceIsNotMade(t *testing.T) {
	server := redistest.Shared(t)
	namespace := redistest.Namespace(t)
	vars := map[string]string{"LEASEGEN_DSN": server.URL()}
	code, _, errs := leasegen(t, vars, "status", "-namespace", namespace)
	if want := `leasegen status: there is no namespace "` + namespace + `" on this server: no program has run on it yet; another one is named by -namespace` + "\n"; code != exitError || errs != want {
		t.Errorf("exit %d, %swant %s", code, errs, want)
	}
	if n := server.Client(t).Exists(t.Context(), "{"+namespace+"0}:meta").Val(); n != 0 {
		t.Error("status has made the namespace")
	}
}

func TestRedisUsage(t *testing.T) {
	vars := map[string]string{"LEASEGEN_DSN": "redis://127.0.0.1:1"}
	for args, want := range map[string]string{
		"status -schema x":                      "leasegen status: -schema goes with PostgreSQL; Redis has -namespace",
		"status -namespace a_b":                 `leasegen status: -namespace "a_b": use lower-case letters, digits and dashes, at most 32`,
		"forget":                                "leasegen forget: give the name of a consumer",
		"pause":                                 "leasegen pause: give the name of a consumer",
		"resume a b":                            `leasegen resume: one consumer at a time, not ["a" "b"]`,
		"forget a b":                            `leasegen forget: one consumer at a time, not ["a" "b"]`,
		"migrate -print -dsn redis://127.0.0.1": "leasegen migrate: " + noMigration,
	} {
		code, _, errs := leasegen(t, vars, strings.Fields(args)...)
		if code != exitError || errs != want+"\n" {
			t.Errorf("leasegen %s: exit %d, %s; want %s", args, code, errs, want)
		}
	}
	expect(t, mustRun(t, vars, "migrate"), noMigration+"\n")
	code, _, errs := leasegen(t, map[string]string{"LEASEGEN_DSN": "postgres://127.0.0.1:1/db"}, "status", "-namespace", "lg")
	if want := "leasegen status: -namespace goes with Redis; PostgreSQL has -schema\n"; code != exitError || errs != want {
		t.Errorf("exit %d, %s; want %s", code, errs, want)
	}
}

// onRedis makes a namespace on a server, and returns how the command finds it.
func onRedis(t *testing.T, client redis.UniversalClient, url string) (be *leaseredis.Backend, on []string) {
	t.Helper()
	namespace := redistest.Namespace(t)
	return leaseredis.New(client, leaseredis.WithNamespace(namespace)), []string{"-dsn", url, "-namespace", namespace}
}

// The same commands as on PostgreSQL, on a server and on a cluster.
func TestOperatorOnRedis(t *testing.T) {
	t.Run("server", func(t *testing.T) {
		s := redistest.Shared(t)
		operateOnRedis(t, s.Client(t), s.URL())
	})
	t.Run("cluster", func(t *testing.T) {
		c := redistest.SharedCluster(t)
		node := "redis://" + c.Addrs()[5] // found out from any node
		namespace := operateOnRedis(t, c.Client(t), node)

		// Said in the URL, by a user who may not ask.
		rules := slices.DeleteFunc(leaseredis.ACL(namespace), func(r string) bool { return r == "+info" })
		o := c.User(t, "noinfo", rules...).Options()
		node = fmt.Sprintf("redis://%s:%s@%s", o.Username, url.QueryEscape(o.Password), c.Addrs()[5])
		for _, form := range []string{"?cluster=true", "?addr=" + c.Addrs()[0], "?addr=" + c.Addrs()[0] + "&cluster=true&dial_timeout=3s"} {
			expect(t, mustRun(t, nil, "status", "-dsn", node+form, "-namespace", namespace), "no consumer has run on this database yet\n")
		}
	})
}

func operateOnRedis(t *testing.T, client redis.UniversalClient, url string) (namespace string) {
	be, on := onRedis(t, client, url)
	namespace = on[len(on)-1]
	in := ", in namespace " + namespace + " of database 0 on " + strings.TrimSuffix(strings.TrimPrefix(url, "redis://"), "/0")
	if _, isCluster := client.(*redis.ClusterClient); isCluster {
		in = strings.Replace(in, "database 0 on", "the cluster of", 1)
	}
	must := func(args ...string) string { t.Helper(); return mustRun(t, nil, append(args, on...)...) }
	refused := func(want string, args ...string) {
		t.Helper()
		code, _, errs := leasegen(t, nil, append(args, on...)...)
		if code != exitError || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: exit %d, %swant one line with %s", args, code, errs, want)
		}
	}
	deadLetter(t, be)

	if out := must("status"); !strings.Contains(out, "mailing   topic  session          1        0         0        1         0  -                        0             2\n") {
		t.Errorf("status:\n%s", out)
	}
	var doc struct{ Consumers []consumerJSON }
	out := must("status", "mailing", "-leases", "-format", "json")
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Consumers) != 1 || len(doc.Consumers[0].Leases) != 1 || doc.Consumers[0].Leases[0].Epoch == 0 {
		t.Errorf("status as json (%v):\n%s", err, out)
	}
	if out := must("cursor", "show", "mailing"); !strings.Contains(out, "mail.eu") {
		t.Errorf("cursor show:\n%s", out)
	}

	out = must("dlq", "list", "mailing")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 5 || !strings.Contains(lines[1], "no such address") || !strings.Contains(lines[2], "mailbox is full") {
		t.Fatalf("dlq list:\n%s", out)
	}
	if out := must("dlq", "show", "mailing", "-id", strings.Fields(lines[1])[0]); !strings.Contains(out, `{"to":"ann"}`) {
		t.Errorf("dlq show:\n%s", out)
	}
	expect(t, must("dlq", "replay", "mailing", "-reason", "*full"), "would replay 1 of 2 dead letters of mailing"+in+"; run again with -yes\n")
	expect(t, must("dlq", "replay", "mailing", "-reason", "*full", "-yes"), "replayed 1 of 2 dead letters of mailing"+in+"\n"+
		"they wait until a process runs it; see what becomes of them: leasegen status mailing -dsn "+url+" -namespace "+namespace+"\n")
	if out := must("parked", "mailing"); strings.Count(out, "\n") != 4 || !strings.Contains(out, " due") {
		t.Errorf("parked:\n%s", out)
	}
	refused("has 1 dead letter; look at them", "forget", "mailing")
	expect(t, must("dlq", "purge", "mailing", "-yes"), "purged 1 of 1 dead letters of mailing"+in+"\n")
	expect(t, must("dlq", "list", "mailing"), "mailing has no dead letters\n")
	if out := must("status"); !strings.Contains(out, "           1             0\n") {
		t.Errorf("the replayed message is not parked:\n%s", out)
	}
	refused(`there is no consumer "mailin"; known: mailing`, "dlq", "list", "mailin")

	expect(t, must("cursor", "reset", "mailing", "-yes"), "moved 1 cursor of mailing to the beginning of the log"+in+"\n")
	if out := must("status"); !strings.Contains(out, " 2  ") { // unread again
		t.Errorf("after the reset:\n%s", out)
	}
	out = must("forget", "mailing")
	if !strings.HasPrefix(out, "would forget mailing"+in+": the cursors of 1 resource, 2 messages unread") {
		t.Errorf("forget: %s", out)
	}
	expect(t, must("forget", "mailing", "-yes"), "forgot mailing"+in+"\n")
	// Messages that it has not handled are reported until a consumer takes them.
	out = must("status")
	if !strings.HasPrefix(out, "no consumer has run on this database yet\nno consumer takes 2 messages of 1 topic: mail.eu (key {") {
		t.Errorf("status:\n%s", out)
	}
	key, _, _ := strings.Cut(out[strings.Index(out, "{"):], ")")
	if out := must("status", "-format", "json"); !strings.Contains(out, `"unmatched_topics": [`) || !strings.Contains(out, key) {
		t.Errorf("status as json:\n%s", out)
	}
	if n := client.Del(t.Context(), key).Val(); n != 1 {
		t.Errorf("%s is not the key of the topic", key)
	}
	expect(t, must("status"), "no consumer has run on this database yet\n")
	refused("none has run on this database yet", "forget", "mailing")
	return namespace
}

// rediss:// checks the server's certificate, by the system's CAs or those of SSL_CERT_FILE.
func TestRedisOverTLS(t *testing.T) {
	dir := t.TempDir()
	port, err := childproc.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	certify(t, dir)
	s := redistest.Start(t, redistest.Config("tls-port", fmt.Sprint(port)), redistest.Config("tls-auth-clients", "no"),
		redistest.Config("tls-cert-file", dir+"/cert.pem"), redistest.Config("tls-key-file", dir+"/key.pem"), redistest.Config("tls-ca-cert-file", dir+"/cert.pem"))
	be, on := onRedis(t, s.Client(t), fmt.Sprintf("rediss://127.0.0.1:%d/0", port))
	deadLetter(t, be)
	// The roots are read once in a process, so each is one of its own.
	status := func(env ...string) (string, error) {
		cmd := exec.Command(os.Args[0], append([]string{"status"}, on...)...)
		cmd.Env = append(os.Environ(), append(env, "LEASEGEN_TEST_MAIN=1")...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := status("SSL_CERT_FILE=" + dir + "/cert.pem"); err != nil || !strings.Contains(out, "mailing") {
		t.Errorf("with the CA: %v\n%s", err, out)
	}
	if out, err := status("SSL_CERT_FILE=" + dir + "/none"); err == nil || !strings.Contains(out, "certificate") || strings.Count(out, "\n") != 1 {
		t.Errorf("without the CA: %v, want one line about the certificate\n%s", err, out)
	}
}

// certify writes a certificate of 127.0.0.1 that is its own CA, and its key.
func certify(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A consumer that is alive is not forgotten.
func TestForgetRefusesTheLiving(t *testing.T) {
	s := redistest.Shared(t)
	be, on := onRedis(t, s.Client(t), s.URL())
	c, err := lease.NewConsumer(be, lease.Spec{Name: "mailing", Per: lease.PerTopic, Topics: []string{"mail.*"}, Handlers: []lease.Handler{
		lease.One("mail", func(context.Context, lease.Message[[]byte]) error { return nil })}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		code, out, errs := leasegen(t, nil, append([]string{"forget", "mailing", "-yes"}, on...)...)
		if code == exitOK {
			t.Fatalf("a consumer that is alive was forgotten: %s", out)
		}
		if strings.Contains(errs, "mailing has 1 live member; stop its programs first") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(errs)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	expect(t, mustRun(t, nil, append([]string{"forget", "mailing", "-yes"}, on...)...), "forgot mailing, in namespace "+on[len(on)-1]+" of database 0 on "+s.Addr()+"\n")
}

// A server takes the output of acl; its user runs consumers, reads the stream named, and no other.
func TestACLCommand(t *testing.T) {
	s := redistest.Shared(t)
	admin := s.Client(t)
	namespace := redistest.Namespace(t)
	line := mustRun(t, nil, "acl", "app", "-namespace", namespace, "-stream", "shop:[a]*", "-stream", "a b")
	if !strings.HasPrefix(line, "ACL SETUSER app on ") || strings.Count(line, "\n") != 1 {
		t.Fatal(line)
	}
	for _, command := range []string{line, "ACL SETUSER app >app-password"} {
		var args []any
		for _, word := range strings.Fields(command) {
			args = append(args, word)
		}
		if err := admin.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%s: %v", command, err)
		}
	}
	app := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: "app", Password: "app-password"})
	defer app.Close()
	deadLetter(t, leaseredis.New(app, leaseredis.WithNamespace(namespace)))
	for _, key := range []string{"shop:[a]*", "a b"} {
		if err := app.XRange(t.Context(), key, "-", "+").Err(); err != nil {
			t.Errorf("%s, a stream that was named: %v", key, err)
		}
	}
	for _, key := range []string{"shop:aa", "c", "{other0}:meta"} {
		if err := app.XRange(t.Context(), key, "-", "+").Err(); err == nil || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("%s: %v, want NOPERM", key, err)
		}
	}
	for args, want := range map[string]string{
		"acl":                "leasegen acl: give the name of one user",
		"acl a b":            "leasegen acl: give the name of one user",
		"acl a -namespace A": `leasegen acl: -namespace "A": use lower-case letters, digits and dashes, at most 32`,
	} {
		if code, _, errs := leasegen(t, nil, strings.Fields(args)...); code != exitError || errs != want+"\n" {
			t.Errorf("%s: exit %d, %s", args, code, errs)
		}
	}
}
