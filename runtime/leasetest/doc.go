// Package leasetest is the conformance suite of leasegen's backends, and has help for
// users' own tests.
//
// # For users
//
// [Drain] runs a consumer until everything published before is dealt with. With the
// memory backend, a test of a consumer needs no server.
//
// # For backends
//
// [Run] runs the suite on a backend. It has two layers:
//
//   - the contract: every method and every rule of package backend, called
//     directly. These tests are named Subject/Rule.
//   - scenarios: several simulated processes, each a consumer of the real runtime with
//     its own handle on the backend, that fail, retry, crash, are cut off, join and
//     leave. Their names are sentences.
//
// Checks that need a role that the backend's Capabilities lack, or a function that the [Factory] lacks, are skipped. Most scenarios, and [Drain],
// need Capabilities.Operator. The backend's log has 64 slots or more.
//
// With go test -short the suite is as small as [RunVariant]: every rule, and one scenario of each kind.
//
// Most of the time the tests wait, so run many at once: go test -parallel 32.
//
// That the suite is able to fail is tested too: mutants_test.go breaks a backend in one
// way at a time and wants the suite to notice. sim_test.go runs the runtime in
// simulated time under faults that a seed chooses (go test -run Simulation -seeds 10000).
//
// Misbehaving/... makes one kind of call of a backend hang, fail, answer late, twice or
// wrongly; TestMisbehaviour goes through all of these cells in simulated time.
package leasetest
