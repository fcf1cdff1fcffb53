package snippets

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/pgtest"
)

// newcomer follows a page in an empty directory.
type newcomer struct {
	t       *testing.T
	dir     string
	env     []string
	running []*exec.Cmd
}

func follow(t *testing.T, env ...string) *newcomer {
	t.Helper()
	n := &newcomer{t: t, dir: t.TempDir(), env: env}
	// The module cache has all that the module needs, because the tests of this repository need it too.
	n.env = append(n.env, "GONOSUMDB=*", "GOFLAGS=-ldflags=-s", "GOWORK=off")
	return n
}

// file writes a block of Go into the file that the page names for it.
func (n *newcomer) file(b block) {
	name := "main.go"
	switch {
	case strings.Contains(b.text, "\nfunc Test"):
		name = "orders_test.go"
	case !strings.Contains(b.text, "\nfunc main"):
		name = "orders.go"
	}
	write(n.t, filepath.Join(n.dir, name), b.text)
}

// shell runs the lines of a block. A transcript has to be what is printed, once it is: numbers and times aside.
func (n *newcomer) shell(b block) {
	n.t.Helper()
	if transcript, is := strings.CutPrefix(b.text, "$ "); is {
		line, want, _ := strings.Cut(transcript, "\n")
		got := ""
		for deadline := time.Now().Add(time.Minute); plain(got) != plain(want) && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			got = command(n.t, n.dir, n.env, "sh", "-c", line)
		}
		if plain(got) != plain(want) {
			n.t.Fatalf("%s: %s prints\n%s", b, line, got)
		}
		return
	}
	clone, err := filepath.Abs(root) // by its own path, so that its packages are in the build cache
	if err != nil {
		n.t.Fatal(err)
	}
	for line := range strings.Lines(b.text) {
		line = strings.Replace(strings.TrimSpace(line), "=../leasegen", "="+clone, 1)
		switch {
		case strings.HasPrefix(line, "mkdir "), strings.HasPrefix(line, "export "): // it is there
		case line == "./shop": // in two terminals
			n.start()
			n.start()
		case strings.HasPrefix(line, "kill -9 "):
			if err := n.running[0].Process.Kill(); err != nil {
				n.t.Fatal(err)
			}
			n.running[0].Wait()
			n.running = n.running[1:]
		default:
			command(n.t, n.dir, n.env, "sh", "-c", line)
		}
	}
}

func (n *newcomer) start() {
	cmd := exec.CommandContext(n.t.Context(), "./shop")
	cmd.Dir, cmd.Env, cmd.Stderr = n.dir, append(os.Environ(), n.env...), os.Stderr
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.running = append(n.running, cmd)
}

// plain is an answer without what differs from run to run: times of day, and the width of columns.
func plain(text string) string {
	text = regexp.MustCompile(`\d\d:\d\d:\d\d`).ReplaceAllString(text, "TIME")
	return strings.Join(strings.Fields(text), " ")
}

// TestStart follows docs/start.md from its first line to its last, on a database of its own.
func TestStart(t *testing.T) {
	n := follow(t, "DATABASE_URL="+pgtest.DB(t))
	for _, b := range page(t, "docs/start.md") {
		switch b.lang {
		case "go":
			n.file(b)
		case "":
			n.shell(b)
		}
	}
	if len(n.running) != 1 {
		t.Fatalf("%d replicas are left", len(n.running))
	}
	if err := n.running[0].Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := n.running[0].Wait(); err != nil {
		t.Errorf("the last replica ends with %v", err)
	}
}

// TestReadme makes the program of README.md by its lines, in an empty module, and runs it until all is charged that it says.
func TestReadme(t *testing.T) {
	n := follow(t)
	built := false
	for _, b := range page(t, "README.md") {
		switch {
		case b.lang == "go":
			n.file(b)
		case strings.HasPrefix(b.text, "go mod init"):
			lines, isRun := strings.CutSuffix(b.text, "go run .\n")
			if !isRun {
				t.Fatalf("%s does not end with go run", b)
			}
			b.text = lines + "go build -o shop .\n" // go run would not end as its program does
			n.shell(b)
			built = true
		}
	}
	if !built {
		t.Fatal("README.md has no lines that make a module")
	}
	cmd := exec.CommandContext(t.Context(), "./shop")
	cmd.Dir, cmd.Stderr = n.dir, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	for lines := bufio.NewScanner(out); len(said) < 2 && lines.Scan(); {
		said = append(said, lines.Text())
	}
	if got := strings.Join(said, ", "); got != "charged ada 100, charged bob 250" {
		t.Errorf("it prints %q", got)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ends with %v", err)
	}
}
