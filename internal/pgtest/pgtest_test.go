package pgtest_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/childproc"
	"github.com/leasegen/leasegen/internal/pgtest"
)

func TestMain(m *testing.M) {
	if os.Getenv("PGTEST_CHILD") != "" {
		child()
		return
	}
	pgtest.Main(m)
}

// child launches a server, tells its address and waits to be killed.
func child() {
	s, err := pgtest.Launch()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Addr())
	select {}
}

func TestDB(t *testing.T) {
	a, b := pgtest.DB(t), pgtest.DB(t)
	if a == b {
		t.Fatalf("the same database twice: %s", a)
	}
	exec1(t, a, "CREATE TABLE only_here (id int)")
	if got := query(t, b, "SELECT count(*)::text FROM pg_class WHERE relname = 'only_here'"); got != "0" {
		t.Errorf("a table of one database is in the other")
	}
}

// A server, and its replica, may have the write-ahead log alone on disk.
func TestWALOnDisk(t *testing.T) {
	s := pgtest.Start(t, pgtest.WALOnDisk())
	if childproc.Memory() == "" { // all is on disk
		if st, err := os.Lstat(filepath.Join(s.Dir, "data", "pg_wal")); err != nil || !st.IsDir() {
			t.Errorf("pg_wal is no directory beside data that is on disk: %v, %v", st, err)
		}
		return
	}
	dsn := s.DB("app")
	exec1(t, dsn, "CREATE TABLE kept (id int)")
	r := s.Replica(t)
	s.Kill()
	s.Start()
	if got := query(t, dsn, "SELECT count(*)::text FROM kept"); got != "0" {
		t.Errorf("rows after kill and start: %s, want 0", got)
	}
	gone := []string{s.Dir, r.Dir}
	for _, of := range []*pgtest.Server{s, r} {
		wal, err := os.Readlink(filepath.Join(of.Dir, "data", "pg_wal"))
		if err != nil || !strings.HasPrefix(wal, os.TempDir()) {
			t.Fatalf("pg_wal is at %q, %v; want it in %s", wal, err, os.TempDir())
		}
		if segments, err := filepath.Glob(filepath.Join(wal, "0*")); err != nil || len(segments) == 0 {
			t.Errorf("segments in %s: %v, %v", wal, segments, err)
		}
		gone = append(gone, filepath.Dir(wal))
	}
	r.Close()
	s.Close()
	for _, dir := range gone {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is left behind: %v", dir, err)
		}
	}
}

func TestServer(t *testing.T) {
	s := pgtest.Start(t, pgtest.Config("max_connections", "17"))
	dsn := s.DB("app")
	if got := query(t, dsn, "SHOW max_connections"); got != "17" {
		t.Errorf("max_connections = %s, want 17", got)
	}
	for _, setting := range []string{"fsync", "full_page_writes"} {
		if got := query(t, dsn, "SHOW "+setting); got != "on" {
			t.Errorf("%s = %s, want on", setting, got)
		}
	}
	exec1(t, dsn, "CREATE TABLE kept (id int)")
	exec1(t, dsn, "INSERT INTO kept VALUES (1)")

	s.Kill()
	if c, err := net.DialTimeout("tcp", s.Addr(), time.Second); err == nil {
		c.Close()
		t.Fatal("a killed server takes connections")
	}
	s.Start()
	if got := query(t, dsn, "SELECT count(*)::text FROM kept"); got != "1" {
		t.Errorf("rows after kill and start: %s, want 1", got)
	}

	s.Restart(pgtest.Config("max_connections", "18"))
	if got := query(t, dsn, "SHOW max_connections"); got != "18" {
		t.Errorf("max_connections after restart = %s, want 18", got)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	s.Pause()
	answer := make(chan error, 1)
	go func() {
		_, err := conn.Exec(ctx, "SELECT 1")
		answer <- err
	}()
	select {
	case err := <-answer:
		t.Fatalf("a paused server answered (error %v)", err)
	case <-time.After(100 * time.Millisecond):
	}
	s.Resume()
	if err := <-answer; err != nil {
		t.Errorf("after resume: %v", err)
	}
}

// A test process that is killed takes its server along.
func TestServerEndsWithProcess(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "PGTEST_CHILD=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	addr := strings.TrimSpace(line)
	if _, _, e := net.SplitHostPort(addr); err != nil || e != nil {
		t.Fatalf("child said %q: %v", line, err)
	}
	if c, err := net.Dial("tcp", addr); err != nil {
		t.Fatal(err)
	} else {
		c.Close()
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		c.Close()
		if time.Now().After(deadline) {
			t.Fatal("the server outlived its process")
		}
	}
}

func TestNoBinaries(t *testing.T) {
	t.Setenv("LEASEGEN_PG_BIN", t.TempDir())
	_, err := pgtest.Launch()
	if err == nil || !strings.Contains(err.Error(), "LEASEGEN_PG_BIN") || strings.Contains(err.Error(), "\n") {
		t.Fatalf("want one line that names LEASEGEN_PG_BIN, got: %v", err)
	}
}

func exec1(t *testing.T, dsn, sql string) {
	t.Helper()
	withConn(t, dsn, func(c *pgx.Conn) error { _, err := c.Exec(t.Context(), sql); return err })
}

func query(t *testing.T, dsn, sql string) (s string) {
	t.Helper()
	withConn(t, dsn, func(c *pgx.Conn) error { return c.QueryRow(t.Context(), sql).Scan(&s) })
	return s
}

func withConn(t *testing.T, dsn string, do func(*pgx.Conn) error) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	if err := do(c); err != nil {
		t.Fatal(err)
	}
}

// A pooler hands out few connections of the server to many clients.
func TestPooler(t *testing.T) {
	s := pgtest.Start(t)
	p := pgtest.StartPooler(t, s, "default_pool_size = 1")
	dsn := s.DB("app")
	if p.Through(s, dsn) != p.DSN("app") {
		t.Errorf("%s is not %s", p.Through(s, dsn), p.DSN("app"))
	}
	pids := map[string]bool{}
	for range 3 {
		// Clients of the first of these are still connected to the pooler when the next come.
		c, err := pgx.Connect(t.Context(), p.DSN("app")+"&default_query_exec_mode=exec")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		var pid string
		if err := c.QueryRow(t.Context(), "SELECT pg_backend_pid()::text").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		pids[pid] = true
	}
	if len(pids) != 1 {
		t.Errorf("three clients were served by %d connections, want 1", len(pids))
	}
}
