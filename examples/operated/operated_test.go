package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasegen/leasegen/internal/childproc"
	"github.com/leasegen/leasegen/internal/fleet"
	"github.com/leasegen/leasegen/internal/pace"
	"github.com/leasegen/leasegen/runtime/operate"
)

// The example, and its replicas, are this test binary, run again.
func TestMain(m *testing.M) {
	if os.Getenv("OPERATED_EXAMPLE") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestEachButtonDoesWhatItSays(t *testing.T) {
	for _, on := range []string{"postgres", "redis"} {
		t.Run(on, func(t *testing.T) {
			t.Parallel()
			s := open(t, on)
			s.strangers()
			s.freeze()
			s.kill()
			s.poison()
			s.pause()
			s.stop()
			handled := s.handled()
			s.until("the shop goes on", func() bool { return s.handled() > handled })
			end := syscall.SIGTERM
			if on == "redis" { // however it ends
				s.press("freeze", "replica-1")
				end = syscall.SIGKILL
			}
			s.end(end)
		})
	}
}

// visitor sees an example that runs from outside.
type visitor struct {
	*testing.T
	options
	cmd    *exec.Cmd
	out    fleet.Tail
	exited <-chan struct{}
	db     string
	be     operate.Operator
	client http.Client
}

func open(t *testing.T, on string) *visitor {
	port, err := childproc.FreePort(1, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	s := &visitor{T: t, options: options{on: on, port: port}, client: http.Client{Timeout: 10 * time.Second}}
	s.cmd = exec.Command(os.Args[0], "-on", on, "-port", strconv.Itoa(port))
	s.cmd.Env = append(os.Environ(), "OPERATED_EXAMPLE=1")
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	if s.exited, err = childproc.Spawn(s.cmd, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // it may have ended
		<-s.exited
		if t.Failed() {
			t.Log(s.out.Last(200))
		}
	})
	s.until("it has started", func() bool { return strings.Contains(s.out.Last(200), "Ctrl-C ends") })
	s.db = regexp.MustCompile(`-dsn '(.+)'`).FindStringSubmatch(s.out.Last(200))[1]
	be, end, err := connect(t.Context(), s.db)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	s.be = be
	s.shared(3)
	for _, name := range names() {
		for _, path := range []string{"/livez", "/readyz", "/metrics", "/leasegen/"} {
			if code, body := s.get(name, path); code != http.StatusOK || !strings.Contains(body, "billing") {
				t.Errorf("%s%s answers %d %s", name, path, code, body)
			}
		}
		if s.metric(name, "leasegen_lease_owned") == 0 {
			t.Errorf("%s owns nothing", name)
		}
	}
	return s
}

// until waits for a condition. It is never met when the example has ended.
func (s *visitor) until(what string, met func() bool) {
	s.Helper()
	began := time.Now()
	for !met() {
		select {
		case <-s.exited:
			s.Fatalf("the example ended before %s", what)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Since(began) > time.Minute {
			s.Fatalf("a minute passed before %s", what)
		}
	}
	s.Logf("%5d ms until %s", time.Since(began).Milliseconds(), what)
}

// get asks a replica, or the page of buttons. The code is 0 when it does not answer.
func (s *visitor) get(name, path string) (code int, body string) {
	answer, err := s.client.Get("http://" + s.addr(name) + path)
	if err != nil {
		return 0, ""
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, ""
	}
	return answer.StatusCode, string(b)
}

func (s *visitor) code(name, path string) int { code, _ := s.get(name, path); return code }

// press presses a button, and returns what the page says then.
func (s *visitor) press(button, name string) (code int, body string) {
	client := http.Client{Timeout: time.Minute} // stopping a replica takes a while
	answer, err := client.PostForm("http://"+s.addr("")+"/"+button, url.Values{"replica": {name}})
	if err != nil {
		s.Errorf("%s: %v", button, err)
		return 0, ""
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		s.Error(err)
	}
	return answer.StatusCode, string(b)
}

// pressed presses a button that is to work.
func (s *visitor) pressed(button, name string) {
	s.Helper()
	if code, body := s.press(button, name); code != http.StatusOK || !strings.Contains(body, "<strong>"+button+":</strong>") {
		s.Errorf("%s %s: %d %s", button, name, code, body)
	}
}

// metric is the sum of a metric of a replica, of the series that have all of the labels.
func (s *visitor) metric(name, metric string, labels ...string) (sum float64) {
	_, body := s.get(name, "/metrics")
lines:
	for line := range strings.Lines(body) {
		if !strings.HasPrefix(line, metric+"{") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(line, l) {
				continue lines
			}
		}
		f := strings.Fields(line)
		v, err := strconv.ParseFloat(f[len(f)-1], 64)
		if err != nil {
			s.Errorf("%s: %v", line, err)
		}
		sum += v
	}
	return sum
}

// total is the sum of a metric of all replicas but one.
func (s *visitor) total(but, metric string, labels ...string) (sum float64) {
	for _, name := range names() {
		if name != but {
			sum += s.metric(name, metric, labels...)
		}
	}
	return sum
}

func (s *visitor) handled() float64 {
	return s.total("", "leasegen_messages_total", `outcome="handled"`, `="shipping"`)
}

// shared waits until so many replicas share all that there is.
func (s *visitor) shared(members int) {
	s.Helper()
	s.until(fmt.Sprintf("%d replicas share everything", members), func() bool {
		all, err := s.be.Status(s.Context())
		if err != nil || len(all) != 3 {
			return false
		}
		for _, c := range all {
			if c.Members != members || c.Unowned > 0 || c.Consumer == "billing" && c.Resources != 6 {
				return false
			}
		}
		return true
	})
}

// strangers press no button.
func (s *visitor) strangers() {
	for _, c := range []struct {
		method, host, site string
		want               int
	}{
		{http.MethodPost, "", "cross-site", http.StatusForbidden},
		{http.MethodPost, "elsewhere.example", "same-origin", http.StatusForbidden},
		{http.MethodGet, "", "same-origin", http.StatusMethodNotAllowed},
	} {
		r, err := http.NewRequest(c.method, "http://"+s.addr("")+"/kill", strings.NewReader("replica=replica-1"))
		if err != nil {
			s.Fatal(err)
		}
		r.Host = c.host
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", c.site)
		answer, err := s.client.Do(r)
		if err != nil {
			s.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != c.want {
			s.Errorf("%+v: %d", c, answer.StatusCode)
		}
	}
	for path, want := range map[string]int{"/kill": http.StatusNotFound, "/no": http.StatusNotFound} {
		if code, body := s.press(path[1:], "replica-9"); code != want {
			s.Errorf("%s of a replica that is none: %d %s", path, code, body)
		}
	}
	if s.code("replica-1", "/readyz") != http.StatusOK {
		s.Error("replica-1 is not ready")
	}
}

const crashed = `crashed="true"`

// quick is how soon others have what a replica owned that froze or, on Redis, was killed: the TTL is over, and they find that out.
const quick = 3 * time.Second

// takenOver presses a button that ends a replica's work, and holds the others to the time in which they have what it owned. Where
// something else kept the machine busy in between, it brings the replica back and tries again: once they are that quick, or bare
// requests show that the machine is too slow to tell.
func (s *visitor) takenOver(button, name, back string, within time.Duration) {
	s.Helper()
	bare := pace.Beside(s, func(ctx context.Context) error { _, err := s.be.Members(ctx, "billing"); return err })
	defer bare.Stop()
	for began := time.Now(); ; {
		var owned map[string]string
		s.until(name+" owns topics", func() bool { owned = s.owned(name); return len(owned) > 0 })
		pressed := time.Now()
		s.pressed(button, name)
		var took time.Duration
		s.until(fmt.Sprintf("others have the %d topics that %s owned", len(owned), name), func() bool {
			leases, err := s.be.Leases(s.Context(), "billing", 100)
			for _, l := range leases {
				if session, was := owned[l.Resource]; was && l.Session != "" && l.Session != session {
					delete(owned, l.Resource)
					took = max(took, time.Since(pressed)-l.Since)
				}
			}
			return err == nil && len(owned) == 0
		})
		s.Logf("%5d ms after %s was pressed all were taken over", took.Milliseconds(), button)
		if took <= within {
			return
		}
		if time.Since(began) > time.Minute {
			bare.Within(s, "taking over after "+button+" of "+name, took, within)
			return
		}
		s.pressed(back, name)
		s.shared(3)
	}
}

// owned are the topics of billing that a replica owns, and its session.
func (s *visitor) owned(name string) map[string]string {
	s.Helper()
	_, page := s.get("", "/")
	pid := regexp.MustCompile(`<th scope="row">` + name + `\s*<td>(\d+)`).FindStringSubmatch(page)
	members, err := s.be.Members(s.Context(), "billing")
	leases, err2 := s.be.Leases(s.Context(), "billing", 100)
	if err := errors.Join(err, err2); err != nil || pid == nil {
		s.Fatal(err, pid)
	}
	owned := map[string]string{}
	for _, m := range members {
		for _, l := range leases {
			if strconv.Itoa(m.PID) == pid[1] && l.Session == m.Session {
				owned[l.Resource] = l.Session
			}
		}
	}
	return owned
}

func (s *visitor) freeze() {
	before := s.total("replica-1", "leasegen_lease_acquired_total", crashed)
	s.takenOver("freeze", "replica-1", "thaw", quick)
	s.client.Timeout = time.Second
	if code := s.code("replica-1", "/readyz"); code != 0 {
		s.Errorf("a frozen replica answers %d", code)
	}
	s.client.Timeout = 10 * time.Second
	s.shared(2)
	s.until("the others have counted it", func() bool {
		return s.total("replica-1", "leasegen_lease_acquired_total", crashed) > before
	})
	s.pressed("thaw", "replica-1")
	s.shared(3)
	s.until("it is ready, and knows what it lost", func() bool {
		return s.code("replica-1", "/readyz") == http.StatusOK && s.metric("replica-1", "leasegen_lease_lost_total") > 0
	})
}

func (s *visitor) kill() {
	before := s.total("replica-2", "leasegen_lease_acquired_total", crashed)
	within := quick
	if s.on == "postgres" { // the end of its connection tells, before the TTL is over
		within = time.Second
	}
	s.takenOver("kill", "replica-2", "start", within)
	if code, _ := s.press("kill", "replica-2"); code != http.StatusConflict {
		s.Errorf("killing a replica that does not run: %d", code)
	}
	if _, body := s.get("", "/"); !strings.Contains(body, "not running") {
		s.Errorf("the page does not say that it does not run: %s", body)
	}
	s.shared(2)
	s.until("the others have counted it", func() bool {
		return s.total("replica-2", "leasegen_lease_acquired_total", crashed) > before
	})
	s.pressed("start", "replica-2")
	s.until("it is ready", func() bool { return s.code("replica-2", "/readyz") == http.StatusOK })
	s.shared(3)
}

func (s *visitor) poison() {
	s.pressed("poison", "")
	s.until("billing has a dead letter", func() bool {
		letters, err := s.be.DeadLetters(s.Context(), operate.DeadLetterFilter{Consumer: "billing"})
		return err == nil && len(letters) == 1 && letters[0].Attempts == 3 && strings.Contains(letters[0].Reason, "stolen")
	})
	if _, body := s.get("replica-1", "/leasegen/dead?c=billing"); !strings.Contains(body, "stolen") {
		s.Errorf("the page of dead letters does not say why: %s", body)
	}
	s.until("it is counted", func() bool { return s.total("", "leasegen_dead_letters_total", `="billing"`) == 1 })
}

func (s *visitor) pause() {
	s.pressed("pause", "")
	if code, _ := s.press("pause", ""); code != http.StatusConflict {
		s.Errorf("a pause within a pause: %d", code)
	}
	every := func(code int) func() bool {
		return func() bool {
			all := true
			for _, name := range names() {
				all = all && s.code(name, "/readyz") == code
				if live := s.code(name, "/livez"); live != http.StatusOK {
					s.Errorf("/livez of %s: %d", name, live)
				}
			}
			return all
		}
	}
	s.until("no replica is ready", every(http.StatusServiceUnavailable))
	s.until("all are ready again", every(http.StatusOK))
	s.shared(3)
}

// stop stops the replica that is at a slow order.
func (s *visitor) stop() {
	s.pressed("slow", "")
	at := ""
	s.until("a call is stuck", func() bool {
		for _, name := range names() {
			_, body := s.get(name, "/readyz")
			var probe struct {
				Consumers []struct{ Stuck int }
			}
			if json.Unmarshal([]byte(body), &probe) == nil && len(probe.Consumers) > 0 && probe.Consumers[0].Stuck == 1 {
				at = name
			}
		}
		return at != ""
	})
	if s.metric(at, "leasegen_handler_stuck_now", `="billing"`) != 1 {
		s.Error("the metrics do not tell of the stuck call")
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.pressed("stop", at)
	}()
	s.until("it drains", func() bool { return s.code(at, "/readyz") == http.StatusServiceUnavailable })
	if code := s.code(at, "/livez"); code != http.StatusOK {
		s.Errorf("/livez of a replica that drains: %d", code)
	}
	<-stopped
	s.shared(2)
}

// end ends the example, after which none of its processes is left.
func (s *visitor) end(sig syscall.Signal) {
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.Fatal(err)
	}
	<-s.exited
	if sig == syscall.SIGTERM && !s.cmd.ProcessState.Success() {
		s.Error(s.cmd.ProcessState)
	}
	u, err := url.Parse(s.db)
	if err != nil {
		s.Fatal(err)
	}
	for _, addr := range []string{u.Host, s.addr(""), s.addr("replica-1"), s.addr("replica-2"), s.addr("replica-3")} {
		for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				break
			}
			c.Close()
			if time.Since(began) > time.Minute || sig == syscall.SIGTERM {
				s.Fatalf("something still listens at %s after the end", addr)
			}
		}
	}
}
