package leasehealth_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasehealth"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

type answer struct {
	OK        bool
	Consumers []struct {
		Consumer, Trouble, Session string
		BeliefMS                   int64 `json:"belief_ms"`
		Leases                     int
		Ended, Paused              bool
		Progress                   *time.Time
		Stuck                      int
		StuckCalls                 []struct{ Resource, Kind, ID string } `json:"stuck_calls"`
	}
}

func ask(t *testing.T, h http.Handler) (int, answer) {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
	var a answer
	if err := json.Unmarshal(rec.Body.Bytes(), &a); err != nil {
		t.Fatalf("%s: %v", rec.Body, err)
	}
	return rec.Code, a
}

// The life of a process as its probes see it: before Run, at work, in a call that takes too long, draining, ended.
func TestTheLifeOfAProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		be := leasemem.New()
		release := make(chan struct{})
		c, err := lease.NewConsumer(be, lease.Spec{
			Name: "bills", Per: lease.PerTopic, Topics: []string{"*"}, Drain: time.Minute,
			Handlers: []lease.Handler{lease.One("note", func(_ context.Context, m lease.Message[string]) error {
				if m.Payload == "slow" {
					<-release
				}
				return nil
			})},
		}, lease.WithStuckAfter(time.Second, false), lease.WithStallAfter(2*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		g := lease.NewGroup()
		if err := g.Add(c); err != nil {
			t.Fatal(err)
		}
		live, ready := leasehealth.Live(g), leasehealth.Ready(g)
		codes := func(when string, l, r int) answer {
			t.Helper()
			gotLive, _ := ask(t, live)
			gotReady, a := ask(t, ready)
			if gotLive != l || gotReady != r || len(a.Consumers) != 1 || a.Consumers[0].Consumer != "bills" || a.OK != (r == 200) {
				t.Fatalf("%s: live %d, ready %d, %+v; want %d and %d", when, gotLive, gotReady, a, l, r)
			}
			return a
		}
		if a := codes("before Run", 200, 503); !strings.Contains(a.Consumers[0].Trouble, "does not run") {
			t.Errorf("before Run the trouble is %q", a.Consumers[0].Trouble)
		}

		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx) }()
		publish := func(payload string) {
			if err := be.Publish(t.Context(), []lease.Event{{Topic: "x", Kind: "note", Payload: []byte(`"` + payload + `"`)}}); err != nil {
				t.Fatal(err)
			}
		}
		publish("quick")
		time.Sleep(time.Second)
		a := codes("at work", 200, 200).Consumers[0]
		if a.Session == "" || a.BeliefMS <= 0 || a.Leases != 1 || a.Progress == nil || a.Trouble != "" {
			t.Errorf("at work: %+v", a)
		}

		if err := be.Pause(t.Context(), "bills"); err != nil {
			t.Fatal(err)
		}
		publish("quick")
		time.Sleep(time.Hour)
		if a = codes("paused", 200, 200).Consumers[0]; !a.Paused || a.Leases != 0 || a.Session == "" {
			t.Errorf("paused: %+v", a)
		}
		if err := be.Resume(t.Context(), "bills"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if a = codes("resumed", 200, 200).Consumers[0]; a.Paused || a.Leases != 1 {
			t.Errorf("resumed: %+v", a)
		}

		publish("slow")
		time.Sleep(10 * time.Second)
		a = codes("in a call that takes too long", 200, 503).Consumers[0]
		if a.Stuck != 1 || len(a.StuckCalls) != 1 || a.StuckCalls[0].Resource != "x" || a.StuckCalls[0].Kind != "note" || !strings.Contains(a.Trouble, "stands still") {
			t.Errorf("in a call that takes too long: %+v", a)
		}

		stop()
		time.Sleep(time.Second)
		codes("draining", 200, 503)
		close(release)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		codes("ended", 503, 503)
	})
}

func TestOtherRequests(t *testing.T) {
	h := leasehealth.Live(lease.NewGroup())
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/", nil))
	if rec.Code != http.StatusMethodNotAllowed || rec.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: %d, Allow %q", rec.Code, rec.Header().Get("Allow"))
	}
	if code, _ := ask(t, h); code != http.StatusServiceUnavailable {
		t.Errorf("a group without consumers: %d, want 503", code)
	}
}

type many struct{}

func (many) Health() []lease.Health {
	return []lease.Health{{Consumer: "c", Trouble: "stuck", Stuck: make([]lease.StuckCall, 5000)}}
}

// An answer does not grow with the calls that hang.
func TestAnswersAreBounded(t *testing.T) {
	_, a := ask(t, leasehealth.Ready(many{}))
	if c := a.Consumers[0]; c.Stuck != 5000 || len(c.StuckCalls) != 20 {
		t.Errorf("the answer counts %d calls and lists %d, want 5000 and 20", c.Stuck, len(c.StuckCalls))
	}
}
