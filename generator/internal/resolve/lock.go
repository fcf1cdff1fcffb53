package resolve

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/leasegen/leasegen/generator/internal/diag"
)

// lockKeys refuses two consumers whose advisory locks are one, though their names differ.
func (r *resolver) lockKeys(sources []*Source, key func(name string) int64) {
	first := map[int64]*Consumer{}
	for c := range Consumers(sources) {
		if c.Consumer.EffectiveLock() != "advisory" {
			continue
		}
		if f := firstOf(first, key(c.Name), c); !strings.EqualFold(f.Name, c.Name) { // one name is a finding of its own
			r.add(c.Consumer.Finding("LG0406", "name",
				fmt.Sprintf("the advisory locks of the consumers %q and %q have one key, %d", f.Name, c.Name, key(c.Name)),
				"they would shut each other out; write another name= or lock=session",
				diag.Related{Pos: r.position(f.Type.Name.Pos()), Message: "first at"}))
		}
	}
}

// lockKey is what leasepg.LockKey returns; the generator does not depend on the runtime.
func lockKey(name string) int64 {
	sum := sha256.Sum256([]byte("leasegen/" + name))
	return int64(binary.BigEndian.Uint64(sum[:]))
}
