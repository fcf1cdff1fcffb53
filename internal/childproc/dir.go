package childproc

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// NewDir makes a temporary directory for a server in a directory (empty: that for temporary files), owned by the user it
// runs as (nil: the present one). It lasts as long as lock is open; when a process ends without
// removing it, a later call with the same prefix sweeps it away.
func NewDir(in, prefix string, owner *syscall.Credential) (dir string, lock *os.File, err error) {
	sweep(prefix)
	if dir, err = os.MkdirTemp(in, prefix); err != nil {
		return "", nil, err
	}
	if lock, err = os.Create(filepath.Join(dir, "lock")); err != nil {
		return dir, nil, err
	}
	if err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return dir, lock, fmt.Errorf("lock %s: %w", dir, err)
	}
	if owner != nil {
		err = os.Chown(dir, int(owner.Uid), int(owner.Gid))
	}
	return dir, lock, err
}

// sweep removes what servers of killed test processes left behind.
func sweep(prefix string) {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	inMemory, _ := filepath.Glob(filepath.Join(memory, prefix+"*"))
	for _, dir := range append(dirs, inMemory...) {
		st, err := os.Stat(dir)
		if err != nil || time.Since(st.ModTime()) < time.Minute {
			continue // perhaps just being made
		}
		lock, err := os.Open(filepath.Join(dir, "lock"))
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			os.RemoveAll(dir)
		}
		lock.Close()
	}
}
