// Package part runs a process of its own for tests that kill or freeze one: their own program again, which then runs TestProcess alone.
// A value that goes with it as JSON says in which test it takes part.
package part

import (
	"bufio"
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
	"github.com/leasegen/leasegen/runtime/internal/kit"
)

const variable = "LEASEGEN_TEST_PART"

// Start runs the program's TestProcess until the test ends, and returns the process with its session.
func Start(t testing.TB, part any) (*os.Process, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestProcess$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+string(kit.Must[[]byte](t)(json.Marshal(part))))
	out, in := io.Pipe()
	cmd.Stdout = in
	exited := kit.Must[<-chan struct{}](t)(childproc.Spawn(cmd, syscall.SIGKILL))
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
	kit.OK(t, json.Unmarshal([]byte(text), &part))
	return part
}

// Take opens a session, acquires up to so many leases of the consumer, and lives until the session is lost.
func Take(t *testing.T, be backend.Backend, spec backend.SessionSpec, consumer backend.ConsumerInfo, most int) {
	t.Helper()
	spec.ID, spec.Host, spec.PID, spec.Consumers = kit.ID(), "host", os.Getpid(), []string{consumer.Name}
	s := kit.Must[backend.Session](t)(be.OpenSession(t.Context(), spec))
	if most > 0 && len(kit.Acting(t, be, spec.ID, consumer).Acquires(most)) == 0 {
		t.Fatal("no lease was to be had")
	}
	os.Stdout.WriteString("\nowner " + spec.ID + "\n")
	for err := error(nil); !errors.Is(err, backend.ErrSessionLost); err = s.Heartbeat(t.Context()) {
		select {
		case <-time.After(spec.TTL / 3):
		case <-s.Alarm():
		}
	}
}
