package lease

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/leasegen/leasegen/runtime/backend"
)

type charge struct {
	Cents int64             `json:"cents"`
	To    string            `json:"to"`
	Tags  map[string]string `json:"tags"`
	Sub   struct {
		N int `json:"n"`
	} `json:"sub"`
}

// Errors say which field and which types, and never show what was in it.
func TestDecodeErrors(t *testing.T) {
	for _, c := range []struct{ name, payload, want string }{
		{"empty", ``, "payload is empty"},
		{"null", `null`, "payload is null, want lease.charge"},
		{"null between spaces", " \r\n\tnull\n", "payload is null, want lease.charge"},
		{"wrong type", `[]`, "payload: want lease.charge, got array"},
		{"string for number", `{"cents":"12.5"}`, "cents: want int64, got string"},
		{"fraction for integer", `{"cents":12.5}`, "cents: want int64, got number"},
		{"overflow", `{"cents":99999999999999999999}`, "cents: want int64, got number"},
		{"nested", `{"sub":{"n":"x"}}`, "sub.n: want int, got string"},
		{"cut off", `{"cents":1`, "payload is not valid JSON at byte 10"},
		{"trailing data", `{} {}`, "payload is not valid JSON at byte 4"},
		{"invalid UTF-8", "{\"to\":\"\xff\"}", "payload is not valid UTF-8"},
		{"too deep", strings.Repeat(`[`, 20000), "payload is not valid JSON at byte 10001"},
	} {
		var m Message[charge]
		err := decode(&backend.Raw{Payload: []byte(c.payload)}, delivery{epoch: 1}, nil, &m)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
	var raw Message[json.RawMessage]
	if err := decode(&backend.Raw{Payload: []byte(`{"a":`)}, delivery{epoch: 1}, nil, &raw); err == nil {
		t.Error("a raw JSON handler was given what is not JSON")
	}
}

func TestDecode(t *testing.T) {
	r := backend.Raw{ID: "9", Topic: "t", Key: "k", Kind: "charge", Attempt: 2, Payload: []byte(`{"cents":5,"cents":6,"unknown":1}`)}
	var m Message[charge]
	if err := decode(&r, delivery{epoch: 42}, nil, &m); err != nil {
		t.Fatal(err)
	}
	if m.ID != "9" || m.Topic != "t" || m.Key != "k" || m.Kind != "charge" || m.Attempt != 3 || m.Epoch != 42 || m.Payload.Cents != 6 {
		t.Errorf("%+v", m)
	}
	var b Message[[]byte]
	if err := decode(&backend.Raw{Payload: []byte{0xff}}, delivery{epoch: 1}, nil, &b); err != nil || len(b.Payload) != 1 {
		t.Errorf("bytes are passed as they are: %v, %v", b.Payload, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"cents":1,"tags":{"a":"b"}}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		var m Message[charge]
		if err := decode(&backend.Raw{Payload: payload}, delivery{epoch: 1}, nil, &m); err != nil && strings.ContainsAny(err.Error(), "\n\x00") {
			t.Errorf("error is not one line: %q", err)
		}
	})
}
