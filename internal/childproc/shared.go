package childproc

import (
	"sync"
	"testing"
)

// Shared is what the tests of one binary share: its servers, which a test process has no other place for, and names.
type Shared struct {
	Package string // whose Main the tests have to call

	mu    sync.Mutex
	main  bool
	ends  []func()
	names int
}

// Tests are a *testing.M, or a Runner that has them.
type Tests interface{ Run() int }

// Runner runs tests and then ends the servers that they shared.
type Runner struct {
	shared *Shared
	tests  Tests
}

// Wrap is the tests with the end of what they share.
func (s *Shared) Wrap(tests Tests) Runner { return Runner{s, tests} }

// Run returns the exit code of the tests.
func (r Runner) Run() int {
	r.shared.mu.Lock()
	r.shared.main = true
	r.shared.mu.Unlock()
	defer func() {
		r.shared.mu.Lock()
		defer r.shared.mu.Unlock()
		for _, end := range r.shared.ends {
			end()
		}
	}()
	return r.tests.Run()
}

// Number is one that no other call returns.
func (s *Shared) Number() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names++
	return s.names
}

// Once is the server that launch starts for the first test that asks.
func Once[S interface{ Close() }](s *Shared, launch func() (S, error)) func(testing.TB) S {
	started := sync.OnceValues(func() (S, error) {
		server, err := launch()
		if err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.ends = append(s.ends, server.Close)
		}
		return server, err
	})
	return func(t testing.TB) S {
		t.Helper()
		s.mu.Lock()
		main := s.main
		s.mu.Unlock()
		if !main {
			t.Fatalf("%s: this package's TestMain must call %[1]s.Main(m)", s.Package)
		}
		server, err := started()
		if err != nil {
			t.Fatal(err)
		}
		return server
	}
}
