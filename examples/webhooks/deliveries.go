package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/leasegen/leasegen/runtime/lease"
)

// delivery is one webhook delivery as GitHub sent it.
type delivery struct {
	name    string // folder/file
	kind    string
	payload []byte
}

// read reads a folder of deliveries: a folder per kind, a JSON file per delivery.
func read(dir string) ([]delivery, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*", "*.json"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no deliveries in %s; want files KIND/NAME.json", dir)
	}
	var ds []delivery
	for _, f := range files {
		payload, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		kind := filepath.Base(filepath.Dir(f))
		ds = append(ds, delivery{name: kind + "/" + filepath.Base(f), kind: kind, payload: payload})
	}
	return ds, nil
}

// event routes a delivery: the topic is its repository, or its organization when it
// has none; the key is its sender.
func (d delivery) event() lease.Event {
	var route struct {
		Repository   repository `json:"repository"`
		Organization account    `json:"organization"`
		Sender       account    `json:"sender"`
	}
	// A delivery that cannot be read is published anyway: the consumer's dead
	// letters are where it is seen.
	if err := json.Unmarshal(d.payload, &route); err != nil {
		route.Repository.FullName = "unreadable"
	}
	return lease.Event{
		Topic:   cmp.Or(route.Repository.FullName, route.Organization.Login, "github"),
		Key:     route.Sender.Login,
		Kind:    d.kind,
		Payload: d.payload,
		Headers: map[string]string{"delivery": d.name},
	}
}
