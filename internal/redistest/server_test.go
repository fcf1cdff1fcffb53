package redistest_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv("REDISTEST_CHILD") != "" {
		child()
		return
	}
	redistest.Main(m)
}

// child launches a server, tells its address and waits to be killed.
func child() {
	s, err := redistest.Launch()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Addr())
	select {}
}

func TestShared(t *testing.T) {
	s := redistest.Shared(t)
	if s != redistest.Shared(t) {
		t.Error("two shared servers in one test binary")
	}
	c := s.Client(t)
	for name, want := range map[string]string{"appendonly": "yes", "appendfsync": "everysec", "save": "", "protected-mode": "yes", "bind": "127.0.0.1"} {
		if got := c.ConfigGet(t.Context(), name).Val()[name]; got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if want := "redis://" + s.Addr() + "/0"; s.URL() != want {
		t.Errorf("URL %s, want %s", s.URL(), want)
	}
}

func TestNamespace(t *testing.T) {
	a, b := redistest.Namespace(t), redistest.Namespace(t)
	if a == b {
		t.Errorf("the same namespace twice: %s", a)
	}
	if !regexp.MustCompile(`^tnamespace[0-9]+$`).MatchString(a) {
		t.Errorf("namespace %q", a)
	}
}

func TestServer(t *testing.T) {
	s := redistest.Start(t, redistest.Config("maxclients", "117"), redistest.Config("notify-keyspace-events", ""))
	c := s.Client(t)
	config := func(name, want string) {
		t.Helper()
		if got := c.ConfigGet(t.Context(), name).Val()[name]; got != want {
			t.Errorf("%s = %s, want %s", name, got, want)
		}
	}
	kept := func(after string) {
		t.Helper()
		if got, err := c.Get(t.Context(), "kept").Result(); got != "1" || err != nil {
			t.Errorf("after %s: %q, %v; want 1", after, got, err)
		}
	}
	config("maxclients", "117")
	if err := c.Set(t.Context(), "kept", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}

	pid := s.PID()
	s.Kill()
	if c, err := net.DialTimeout("tcp", s.Addr(), time.Second); err == nil {
		c.Close()
		t.Fatal("a killed server takes connections")
	}
	if s.PID() != 0 {
		t.Errorf("a killed server has process id %d", s.PID())
	}
	s.Start()
	kept("kill and start")
	if s.PID() == pid || s.PID() == 0 {
		t.Errorf("process id %d after %d", s.PID(), pid)
	}
	s.Restart(redistest.Config("maxclients", "118"))
	kept("restart")
	config("maxclients", "118")

	s.Pause()
	answer := make(chan error, 1)
	go func() { answer <- c.Ping(t.Context()).Err() }()
	select {
	case err := <-answer:
		t.Fatalf("a paused server answered (error %v)", err)
	case <-time.After(100 * time.Millisecond):
	}
	s.Resume()
	if err := <-answer; err != nil {
		t.Errorf("after resume: %v", err)
	}
	s.Pause()
	s.Kill()
	s.Start()
	kept("pause and kill")
}

func TestUser(t *testing.T) {
	s := redistest.Start(t)
	ctx := t.Context()
	c := s.User(t, "app", "~app:*", "+get", "+set")
	check := func(after string) {
		t.Helper()
		if err := c.Set(ctx, "app:x", "1", 0).Err(); err != nil {
			t.Errorf("%s: what is granted: %v", after, err)
		}
		if err := c.Set(ctx, "other", "1", 0).Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
			t.Errorf("%s: a key not granted: %v, want NOPERM", after, err)
		}
		if err := c.Del(ctx, "app:x").Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
			t.Errorf("%s: a command not granted: %v, want NOPERM", after, err)
		}
	}
	check("created")
	s.Restart()
	check("restarted")
	if err := s.User(t, "app", "~*", "+@all").Del(ctx, "app:x").Err(); err != nil {
		t.Errorf("replaced: %v", err)
	}
}

// A test process that is killed takes its server along.
func TestServerEndsWithProcess(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "REDISTEST_CHILD=1")
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

// One line names a missing or wrong setting, and the way out.
func TestNoBinary(t *testing.T) {
	oneLine := func(want string) {
		t.Helper()
		_, err := redistest.Launch()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("want one line with %q, got: %v", want, err)
		}
	}
	t.Setenv("PATH", t.TempDir())
	oneLine("apt-get install redis-server")
	t.Setenv("LEASEGEN_REDIS_SERVER", "/nowhere/redis-server")
	oneLine("LEASEGEN_REDIS_SERVER=/nowhere/redis-server")
	t.Setenv("LEASEGEN_REDIS_SERVER", script(t, "Redis server v=6.0.16 sha=0"))
	oneLine("6.2 or newer")
	t.Setenv("LEASEGEN_REDIS_SERVER", script(t, "postgres (PostgreSQL) 15"))
	oneLine("says")
}

// A server that refuses its configuration is reported with what it said.
func TestBadConfig(t *testing.T) {
	_, err := redistest.Launch(redistest.Config("maxclients", "many"))
	if err == nil || !strings.Contains(err.Error(), "maxclients") {
		t.Errorf("want the server's word on maxclients, got: %v", err)
	}
}

func script(t *testing.T, says string) string {
	t.Helper()
	path := t.TempDir() + "/redis-server"
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho '"+says+"'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}
