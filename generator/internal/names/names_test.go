package names

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/leasegen/leasegen/generator/internal/ir"
)

func TestFunctionNames(t *testing.T) {
	for typ, want := range map[string][2]string{
		"Billing": {"NewBilling", "PublishBilling"},
		"billing": {"newBilling", "publishBilling"},
		"éclair":  {"newÉclair", "publishÉclair"},
		"_x":      {"new_x", "publish_x"},
		"HTTP":    {"NewHTTP", "PublishHTTP"},
	} {
		if got := [2]string{Constructor(typ), Publish(typ)}; got != want {
			t.Errorf("%s: %v, want %v", typ, got, want)
		}
	}
}

// TestFile: imports give way to the package's names and to each other, parameters to both.
func TestFile(t *testing.T) {
	f := &ir.File{
		PkgPath: "x.test/p", PkgName: "p",
		Events: []ir.Event{{Type: ir.Type{Path: "x.test/p", Name: "topic"}}},
		Consumers: []ir.Consumer{{Type: ir.Type{Path: "x.test/p", Name: "C"}, Handlers: []ir.Handler{
			{Payload: ir.Type{Path: "x.test/z/v2", PkgName: "events", Name: "A"}},
			{Payload: ir.Type{Path: "x.test/a", PkgName: "events", Name: "B"}},
			{Payload: ir.Type{Path: "x.test/b", PkgName: "string", Name: "B"}},
			{Payload: ir.Type{Path: "x.test/h", PkgName: "h", Name: "B"}},
			{Payload: ir.Type{Path: "x.test/p", PkgName: "p", Name: "D"}},
			{Payload: ir.Type{Name: "[]byte"}},
		}}},
	}
	File(f, map[string]bool{"lease": true, "lease2": true, "context": true})
	got := map[string]ir.Import{}
	for _, i := range f.Imports {
		got[i.Path] = i
	}
	want := map[string]ir.Import{
		Lease:         {Path: Lease, Name: "lease3", Alias: true},
		LeasePG:       {Path: LeasePG, Name: "leasepg"},
		PGTable:       {Path: PGTable, Name: "pgtable"},
		LeaseRedis:    {Path: LeaseRedis, Name: "leaseredis"},
		PGX:           {Path: PGX, Name: "pgx"},
		"context":     {Path: "context", Name: "context2", Alias: true},
		"time":        {Path: "time", Name: "time"},
		"strconv":     {Path: "strconv", Name: "strconv"},
		"x.test/a":    {Path: "x.test/a", Name: "events", Alias: true},
		"x.test/z/v2": {Path: "x.test/z/v2", Name: "events2", Alias: true},
		"x.test/b":    {Path: "x.test/b", Name: "string2", Alias: true},
		"x.test/h":    {Path: "x.test/h", Name: "h"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if l := f.Events[0].Locals; l["topic"] != "topic2" || l["events"] != "events3" || l["e"] != "e" {
		t.Errorf("locals of the event: %v", l)
	}
	if l := f.Consumers[0].Locals; l["h"] != "h2" || l["be"] != "be" {
		t.Errorf("locals of the consumer: %v", l)
	}
}
