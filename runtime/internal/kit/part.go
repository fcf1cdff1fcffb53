package kit

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/backend"
)

// Tests that kill or freeze a process run their own program again for it, which then runs TestProcess alone. A value that goes with
// it as JSON says in which test it takes part.

const partVar = "LEASEGEN_TEST_PART"

// StartPart runs TestProcess of the same program as a process of its own until the test ends, and returns it with its session.
func StartPart(t testing.TB, part any) (*os.Process, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestProcess$", "-test.v")
	cmd.Env = append(os.Environ(), partVar+"="+string(Must[[]byte](t)(json.Marshal(part))))
	out := Must[io.ReadCloser](t)(cmd.StdoutPipe())
	OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if session, is := strings.CutPrefix(lines.Text(), "owner "); is {
			go func() {
				for lines.Scan() {
				}
			}()
			return cmd.Process, session
		}
		t.Log(lines.Text())
	}
	t.Fatal("the process ended before it owned anything")
	return nil, ""
}

// Part is the part of such a process. TestProcess is skipped where it has none.
func Part[P any](t *testing.T) (part P) {
	t.Helper()
	text := os.Getenv(partVar)
	if text == "" {
		t.Skip("it is started by others")
	}
	OK(t, json.Unmarshal([]byte(text), &part))
	return part
}

// TakePart opens a session, acquires up to so many leases of the consumer, and lives until the session is lost.
func TakePart(t *testing.T, be backend.Backend, spec backend.SessionSpec, consumer backend.ConsumerInfo, most int) {
	t.Helper()
	spec.ID, spec.Host, spec.PID, spec.Consumers = ID(), "host", os.Getpid(), []string{consumer.Name}
	s := Must[backend.Session](t)(be.OpenSession(t.Context(), spec))
	if most > 0 && len(Acting(t, be, spec.ID, consumer).Acquires(most)) == 0 {
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
