package generator

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/leasegen/leasegen/internal/sqlctest"
)

// TestTablesShareRuns: sqlc makes a schema out once, however many packages have tables of it, and
// works on as many folders at once as there are processors. The first sqlc of the test that works on
// a folder waits for another one.
func TestTablesShareRuns(t *testing.T) {
	procs := runtime.GOMAXPROCS(2)
	defer runtime.GOMAXPROCS(procs)
	root, log := newModule(t), t.TempDir()
	script := fmt.Sprintf(`#!/bin/sh
[ "$1" = generate ] || exec %[1]s "$@"
if grep -q catalog.json "$3"; then echo catalog > %[2]s/run.$$; exec %[1]s "$@"; fi
echo folder > %[2]s/run.$$
touch %[2]s/now.$$
n=0
until [ $(ls %[2]s/now.* | wc -l) -ge 2 ] || [ -e %[2]s/together ] || [ $n -ge 200 ]; do sleep 0.05; n=$((n+1)); done
seen=$(ls %[2]s/now.* | wc -l)
[ $seen -ge 2 ] && touch %[2]s/together
echo $seen > %[2]s/seen.$$
%[1]s "$@"
code=$?
rm %[2]s/now.$$
exit $code
`, sqlctest.Path(t), log)
	fake := filepath.Join(log, "sqlc")
	if err := os.WriteFile(fake, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(root, "db", "1.sql"), []byte("CREATE TABLE box (xid xid8 DEFAULT pg_current_xact_id(), id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);\n"))
	const folders = 4
	for i := range folders {
		p := fmt.Sprint("p", i)
		writeFile(t, filepath.Join(root, p, "p.go"), []byte(strings.ReplaceAll(`package PKG

import (
	"context"

	"github.com/leasegen/leasegen/runtime/lease"
	"golden.test/PKG/leasedb"
)

//leasegen:consumer name=PKG per=group
//leasegen:table name=box schema=db
type Rows struct{}

func (*Rows) Handle(context.Context, lease.Message[leasedb.BoxRow]) error { return nil }
`, "PKG", p)))
	}
	res, err := Generate(t.Context(), Config{Dir: root, Patterns: []string{"./..."}, SQLC: fake})
	if err != nil || res.Diags.Len() > 0 || len(res.Files) != folders*6 {
		t.Fatal(err, res.Diags.All(), len(res.Files))
	}
	runs := map[string]int{}
	entries, err := os.ReadDir(log)
	if err != nil {
		t.Fatal(err)
	}
	atOnce := 0
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(log, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		switch text := strings.TrimSpace(string(text)); {
		case strings.HasPrefix(e.Name(), "seen."):
			n, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			atOnce = max(atOnce, n)
		case strings.HasPrefix(e.Name(), "run."):
			runs[text]++
		}
	}
	if runs["catalog"] != 1 || runs["folder"] != folders {
		t.Errorf("sqlc has made out the schema %d times, want once, and written %d folders, want %d", runs["catalog"], runs["folder"], folders)
	}
	if atOnce != 2 {
		t.Errorf("%d folders are worked on at once, want as many as processors, 2", atOnce)
	}
}
