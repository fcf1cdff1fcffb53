package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasegen/leasegen/internal/childproc"
)

// Server is a running or stopped PostgreSQL server. Its methods are for one goroutine at
// a time. An error in them ends the test; on a server made by Launch it panics.
type Server struct {
	*childproc.Server
	bin    string   // directory of the binaries
	config []string // name=value
	disk   bool     // see OnDisk
	wal    bool     // see WALOnDisk
	cred   *syscall.Credential
	// PEM; the server speaks TLS when they are set
	certificate, key []byte

	templates sync.Map       // functions that make them once, by name
	copying   string         // how CREATE DATABASE copies, empty for the server's way
	idle      chan *pgx.Conn // that make databases; nil where each does it with one of its own, since the server may stop
}

// Option configures a server.
type Option func(*Server)

// Config sets a parameter of postgresql.conf.
func Config(name, value string) Option {
	return func(s *Server) { s.config = append(s.config, name+"="+value) }
}

// OnDisk keeps the data where temporary files are: for programs that measure, and for what runs for long. Where a commit is only to
// wait for a disk, WALOnDisk will do. Without either the data are in memory where that has room: a server makes a thousand files, and
// some file systems are slow to make files where others were removed.
func OnDisk() Option {
	return func(s *Server) { s.disk = true }
}

// WALOnDisk keeps the write-ahead log where temporary files are, and only that: a commit waits for a disk, as it does for users, and
// the thousand other files are made as fast as without it.
func WALOnDisk() Option {
	return func(s *Server) { s.wal = true }
}

// TLS lets the server speak TLS, too, with a certificate and its key in PEM.
func TLS(certificate, key []byte) Option {
	return func(s *Server) { s.certificate, s.key = certificate, key }
}

// Mode says how Stop stops a server.
type Mode syscall.Signal

const (
	// Smart waits until all clients have disconnected.
	Smart = Mode(syscall.SIGTERM)
	// Fast disconnects clients, rolls back and shuts down in good order.
	Fast = Mode(syscall.SIGINT)
	// Immediate aborts; the next start recovers from the log.
	Immediate = Mode(syscall.SIGQUIT)
)

// How long a statement's effect on a server is waited for.
const effectTimeout = time.Minute

// Launch starts a server outside of a test. Close it.
func Launch(opts ...Option) (*Server, error) {
	s, err := launch(opts)
	if err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	return s, nil
}

func launch(opts []Option) (_ *Server, err error) {
	s := &Server{}
	if s.bin, err = binaries(); err != nil {
		return nil, err
	}
	if s.cred, err = unprivileged(); err != nil {
		return nil, err
	}
	for _, o := range opts {
		o(s)
	}
	if slices.Contains(s.config, "fsync=off") { // it loses what the machine loses anyway
		s.config = append(s.config, "full_page_writes=off")
		// Where no file is synced, copying files costs half of what writing their pages to the log does. Older ones know no other way.
		if version(s.bin) >= 15 {
			s.copying = " STRATEGY file_copy"
		}
	}
	return s, s.launch(s.initdb)
}

// launch lets a function make the data directory, and starts the server.
func (s *Server) launch(data func() error) (err error) {
	in := "" // where temporary files are
	if !s.disk {
		in = childproc.Memory()
	}
	s.Server, err = childproc.NewServer(childproc.Spec{
		Name: "PostgreSQL", In: in, Prefix: dirPrefix, Owner: s.cred, Command: s.postgres,
		Ready: func(int) bool { return s.ready() },
		AtEnd: syscall.SIGQUIT, // it shuts down at once
	})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err = data(); err != nil {
		return err
	}
	if s.wal && in != "" {
		if err = s.moveWAL(); err != nil {
			return err
		}
	}
	if err = s.writeTLS(); err != nil {
		return err
	}
	return s.Launch()
}

// moveWAL takes the write-ahead log out of the data directory, before the first start.
func (s *Server) moveWAL() error {
	dir, err := s.DirOnDisk()
	if err != nil {
		return err
	}
	from, to := filepath.Join(s.data(), "pg_wal"), filepath.Join(dir, "pg_wal")
	if err := copyAll(from, to); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(from), os.Symlink(to, from))
}

// writeTLS puts the certificate and its key where the server finds them by default.
func (s *Server) writeTLS() error {
	if s.certificate == nil {
		return nil
	}
	s.config = append(s.config, "ssl=on")
	for name, pem := range map[string][]byte{"server.crt": s.certificate, "server.key": s.key} {
		path := filepath.Join(s.data(), name)
		if err := os.WriteFile(path, pem, 0o600); err != nil {
			return err
		}
		if s.cred != nil {
			if err := os.Chown(path, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
				return err
			}
		}
	}
	return nil
}

// DSN is the connection string of a database on s, as superuser postgres.
func (s *Server) DSN(db string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", s.Addr(), db)
}

// Stop stops the server and waits for its end.
func (s *Server) Stop(mode Mode) { s.End(syscall.Signal(mode)) }

// Start starts a server that was stopped or killed, on the same port and data.
// Options given change its configuration from now on.
func (s *Server) Start(opts ...Option) {
	for _, o := range opts {
		o(s)
	}
	s.Server.Start()
}

// Restart stops the server in good order and starts it again.
func (s *Server) Restart(opts ...Option) {
	s.Stop(Fast)
	s.Start(opts...)
}

func (s *Server) data() string { return filepath.Join(s.Dir, "data") }

// fill lets a program of the server's make the data directory.
func (s *Server) fill(program string, args ...string) error {
	if out, err := s.command(program, append(args, "--pgdata="+s.data())...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", program, err, out)
	}
	return nil
}

func (s *Server) command(name string, args ...string) *exec.Cmd {
	return command(s.Dir, s.cred, filepath.Join(s.bin, name), args...)
}

// postgres is the server's process, for one start.
func (s *Server) postgres() (*exec.Cmd, error) {
	args := []string{"-D", s.data(), "-p", strconv.Itoa(s.Port), "-k", s.Dir}
	// Shared memory in the data directory goes with that when the server is killed.
	for _, c := range append([]string{"listen_addresses=127.0.0.1", "fsync=on", "dynamic_shared_memory_type=mmap"}, s.config...) {
		args = append(args, "-c", c)
	}
	cmd := s.command("postgres", args...)
	// A server that is measured runs as users have it. Connections to the others cost less: they find the functions of libraries looked
	// up, and keep up to 64 MiB that they have freed, in place of giving it back between statements.
	if !s.disk {
		cmd.Env = append(cmd.Env, "LD_BIND_NOW=1", "MALLOC_TRIM_THRESHOLD_=67108864", "MALLOC_TOP_PAD_=1048576", "MALLOC_MMAP_THRESHOLD_=33554432")
	}
	return cmd, nil
}

func (s *Server) ready() bool {
	// The last line of this file is the server's own word on its state.
	b, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	if err != nil || !bytes.Contains(b, []byte("\nready")) && !bytes.Contains(b, []byte("\nstandby")) {
		return false
	}
	return connects(s.DSN("postgres"))
}

// connects reports whether a server takes connections.
func connects(dsn string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, dsn)
	return err == nil && c.Close(ctx) == nil
}
