// Package redisproof shows by fault injection what leasegen promises on Redis and on Redis
// Cluster: real processes and real servers are killed, frozen, cut off and resumed under
// load, and afterwards the history of what happened is checked.
//
//	go test ./proof/redis          a short round of everything; make more has the cluster, the mutants and the fence alone, make test all else
//	make proof-redis               100 rounds of the cheap faults, fewer of the dear ones
//	make proof-redis PROOF_ROUNDS=1000   ten times as many
//
// Replicas work on one consumer with per=topic. For each message they add one line to a
// history on a server of its own, the sink, which no process disturbs; around each commit they
// add one more, before and after. Its one thread puts all of them in one order. The sink
// refuses lines of an older epoch than it has seen of the topic, as doc.go of leaseredis
// advises. It has to hold of the history that:
//
//	lost          0: every acknowledged message has a line, or is a dead letter
//	twice         0 under one epoch; after a crash the next owner may repeat what was not
//	              committed, which is counted apart ("again")
//	undone        0: what was committed is not handled once more under a later epoch
//	stale         0: epochs of a topic never fall at the sink, and no commit succeeds that
//	              began after the sink had heard from a later owner
//	out of order  0: a topic's (a key's, when handlers fail) messages come in their order, within one
//	              epoch and over all first deliveries
//	doubled       0: no message was published twice under two ids
//
// Faults that take acknowledged writes out of Redis itself, the promotion of a replica that
// lags, for example, are allowed to lose and to undo: how much is counted and printed. Epochs must not fall then, either.
//
// On a cluster everything is to be worked on again 2 s after the cluster's own failover, without a
// call by anybody; of a master that hangs, plus the clients' ReadTimeout, 1 s here; where acknowledged writes are lost, which may be
// heartbeats, plus the TTL. To this, and to ttl + 1 s for takeovers, comes
// what the machine takes: ten of the longest bare requests made beside it (package pace).
//
// # Mutants
//
// A test that cannot fail is no proof, so for each mechanism there is a mutant that does without
// it (mutants_test.go), and a test that the same checks find it out (mutation_test.go, inprocess_test.go):
//
//	a heartbeat that writes its session anew    sessions that had expired live again
//	belief counted from the reply               two owners' handlers run at once
//	a session named after the consumer          no process takes over from replicas that were killed
//	commits without the fence                   a former owner's commit succeeds
//	the topology left to go-redis               a master that hangs holds everything up for a minute
//	a reader that ends at what it cannot read   messages behind a poisoned one are not handled
//	a bound that drops dead letters in silence  they are neither there nor counted
//	notifications that are trusted              no message is handled when they do not arrive
//	the cursor committed before dead letters    a crash between the two loses messages
//
// The mechanisms that others of that list break do not exist here: there are no consumer groups, so there is
// no acknowledgement that could go apart from what it stands for, no group that begins in the
// present (a consumer's first cursor is the beginning), no entry that is claimed for being idle, or without
// its body (leases are taken over from dead sessions only), and no blocking
// read that waits for ever (every wait is bounded).
package redisproof
