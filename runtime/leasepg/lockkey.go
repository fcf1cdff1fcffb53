package leasepg

import (
	"crypto/sha256"
	"encoding/binary"
)

// LockKey is the key of the advisory lock that a LockAdvisory consumer of that name
// holds: the first 64 bits of SHA-256 of "leasegen/" and the name. The generator computes
// the same to refuse two consumers whose keys are one.
func LockKey(consumer string) int64 {
	sum := sha256.Sum256([]byte("leasegen/" + consumer))
	return int64(binary.BigEndian.Uint64(sum[:]))
}
