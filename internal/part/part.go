// Package part runs a process of its own for tests that kill or freeze one: their own program again, which then runs TestProcess alone.
// A value that goes with it as JSON says in which test it takes part.
package part

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/childproc"
	"github.com/leasegen/leasegen/runtime/backend"
)

const variable = "LEASEGEN_TEST_PART"

// Start runs the program's TestProcess until the test ends, and returns the process with its session.
func Start(t testing.TB, part any) (*os.Process, string) {
	t.Helper()
	text, err := json.Marshal(part)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestProcess$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+string(text))
	out, in := io.Pipe()
	cmd.Stdout = in
	exited, err := childproc.Spawn(cmd, syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = out.Close(); <-exited })
	go func() { <-exited; _ = in.Close() }()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if session, is := strings.CutPrefix(lines.Text(), "owner "); is {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return cmd.Process, session
		}
		t.Log(lines.Text())
	}
	t.Fatal("the process ended before it owned a lease")
	return nil, ""
}

// Of is the part of such a process. TestProcess is skipped where it has none.
func Of[P any](t *testing.T) (part P) {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		t.Skip("it is started by others")
	}
	if err := json.Unmarshal([]byte(text), &part); err != nil {
		t.Fatal(err)
	}
	return part
}

// Take opens a session, acquires up to so many leases of the consumer, and lives until the session is lost.
func Take(t *testing.T, be backend.Backend, spec backend.SessionSpec, consumer backend.ConsumerInfo, most int) {
	t.Helper()
	spec.ID, spec.Host, spec.PID, spec.Consumers = newID(), "host", os.Getpid(), []string{consumer.Name}
	s, err := be.OpenSession(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if most > 0 {
		got, err := be.Acquire(t.Context(), backend.AcquireRequest{Session: spec.ID, Consumer: consumer, Max: most, Attempt: newID()})
		if err != nil || len(got) == 0 {
			t.Fatalf("acquired %d leases: %v", len(got), err)
		}
	}
	os.Stdout.WriteString("\nowner " + spec.ID + "\n")
	for err := error(nil); !errors.Is(err, backend.ErrSessionLost); err = s.Heartbeat(t.Context()) {
		select {
		case <-time.After(spec.TTL / 3):
		case <-s.Alarm():
		}
	}
}

func newID() string {
	var id [16]byte
	rand.Read(id[:])
	return hex.EncodeToString(id[:])
}
