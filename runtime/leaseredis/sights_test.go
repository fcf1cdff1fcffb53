package leaseredis_test

import (
	"bytes"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/leasegen/leasegen/runtime/internal/kit"
)

// sights are what servers have shown over connections: a process is found by the end of its own only where others have seen it.
type sights struct {
	mu    sync.Mutex
	conns []*sight
}

// sight is one connection. It notes which it is, and the connections that replies to CLIENT LIST name.
type sight struct {
	net.Conn
	of *sights

	run, name string // of the server; of the link
	shown     []string
	own       string // id
	rest      []byte // of a line whose end was not read yet
}

// open is a change for through.
func (s *sights) open(c net.Conn) net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := &sight{Conn: c, of: s}
	s.conns = append(s.conns, one)
	return one
}

// NetConn is how the link finds what it sets options of.
func (c *sight) NetConn() net.Conn { return c.Conn }

var linkName = regexp.MustCompile(`leasegen-[A-Z2-7]{26}`)

func (c *sight) Write(b []byte) (int, error) {
	if name := linkName.Find(b); name != nil {
		c.of.mu.Lock()
		c.name = string(name)
		c.of.mu.Unlock()
	}
	return c.Conn.Write(b)
}

func (c *sight) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.name == "" { // no link
		return n, err
	}
	c.rest = append(c.rest, b[:n]...)
	for {
		line, rest, ended := bytes.Cut(c.rest, []byte("\n"))
		if !ended {
			return n, err
		}
		c.note(strings.TrimPrefix(string(line), "txt:"))
		c.rest = rest
	}
}

func (c *sight) note(line string) {
	if run, is := strings.CutPrefix(line, "run_id:"); is {
		c.run = strings.TrimSpace(run)
	}
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return
	}
	id, is := strings.CutPrefix(fields[0], "id=")
	switch {
	case !is:
	case slices.Contains(fields, "name="+c.name):
		c.own = id
	case !slices.Contains(c.shown, id):
		c.shown = append(c.shown, id)
	}
}

// shows reports whether the link of one noted connection was shown another.
func (s *sights) shows(link, other string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.conns, func(c *sight) bool {
		id, is := strings.CutPrefix(other, c.run+"/")
		return is && c.run+"/"+c.own == link && slices.Contains(c.shown, id)
	})
}

// sees waits until the server has shown a session the connections that the others have noted, under each tag. The session's
// own are among those of s.
func (w *watched) sees(s *sights, session string, others ...string) {
	w.t.Helper()
	kit.Eventually(w.t, "the session has seen the others' connections", func() bool {
		for tag := range w.tags {
			link := w.conn(tag, session)
			if slices.ContainsFunc(others, func(other string) bool { return !s.shows(link, w.conn(tag, other)) }) {
				return false
			}
		}
		return true
	})
}
