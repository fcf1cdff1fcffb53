package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	leastInterval = 100 * time.Millisecond
	mostBackoff   = 30 * time.Second // between two tries while the server is away, unless the interval is longer
)

// Sequences that steer a terminal: its other screen, on which lines are cut in place of wrapped, and back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// watching shows the status again and again, until ctx ends: on a terminal in place, elsewhere one below the other. A first
// answer must come. Later on a server that is away is asked again, after ever longer whiles.
func (s *status) watching(ctx context.Context, out *output, on target) error {
	v := &view{out: out, screen: out.redraws && s.format == "text", json: s.format == "json",
		head: fmt.Sprintf("every %s, in %s", s.interval, on.where)}
	if v.screen {
		fmt.Fprint(out, enterScreen)
		defer fmt.Fprint(out, leaveScreen)
	}
	wait := s.interval
	for {
		began := time.Now()
		frame, err := s.frame(ctx, out, on)
		_, mistaken := errors.AsType[usageError](err)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (mistaken || v.last == nil):
			return err
		case err != nil:
			wait = min(2*wait, max(mostBackoff, s.interval))
			err = v.away(err, wait)
		default:
			wait = max(s.interval, time.Since(began)) // of a server that is slow half of the time is asked
			err = v.show(frame)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// frame is the status as it is printed.
func (s *status) frame(ctx context.Context, out *output, on target) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out.resize()
	var b bytes.Buffer
	sheet := *out
	sheet.Writer = &b
	err := s.once(ctx, &sheet, on)
	return b.Bytes(), err
}

// view is what a watcher sees.
type view struct {
	out          *output
	screen, json bool
	head         string
	last         []byte // the last answer
	at           time.Time
}

// show shows an answer.
func (v *view) show(frame []byte) (err error) {
	v.last, v.at = frame, time.Now()
	switch {
	case v.screen:
		return v.draw(v.at.Format(time.TimeOnly)+", "+v.head, frame)
	case v.json:
		_, err = v.out.Write(frame)
	default:
		_, err = fmt.Fprintf(v.out, "%s\n%s\n", v.at.Format(time.RFC3339), frame)
	}
	return err
}

// away says that there is no answer, above the last one.
func (v *view) away(cause error, wait time.Duration) error {
	text := printable(oneLine(cause), 300)
	switch {
	case v.screen:
		head := fmt.Sprintf("no answer since %s, asking again in %s: %s", v.at.Format(time.TimeOnly), age(wait), text)
		return v.draw(v.out.paint(attention+head), v.last)
	case v.json:
		return printJSON(v.out, map[string]any{"error": text, "retry_seconds": wait.Seconds()})
	}
	return v.out.alarm("%s\nno answer, asking again in %s: %s\n", time.Now().Format(time.RFC3339), age(wait), text)
}

// draw fills the screen, each line over the one that was there.
func (v *view) draw(head string, frame []byte) error {
	lines := append([]string{head, ""}, strings.Split(strings.TrimSuffix(string(frame), "\n"), "\n")...)
	if room := v.out.height; room > 2 && len(lines) > room {
		more := len(lines) - room + 1
		lines = append(lines[:room-1], fmt.Sprintf("… %s", plural(more, "more line")))
	}
	_, err := fmt.Fprintf(v.out, "\x1b[H%s\x1b[K\x1b[J", strings.Join(lines, "\x1b[K\n"))
	return err
}
