package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

// shaky is an operator whose server is away for a while.
type shaky struct {
	operate.Operator
	began     time.Time
	from, to  time.Duration // when it is away
	asked     []time.Duration
	forgotten bool // what it says then is that the consumer is not known
}

func (s *shaky) Status(context.Context) ([]operate.ConsumerStatus, error) {
	at := time.Since(s.began)
	s.asked = append(s.asked, at)
	switch {
	case at < s.from || at >= s.to:
		return []operate.ConsumerStatus{{Consumer: "billing", Per: "topic", DeadLetters: len(s.asked)}}, nil
	case s.forgotten:
		return nil, nil
	}
	return nil, errors.New("dial tcp: connection\nrefused \x1b[2J")
}

func (*shaky) Members(context.Context, string) ([]operate.MemberStatus, error) { return nil, nil }

func watched(t *testing.T, s status, server *shaky, out *output, d time.Duration) (string, error) {
	t.Helper()
	var text strings.Builder
	var err error
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		server.began = time.Now()
		out.Writer = &text
		s.watch, s.interval, s.limit = true, 2*time.Second, 50
		err = s.do(ctx, out, target{Operator: server, where: "memory"})
	})
	return text.String(), err
}

// A server that is away is asked again after ever longer whiles; the watcher reads so, and goes on when it is back.
func TestWatchWaitsForAServer(t *testing.T) {
	server := &shaky{from: 3 * time.Second, to: 100 * time.Second}
	text, err := watched(t, status{format: "text"}, server, &output{}, 129*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var want []time.Duration
	for _, s := range []int{0, 2, 4, 8, 16, 32, 62, 92, 122, 124, 126, 128} {
		want = append(want, time.Duration(s)*time.Second)
	}
	if !slices.Equal(server.asked, want) {
		t.Errorf("asked at %v, want %v", server.asked, want)
	}
	for _, line := range []string{
		"\n2000-01-01T", "\nbilling   topic ",
		"\nno answer, asking again in 4.0 s: dial tcp: connection refused \\x1b[2J\n", "\nno answer, asking again in 30 s: ",
	} {
		if !strings.Contains("\n"+text, line) {
			t.Errorf("%q is missing in\n%s", line, text)
		}
	}
	if strings.Contains(text, "\x1b") {
		t.Errorf("what is no terminal is steered: %q", text)
	}

	text, err = watched(t, status{format: "json"}, &shaky{from: 3 * time.Second, to: 5 * time.Second}, &output{redraws: true, colour: true}, 9*time.Second)
	if err != nil || strings.Count(text, `"consumers": [`) != 3 || !strings.Contains(text, `"retry_seconds": 4`) || strings.Contains(text, "\x1b") {
		t.Errorf("%v\n%s", err, text)
	}
}

// On a terminal the last answer stays, with what is amiss above it, and it has no more lines than the terminal.
func TestWatchInPlace(t *testing.T) {
	server, out := &shaky{from: time.Second, to: 5 * time.Second}, &output{redraws: true, colour: true, height: 24}
	text, err := watched(t, status{format: "text"}, server, out, 7*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	frames := strings.Split(strings.TrimSuffix(strings.TrimPrefix(text, enterScreen), leaveScreen), "\x1b[H")
	if len(frames) != 4 || text != enterScreen+strings.Join(frames, "\x1b[H")+leaveScreen {
		t.Fatalf("%d frames:\n%q", len(frames)-1, text)
	}
	for i, want := range []string{
		"00:00:00, every 2s, in memory\x1b[K\n",
		"\x1b[31mno answer since 00:00:00, asking again in 4.0 s: dial tcp: connection refused \\x1b[2J\x1b[m\x1b[K\n",
		"00:00:06, every 2s",
	} {
		if got := frames[i+1]; !strings.Contains(got, want) || !strings.Contains(got, "\nbilling   topic ") || !strings.HasSuffix(got, "\x1b[K\x1b[J") {
			t.Errorf("frame %d: %q, want %q", i, got, want)
		}
	}
	text, err = watched(t, status{format: "text"}, &shaky{}, &output{redraws: true, height: 3}, time.Second)
	if err != nil || strings.Count(text, "\n") != 2 || !strings.Contains(text, "\n… 3 more lines\x1b[K\x1b[J") {
		t.Errorf("on three rows (%v): %q", err, text)
	}
}

// A watch ends when waiting does not help: without a first answer, or when its consumer was forgotten.
func TestWatchEnds(t *testing.T) {
	for _, c := range []struct {
		server *shaky
		want   string
	}{
		{&shaky{to: time.Hour}, "dial tcp: "},
		{&shaky{from: time.Second, to: time.Hour, forgotten: true}, `there is no consumer "billing"`},
	} {
		text, err := watched(t, status{format: "text", consumer: "billing"}, c.server, &output{redraws: true}, time.Minute)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || !strings.HasSuffix(text, leaveScreen) {
			t.Errorf("%v, want %s; %q", err, c.want, text)
		}
	}
}
