// Package redisproof shows by fault injection what leasegen promises on Redis and on Redis
// Cluster: real processes and real servers are killed, frozen, cut off and resumed under
// load, and afterwards the history of what happened is checked.
//
//	go test ./proof/redis          a short round of everything, part of make test
//	make proof-redis               the rounds that DESIGN's issue asks for
//	make proof-redis PROOF_ROUNDS=1000
//
// Replicas work on one consumer with per=topic. For each message they add one line to a
// history on a server of its own, the sink, which nobody disturbs; around each commit they
// add one more, before and after. Its one thread puts all of them in one order. The sink
// refuses lines of an older epoch than it has seen of the topic, as doc.go of leaseredis
// advises. What must hold of the history:
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
// lags, say, are allowed to lose and to undo: how much is counted and printed. Epochs must not fall then, either.
//
// A test that cannot fail proves nothing, so for each mechanism there is a mutant, in
// mutants_test.go, that does without it, and a test that the same checks find it out.
package redisproof
