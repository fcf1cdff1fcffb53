package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
)

// binary finds the Redis server of this machine, 6.2 or newer.
func binary() (string, error) {
	if path := os.Getenv("LEASEGEN_REDIS_SERVER"); path != "" {
		if err := recent(path); err != nil {
			return "", fmt.Errorf("LEASEGEN_REDIS_SERVER=%s: %w", path, err)
		}
		return path, nil
	}
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", errors.New("no redis-server on this machine: apt-get install redis-server, or name one in LEASEGEN_REDIS_SERVER")
	}
	return path, recent(path)
}

var versionPattern = regexp.MustCompile(`\bv=(\d+)\.(\d+)`)

func recent(path string) error {
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return fmt.Errorf("%s --version: %w; want a redis-server of version 6.2 or newer", path, err)
	}
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return fmt.Errorf("%s --version says %.60q; want a redis-server of version 6.2 or newer", path, out)
	}
	major, _ := strconv.Atoi(string(m[1]))
	minor, _ := strconv.Atoi(string(m[2]))
	if major < 6 || major == 6 && minor < 2 {
		return fmt.Errorf("%s is version %d.%d; 6.2 or newer is needed", path, major, minor)
	}
	return nil
}
