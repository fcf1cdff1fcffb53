package generator

import (
	"path/filepath"
	"testing"
)

// TestGeneratedCodeRuns: constructors make a consumer of every per= and lock= on the
// backend in memory, and refuse a handler that is nil.
func TestGeneratedCodeRuns(t *testing.T) {
	root := newModule(t)
	writeFile(t, filepath.Join(root, "all", "all.go"), []byte(`package all

import (
	"context"

	"github.com/leasegen/leasegen/runtime/lease"
)

//leasegen:event key=ID
type E struct{ ID string }

type handles struct{}

func (handles) HandleE(context.Context, lease.Message[E]) error { return nil }

type runs struct{}

func (runs) Run(context.Context, lease.Lease) error { return nil }

//leasegen:consumer per=topic topics=a from=now capacity=5
type Topic struct{ handles }

//leasegen:consumer per=group topics=a
type Group struct{ handles }

//leasegen:consumer per=group topics=a lock=advisory
type GroupAdvisory struct{ handles }

//leasegen:consumer per=partition topics=a capacity=5 workers=2
type Partition struct{ handles }

//leasegen:consumer per=stream input=a idle=1s
type Keys struct{ handles }

//leasegen:consumer per=stream input=a lock=row capacity=5
type KeysRow struct{ handles }

//leasegen:consumer per=stream poll=1s
type Named struct{ runs }

func (Named) Streams(context.Context) ([]string, error) { return nil, nil }

//leasegen:consumer per=stream lock=row
type NamedRow struct{ Named }

//leasegen:consumer per=partition topics=a
//leasegen:once key=ID on_unknown=park keep=1h
type Items struct{ handles }

//leasegen:consumer per=cluster
type Cluster struct{ runs }

//leasegen:consumer per=cluster lock=session
type ClusterSession struct{ runs }
`))
	writeFile(t, filepath.Join(root, "all", "all_test.go"), []byte(`package all

import (
	"context"
	"strings"
	"testing"

	"github.com/leasegen/leasegen/runtime/lease"
	"github.com/leasegen/leasegen/runtime/leasemem"
)

func TestAll(t *testing.T) {
	be := leasemem.New()
	err := RegisterLeasegen(lease.NewGroup(), be, LeasegenHandlers{
		Topic: &Topic{}, Group: &Group{}, GroupAdvisory: &GroupAdvisory{}, Partition: &Partition{},
		Keys: &Keys{}, KeysRow: &KeysRow{}, Named: &Named{}, NamedRow: &NamedRow{}, Items: &Items{},
		Cluster: &Cluster{}, ClusterSession: &ClusterSession{},
	})
	if err != nil {
		t.Error(err)
	}
	g := lease.NewGroup()
	err = RegisterLeasegen(g, be, LeasegenHandlers{Topic: &Topic{}, Partition: &Partition{}})
	for _, name := range []string{"group", "group_advisory", "keys", "keys_row", "named", "named_row", "items", "cluster", "cluster_session"} {
		if err == nil || !strings.Contains(err.Error(), "make consumer \""+name+"\": its handler is nil") {
			t.Errorf("RegisterLeasegen says nothing of %s, which is nil: %v", name, err)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := g.Run(ended); err == nil || !strings.Contains(err.Error(), "no consumers") {
		t.Errorf("the group has some of the consumers: %v", err)
	}
	c, err := NewTopic(be, nil)
	if want := "lease: make consumer \"topic\": its handler is nil; set it, or run the other consumers only, each by its constructor"; c != nil || err == nil || err.Error() != want {
		t.Errorf("a nil handler gives %v, %v", c, err)
	}
}
`))
	res := generate(t, root, "./...")
	if len(res.Files) != 2 { // the consumers, and what registers them
		t.Fatal(res.Diags.All())
	}
	place(t, res)
	if out, err := command(t, root, "go", "test", "-count=1", "./all"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
