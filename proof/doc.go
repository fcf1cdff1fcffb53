// Package proof shows by fault injection what the design promises: real processes on
// a real PostgreSQL server are killed, frozen, cut off and resumed under load, and
// afterwards the history in the database is checked.
//
//	go test ./proof                     a short round of everything, in make test and make more
//	make proof                          100 rounds each of SIGKILL and SIGSTOP
//	make proof PROOF_ROUNDS=1000        more
//
// Three replicas work on one consumer with per=topic and a ttl of 2 s. For each message
// they write one row into a table, in the transaction that also moves the cursor. The
// table has no constraint that could hide a mistake. It has to hold that:
//
//	lost          0: every published message has a row
//	twice         0: and only one
//	stale         0: the epochs of a topic never fall, neither in the order in which the
//	              rows were written nor in the order in which they were committed
//	out of order  0: the rows of a topic are in the order in which they were published
//
// A test that cannot fail is no proof. So the same load runs twice more with all
// other protection taken away: handlers and commits ignore their cancelled context,
// and the server does not end transactions that idle. With the fence alone the table
// must still be right; with the fence removed as well it must be wrong.
//
// Two more of its tests look at what moves and what waits: TestRebalance lets replicas with
// 1,024 slots join and leave under load, TestHeldTransaction keeps a write transaction open
// elsewhere, for 10 s in make more and for two minutes in make proof.
//
// How long something may take is judged beside bare requests of the same run (package pace, handover_test.go), so that
// a machine that is slow or busy does not fail a test.
package proof
